"""Lightning's hooks around the evaluation of a set: of the module, and of users' callbacks."""

from collections.abc import Sequence
from typing import Any

import lightning as L
import torch

from flcog.batch_hooks import BatchHooks
from flcog.core.lightning_packages import lightning_base, users_hooks
from flcog.core.types import Params
from flcog.core.users_hooks import call_hook, name_hook
from flcog.model_function import ModelFunction
from flcog.own_steps import call_step

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
        self._callbacks = [
            (callback, hooks)
            for callback in callbacks
            if lightning_base(callback, "ProgressBar") is None and (hooks := users_hooks(callback, OF_A_CALLBACK))
        ]
        self.run: Any = None
        """The trainer of the run, if it runs in this process."""

    @property
    def _where(self) -> str:
        return f", round {self.run.current_epoch + 1}" if self.run is not None and self.run.fitting else ""

    def of_callbacks(self, module: Any, hook: str, *arguments: Any) -> None:
        """Call a hook of the callbacks.

        Args:
            module: the module in evaluation mode.
            hook: its name.
            arguments: after the trainer and the module.
        """
        for callback, hooks in self._callbacks:
            if hook in hooks:
                call_hook(callback, hook, self.run or module._trainer, module, *arguments, where=self._where)

    def step(self, model: ModelFunction, params: Params, buffers: Params, name: str, *arguments: Any) -> Any:
        """The result of the module's own step, such as ``validation_step``.

        Args:
            model: the client's model.
            params, buffers: the evaluated model's.
            name: of the step.
            arguments: the batch and its number.
        """
        try:
            return model.frozen(params, buffers, call_step, name, *arguments)
        except Exception as error:
            name_hook(error, model.module, name, self._where)
            raise

    def of_module(self, model: ModelFunction, params: Params, buffers: Params, hook: str, *arguments: Any) -> None:
        """Call a hook of the module, which has the evaluated weights and may not change them.

        Args:
            model: the client's model.
            params, buffers: the evaluated model's.
            hook: its name.
            arguments: the hook's.
        """
        if hook not in self._written:
            return
        before = {name: value.clone() for name, value in params.items()}

        def checked(module: Any) -> None:
            call_hook(module, hook, *arguments, where=self._where)
            for name, value in module.named_parameters():
                if name in before and not torch.equal(value, before[name]):
                    params[name].copy_(before[name])
                    raise ValueError(refusal_of_change(f"{type(module).__name__}.{hook}", name))

        model.frozen(params, buffers, checked)


def refusal_of_change(hook: str, parameter: str) -> str:
    """The message for a hook that changes a parameter of the global model."""
    return (
        f"{hook} changes the parameter {parameter} of the global model, which only the server changes: change it while a client trains "
        "(on_train_batch_end), or write a flcog.Method with server_step"
    )
