"""The observer that calls Lightning's callbacks, and the module's own hooks of whole epochs, at their places in a federated run."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, cast

import lightning as L
from lightning.pytorch.trainer.states import RunningStage, TrainerStatus
from torch import Tensor, nn
from torchmetrics import Metric

from flcog.client.lightning_hooks import EPOCH_HOOKS, written_hooks
from flcog.client.local_hooks import LocalHooks
from flcog.client.messages import Split
from flcog.core.gradients import refuse_freezing
from flcog.core.lightning_packages import lightning_base, users_hooks
from flcog.core.users_hooks import call_hook, logging_as
from flcog.evaluation_hooks import refusal_of_change
from flcog.method import Callback
from flcog.own_steps import logging_to
from flcog.run.callback_list import around_module, call_in_round, in_calling_order, is_up, not_replaced
from flcog.run.lightning_checkpoint import checked_state, entries_of_hook
from flcog.run.lightning_trainer import LightningTrainer
from flcog.run.session import Session
from flcog.server.round_schedules import RoundSchedules

BEFORE_VALIDATION = (("on_validation_start",), ("on_validation_epoch_start",))
AFTER_VALIDATION = (("on_validation_epoch_end",), ("on_validation_end",))
"""Hooks that are called once for all sets of a round."""


class LightningCallbacks(Callback):
    """Calls Lightning's callbacks, and those hooks of the module that belong to whole epochs. Every run has one.

    An epoch is a round. In each round the hooks are called in Lightning's order: ``on_train_epoch_start``, one batch, the validation hooks
    around the evaluation, and ``on_train_epoch_end``. Values that a callback or the module logs become columns of the round's row. A
    user's callback with hooks of batches gets the batches of the clients instead of one batch.

    Args:
        callbacks: of the trainer.
        fast_dev_run: the argument of the trainer.
    """

    def __init__(self, callbacks: Sequence[L.Callback] = (), fast_dev_run: bool | int = False) -> None:
        self.callbacks = in_calling_order(callbacks)
        self._fast_dev_run = fast_dev_run
        self.trainer: LightningTrainer | None = None
        """The last run as Lightning's trainer."""
        self._trainer: LightningTrainer | None = None
        """The same if a callback or a hook needs it."""
        self._active: list[L.Callback] = []
        self._hooks: list[str] = []
        self._in_clients: Sequence[L.Callback] = ()
        """Callbacks that get the batches of clients."""
        self._placed: list[Any] = []
        """Checkpoint callbacks that write into the directory of the run."""
        self._states: dict[str, Any] = {}
        """States from a checkpoint, until the callbacks are set up."""
        self._schedules: RoundSchedules | None = None
        self._of_schedules: dict[str, Any] = {}
        """The state of schedulers from a checkpoint."""
        self._of_data: dict[str, Any] = {}
        """The state of the data module from a checkpoint."""

    @property
    def draws_progress(self) -> bool:
        """Whether the callbacks include a progress bar, which replaces flcog's."""
        return any(lightning_base(callback, "ProgressBar") is not None for callback in self.callbacks)

    # Events of the run ------------------------------------------------------------------------------------------------------------

    def gather(self, module: nn.Module) -> list[L.Callback]:
        """The callbacks of a run: the trainer's, and those that the module's ``configure_callbacks`` returns, which may replace some."""
        added: Any = []
        if lightning_base(module, "LightningModule") and "configure_callbacks" in written_hooks(cast(Any, module)):
            added = cast(Any, module).configure_callbacks()
        added = added if isinstance(added, Sequence) else [added]
        self._active = in_calling_order([*not_replaced(self.callbacks, added), *added])
        return self._active

    def attach(self, run: Session, hooks: LocalHooks, root: str) -> None:
        """Let modules and callbacks see the run as their trainer.

        Args:
            run: the run, opened.
            hooks: the hooks that fire while clients train.
            root: the folder of the runs' directories.
        """
        self._hooks = [name for name in EPOCH_HOOKS if name in written_hooks(run.model.module)]
        needed = self._active or self._hooks or hooks.reason
        self.trainer = LightningTrainer(run, self._active, hooks.datamodule, root, self._fast_dev_run)
        run.model.eval_module.trainer = self.trainer  # type: ignore[assignment]  # for the module's steps in evaluations
        self._trainer = hooks.run = self.trainer if needed else None
        hooks.of_evaluations.run = self.trainer
        self.trainer.attached = self._trainer, self._active, self._hooks
        self._in_clients, self._schedules = hooks.callbacks, run.engine.schedules
        if self._of_data:
            hooks.datamodule.load_state_dict(self._of_data)
            self._of_data = {}
        if self._of_schedules:
            self._schedules.load_state_dict(self._of_schedules)
            self._of_schedules = {}

    def on_fit_start(self, run: Session) -> None:  # type: ignore[override]
        checkpoints: list[Any] = [callback for callback in self._active if lightning_base(callback, "ModelCheckpoint")]
        for callback in checkpoints:
            if callback.dirpath is None or callback in self._placed:  # a second fit has another directory
                callback.dirpath = str(run.directory / "checkpoints")
                self._placed.append(callback)
        self._call(("setup", "fit"))
        if run.resumed_from is not None:
            self._call(("on_load_checkpoint", dict(run.resumed_from)))
            run.resumed_from = None
        for callback in self._active:
            if state := self._states.get(callback.state_key):
                callback.load_state_dict(state)
        self._states = {}
        self._call(("on_fit_start",))

    def on_sanity_check_start(self, run: Session) -> None:
        """The central sets are about to be evaluated on a few batches before round 1."""
        if self.trainer is not None:
            self.trainer.state.stage = RunningStage.SANITY_CHECKING
            self._call(("on_sanity_check_start",), *BEFORE_VALIDATION)

    def on_sanity_check_end(self, run: Session, metrics: dict[str, float]) -> None:
        """That evaluation has ended. Its figures are forgotten."""
        if self.trainer is not None:
            self.trainer.metrics = metrics
            self._call(*AFTER_VALIDATION, ("on_sanity_check_end",))
            self.trainer.metrics, self.trainer.state.stage = {}, RunningStage.TRAINING

    def on_train_start(self, run: Session) -> None:
        """The rounds begin."""
        self._call(("on_train_start",))

    def on_round_start(self, run: Session, round: int, cohort: list[int]) -> None:  # type: ignore[override]
        if self.trainer is not None:
            self.trainer.current_epoch = round - 1
            self.trainer.begin_row({})
            self._call(("on_train_epoch_start",), ("on_train_batch_start", None, 0))

    def on_evaluation_start(self, run: Session, round: int) -> None:
        """The sets of the round are about to be evaluated."""
        if self._trainer is not None:
            self._trainer.state.stage = RunningStage.VALIDATING
            self._call(*BEFORE_VALIDATION)

    def on_evaluation_end(self, run: Session, round: int, metrics: dict[str, float]) -> None:  # type: ignore[override]
        if self._trainer is not None:
            self._take_row(metrics)
            self._call(*AFTER_VALIDATION)
            self._trainer.state.stage = RunningStage.TRAINING

    def on_round_metrics(self, run: Session, round: int, metrics: dict[str, float]) -> None:  # type: ignore[override]
        if self.trainer is not None:
            self._take_row(metrics)
            with run.engine.schedules.by_hand():
                self._call(("on_train_batch_end", {}, None, 0), ("on_train_epoch_end",))
        settings = run.settings
        evaluated = settings.evaluates(round) or settings.eval_every == 0
        run.engine.schedules.follow(metrics, run.model.log.names.named(metrics), evaluated)

    @contextmanager
    def measuring(self, run: Session, split: Split) -> Iterator[dict[str, float]]:
        """An evaluation outside ``fit``, to whose figures the hooks around a validation may add."""
        figures, trainer = dict[str, float](), self.show(run)
        trainer.begin_row({})
        self._call(*(BEFORE_VALIDATION if split == "val" else ()))
        yield figures
        self._take_row(figures)
        self._call(*(AFTER_VALIDATION if split == "val" else ()))
        trainer.save_logs()

    def show(self, run: Session) -> LightningTrainer:
        """Let the callbacks and the module see a run that was opened earlier. Returns it as their trainer."""
        self.trainer = trainer = cast(LightningTrainer, run.model.eval_module.trainer)
        self._trainer, self._active, self._hooks = trainer.attached
        return trainer

    def call_users(self, hook: str, stage: str) -> None:
        """Call ``setup`` or ``teardown`` outside ``fit``: of users' callbacks, because Lightning's own act on training alone."""
        active, self._active = self._active, [callback for callback in self._active if users_hooks(callback, [hook])]
        try:
            if self._active or hook in self._hooks:
                self._call((hook, stage))
        finally:
            self._active = active

    def on_fit_end(self, run: Session) -> None:  # type: ignore[override]
        if self.trainer is not None:
            self.trainer.state.status, self.trainer.current_epoch = TrainerStatus.FINISHED, run.round
            self._call(("on_train_end",), ("on_fit_end",))
            self.trainer.datamodule.teardown("fit")
            self._call(("teardown", "fit"))
            self.trainer.state.stage = None

    def on_exception(self, run: Session, exception: BaseException) -> None:  # type: ignore[override]
        if self.trainer is not None:
            self.trainer.datamodule.on_exception(exception)
            self.trainer.state.status = TrainerStatus.INTERRUPTED
            self._call(("on_exception", exception))
            self.trainer.state.stage = None

    # State ------------------------------------------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        owners: list[Any] = self._active if self.trainer is None else [*self._active, self.trainer.datamodule]
        states = [checked_state(owner, owner.state_dict()) for owner in owners]
        found = {
            "callbacks": {callback.state_key: state for callback, state in zip(self._active, states, strict=False) if state},
            "schedules": self._schedules.state_dict() if self._schedules else {},
            "datamodule": states[-1] if self.trainer is not None else {},
            "time_is_up": any(map(is_up, self._active)),
        }
        return {name: state for name, state in found.items() if state or name == "callbacks"}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._states, self._of_schedules = state.get("callbacks", {}), state.get("schedules", {})
        self._of_data = state.get("datamodule", {})

    def checkpoint_entries(self, checkpoint: dict[str, Any]) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for callback in self._active:
            if self._trainer is not None and users_hooks(callback, ["on_save_checkpoint"]):
                found |= entries_of_hook(callback, checkpoint | found, self._trainer, self._trainer.lightning_module)
        return found

    # Calls ------------------------------------------------------------------------------------------------------------------------

    def _call(self, *hooks: tuple[Any, ...]) -> None:
        """Call hooks, given with their arguments, in Lightning's order. The module has the global weights."""
        trainer = self._trainer
        if trainer is None or not hooks:
            return
        trainer.load_global_model()
        module = trainer.lightning_module
        names = [name for name, *_ in hooks]
        hooked = any(name in self._hooks for name in names) or any(users_hooks(callback, names) for callback in self._active)
        with trainer.kept(hooked), trainer.visible_to(module), self._logging(trainer):
            for hook, *arguments in hooks:
                before, after = around_module(self._active, hook)
                self._call_callbacks(before, hook, trainer, *arguments)
                if hook in self._hooks:
                    call_hook(module, hook, *arguments, where=f", round {trainer.current_epoch + 1}")
                    self._check_weights(f"{type(module).__name__}.{hook}")
                self._call_callbacks(after, hook, trainer, *arguments)

    def _call_callbacks(self, callbacks: Sequence[L.Callback], hook: str, trainer: LightningTrainer, *arguments: Any) -> None:
        for callback in callbacks:
            if "batch" in hook and callback in self._in_clients:
                continue
            with logging_as(trainer.lightning_module, callback):
                call_in_round(callback, hook, trainer, trainer.lightning_module, *arguments)
            if users_hooks(callback, [hook]):
                self._check_weights(f"{type(callback).__name__}.{hook}")

    def _check_weights(self, hook: str) -> None:
        """Refuse a hook that has changed the global weights or persistent buffers."""
        assert self._trainer is not None
        changed = self._trainer.changed_parameter()
        if changed:
            raise ValueError(refusal_of_change(hook, changed))
        refuse_freezing(hook, self._trainer.lightning_module, self._trainer.trained)
        if changed := self._trainer.changed_buffer():
            raise ValueError(
                f"{hook} changes the persistent buffer {changed} of the global model, which only the server changes: register it with "
                "persistent=False, or change it while a client trains"
            )

    def _take_row(self, metrics: dict[str, float]) -> None:
        """Let callbacks see and extend the round's row, to which the figures that they logged at its start are added."""
        assert self.trainer is not None
        for name, value in self.trainer.metrics.items():
            metrics.setdefault(name, value)
        self.trainer.begin_row(metrics)

    @contextmanager
    def _logging(self, trainer: LightningTrainer) -> Iterator[None]:
        """Values that are logged become columns of the row in hand. Logged metrics are computed at once, and reset after the hooks."""
        logged: list[Metric] = []

        def log(name: str, value: Any, prog_bar: bool = False, **options: Any) -> None:
            trainer.shown |= {name} if prog_bar else set()
            if isinstance(value, Metric):
                logged.append(value)
                value = value.compute()
            trainer.metrics[name] = float(value.detach() if isinstance(value, Tensor) else value)

        with logging_to(trainer.lightning_module, log):
            yield
        for metric in logged:
            metric.reset()
