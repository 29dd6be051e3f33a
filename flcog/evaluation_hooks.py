"""Lightning's hooks around the evaluation of a set: of the module, and of users' callbacks."""

import functools
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any

import lightning as L
import torch
from lightning.pytorch.trainer.states import RunningStage, TrainerState

from flcog.batch_hooks import BatchHooks
from flcog.client_module import ClientModule
from flcog.core.lightning_packages import lightning_base, users_hooks
from flcog.core.types import Params
from flcog.core.users_hooks import call_callback, call_hook, name_hook
from flcog.evaluation_log import EvaluationLog
from flcog.model_function import ModelFunction
from flcog.own_steps import call_step, metrics_apart, step_for

OF_A_MODULE = (
    *("on_validation_model_zero_grad", "on_validation_model_eval", "on_validation_epoch_start", "on_validation_batch_start"),
    *("on_validation_batch_end", "on_validation_epoch_end", "on_validation_model_train"),
    *("on_test_model_eval", "on_test_start", "on_test_epoch_start", "on_test_batch_start"),
    *("on_test_batch_end", "on_test_epoch_end", "on_test_end", "on_test_model_train"),
    *("on_predict_model_eval", "on_predict_start", "on_predict_epoch_start", "on_predict_batch_start"),
    *("on_predict_batch_end", "on_predict_epoch_end", "on_predict_end"),
)
"""Hooks of modules. ``on_validation_start`` and ``on_validation_end`` are called once for all sets of a round."""

OF_A_CALLBACK = (
    *("on_validation_batch_start", "on_validation_batch_end", "on_test_batch_start", "on_test_batch_end"),
    *("on_test_start", "on_test_epoch_start", "on_test_epoch_end", "on_test_end"),
    *("on_predict_start", "on_predict_epoch_start", "on_predict_batch_start"),
    *("on_predict_batch_end", "on_predict_epoch_end", "on_predict_end"),
)
"""Hooks of callbacks. Those of whole validations are called once for all sets of a round."""


OF_A_TEST_SET = (("on_test_start", "on_test_epoch_start"), ("on_test_epoch_end", "on_test_end"))
"""Hooks of callbacks before and after the evaluation of a test set."""

STAGES = {"validation": RunningStage.VALIDATING, "test": RunningStage.TESTING, "predict": RunningStage.PREDICTING}
"""The stage of a trainer, by the second word of a hook's name."""


class EvaluationHooks:
    """Calls the hooks around the evaluation of a set.

    Args:
        module: the client's module.
        datamodule: the user's data module.
        callbacks: the run's callbacks of Lightning's. Only users' own get these hooks; progress bars draw rounds.
    """

    def __init__(self, module: L.LightningModule, datamodule: Any, callbacks: Sequence[L.Callback] = ()) -> None:
        self.batches = BatchHooks(module, datamodule)
        self._written = users_hooks(module, OF_A_MODULE)
        self._has_figures = isinstance(module, ClientModule) or step_for(module, "test", 1) is not None
        self._callbacks = [
            (callback, hooks)
            for callback in callbacks
            if lightning_base(callback, "ProgressBar") is None and (hooks := users_hooks(callback, OF_A_CALLBACK))
        ]
        self.run: Any = None
        """The trainer of the run, if it runs in this process."""

    @property
    def watches_batches(self) -> bool:
        """Whether a callback has hooks of single batches."""
        return any("batch" in hook for _, hooks in self._callbacks for hook in hooks)

    @property
    def _where(self) -> str:
        return f", round {self.run.current_epoch + 1}" if self.run is not None and self.run.fitting else ""

    def of_callbacks(self, model: ModelFunction, params: Params, buffers: Params, hook: str, *arguments: Any) -> None:
        """Call a hook of the callbacks. The module has the evaluated weights, which the hook may not change.

        Args:
            model: the client's model.
            params, buffers: the evaluated model's.
            hook: its name.
            arguments: after the trainer and the module.
        """
        for callback, hooks in self._callbacks:
            if hook in hooks:
                function = functools.partial(self._of_callback, callback, hook, arguments)
                self._keeping(model, params, buffers, f"{type(callback).__name__}.{hook}", function)

    @property
    def has_callbacks(self) -> bool:
        """Whether callbacks of Lightning's may log figures of a set."""
        return bool(self._callbacks)

    @property
    def have_figures(self) -> bool:
        """Whether an evaluation may have figures, from a client module, a module's own steps, or callbacks."""
        return self._has_figures or self.has_callbacks

    @contextmanager
    def around_set(
        self, model: ModelFunction, params: Params, buffers: Params, split: str, log: EvaluationLog, rows: int
    ) -> Iterator[None]:
        """Call the callbacks' hooks of a whole set around its evaluation, and collect the values that they log.

        Args:
            model: the client's model.
            params, buffers: the evaluated model's.
            split: the purpose of the set.
            log: receives the values.
            rows: the number of rows of this process.
        """
        if not self._callbacks:
            yield
            return
        hooks = OF_A_TEST_SET if split == "test" else ((), ())
        with log.of(model.eval_module, rows, whole=True):
            for hook in hooks[0]:
                self.of_callbacks(model, params, buffers, hook)
            yield
            for hook in hooks[1]:
                self.of_callbacks(model, params, buffers, hook)

    def _of_callback(self, callback: L.Callback, hook: str, arguments: Sequence[Any], module: Any) -> None:
        trainer = self.run or module._trainer
        with _in_stage(trainer.state, STAGES[hook.split("_")[1]]):
            call_callback(callback, hook, trainer, module, *arguments, where=self._where)

    @contextmanager
    def state_of(self, model: ModelFunction, lasting: bool, own: bool) -> Iterator[None]:
        """Let the module keep its metrics and attributes after an evaluation, as in Lightning, or forget them.

        Args:
            model: the client's model.
            lasting: whether the evaluation is one of the run's own.
            own: whether the step evaluates its own kind of set, and not the test set by ``validation_step``, for example.
        """
        module, fitting = model.eval_module, self.run is None or self.run.fitting
        handing_back = model.copies.hand_back(module, fitting, own) if lasting else nullcontext()
        with nullcontext() if lasting and own else metrics_apart(module), handing_back:
            yield

    def step(self, model: ModelFunction, params: Params, buffers: Params, name: str, *arguments: Any) -> Any:
        """The result of the module's own step, such as ``validation_step``.

        Args:
            model: the client's model.
            params, buffers: the evaluated model's.
            name: of the step.
            arguments: the batch, its index, and the index of its loader if there are several.
        """
        try:
            return model.frozen(params, buffers, call_step, name, *arguments)
        except Exception as error:
            where = self._where
            if name == "validation_step" and model.eval_module.trainer.testing:
                remedy = ", or leave the test set out of fit by limit_test_batches=0" if where else ""
                where += f", on the test set, because there is no test_step: write one{remedy}"
            name_hook(error, model.module, name, where)
            raise

    def of_module(self, model: ModelFunction, params: Params, buffers: Params, hook: str, *arguments: Any) -> None:
        """Call a hook of the module, which has the evaluated weights and may not change them.

        Args:
            model: the client's model.
            params, buffers: the evaluated model's.
            hook: its name.
            arguments: the hook's.
        """
        if hook in self._written:

            def function(module: Any) -> None:
                call_hook(module, hook, *arguments, where=self._where)

            self._keeping(model, params, buffers, f"{type(model.module).__name__}.{hook}", function)

    @staticmethod
    def _keeping(model: ModelFunction, params: Params, buffers: Params, name: str, function: Callable[[Any], None]) -> None:
        """Call a hook, and refuse it if it changes a parameter."""
        before = {parameter: value.clone() for parameter, value in params.items()}

        def checked(module: Any) -> None:
            function(module)
            for parameter, value in module.named_parameters():
                if parameter in before and not torch.equal(value, before[parameter]):
                    params[parameter].copy_(before[parameter])
                    raise ValueError(refusal_of_change(name, parameter))

        model.frozen(params, buffers, checked)


@contextmanager
def _in_stage(state: TrainerState, stage: RunningStage) -> Iterator[None]:
    """Let a trainer be in this stage, unless it checks the evaluation before round 1."""
    before = state.stage
    state.stage = before if before == RunningStage.SANITY_CHECKING else stage
    try:
        yield
    finally:
        state.stage = before


def refusal_of_change(hook: str, parameter: str) -> str:
    """The message for a hook that changes a parameter of the global model."""
    return (
        f"{hook} changes the parameter {parameter} of the global model, which only the server changes: change it while a client trains "
        "(on_train_batch_end), or write a flcog.Method with server_step"
    )
