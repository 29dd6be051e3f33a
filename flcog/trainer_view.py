"""The base of all objects that modules and callbacks see as their ``lightning.Trainer``."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from lightning.pytorch.trainer.states import RunningStage, TrainerFn, TrainerState, TrainerStatus


def _is_in(stage: RunningStage) -> Any:
    return property(lambda self: self.state.stage == stage)


RUNNING = {
    TrainerFn.FITTING: RunningStage.TRAINING,
    TrainerFn.VALIDATING: RunningStage.VALIDATING,
    TrainerFn.TESTING: RunningStage.TESTING,
    TrainerFn.PREDICTING: RunningStage.PREDICTING,
}
"""The stage of a running trainer, by its verb."""


class TrainerView:
    """A stand-in for ``lightning.Trainer``, with the attributes that follow from its state.

    Args:
        stage: the stage at first.
    """

    max_steps, num_nodes = -1, 1
    training = _is_in(RunningStage.TRAINING)
    validating = _is_in(RunningStage.VALIDATING)
    testing = _is_in(RunningStage.TESTING)
    predicting = _is_in(RunningStage.PREDICTING)
    sanity_checking = _is_in(RunningStage.SANITY_CHECKING)

    def __init__(self, stage: RunningStage = RunningStage.TRAINING) -> None:
        self.state = TrainerState(TrainerStatus.RUNNING, TrainerFn.FITTING, stage)

    @property
    def fitting(self) -> bool:
        return self.state.fn == TrainerFn.FITTING

    @property
    def interrupted(self) -> bool:
        return self.state.status == TrainerStatus.INTERRUPTED

    @contextmanager
    def visible_to(self, module: Any) -> Iterator[None]:
        """Let a module or a data module find this trainer as ``self.trainer``."""
        before = module._trainer if hasattr(module, "_trainer") else module.trainer
        module.trainer = self
        try:
            yield
        finally:
            module.trainer = before
