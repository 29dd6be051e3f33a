"""The optimisers and schedulers of a run, as each client of a round begins with them."""

import copy
from collections.abc import Sequence
from typing import Any

import lightning as L
from torch import Tensor

from flcog.core.types import Slot


class RoundOptimizers:
    """Gives each client of a round the run's optimisers as the round began with them, and the client's own schedulers of steps.

    Changes of groups that a hook of an epoch makes, such as those of ``BackboneFinetuning``, are part of the round. A scheduler that a
    client's steps have advanced goes on at the same place in the client's next round, with the learning rate that it had, and so do
    options of groups that its steps have changed otherwise.
    """

    def __init__(self, trainer: L.Trainer, keeps: bool) -> None:
        self._trainer, self._keeps = trainer, keeps
        self._states, self._schedules = list[Any](), list[Any]()
        self._rates: Sequence[float] = ()
        self._options = list[dict[str, Any]]()
        """The groups' options with which the client has begun."""

    @property
    def _groups(self) -> list[dict[str, Any]]:
        return [group for optimizer in self._trainer.optimizers for group in optimizer.param_groups]

    def begin_round(self) -> None:
        """Remember the optimisers, which are fresh, and the schedulers."""
        for optimizer in self._trainer.optimizers:
            optimizer.state.clear()  # writing a checkpoint of a divided module has filled it
        self._states = [copy.deepcopy(optimizer.state_dict()) for optimizer in self._trainer.optimizers]
        self._schedules = self._of_schedulers()

    def _of_schedulers(self) -> list[Any]:
        return [copy.deepcopy(config.scheduler.state_dict()) for config in self._trainer.lr_scheduler_configs]

    def begin_client(self, rates: Sequence[float], saved: Slot) -> int:
        """Prepare for a client, from its :meth:`state` after its last round. Returns the number of steps that it has taken until then."""
        optimizers, configs = self._trainer.optimizers, self._trainer.lr_scheduler_configs
        for optimizer, state in zip(optimizers, saved.get("optimizers", ()), strict=False):
            optimizer.load_state_dict({**optimizer.state_dict(), "state": state})
        for config, schedule in zip(configs, saved.get("schedulers", ()), strict=False):
            if schedule:
                config.scheduler.load_state_dict(copy.deepcopy(schedule))
        self._rates = list(rates)
        for group, rate in zip(self._groups, rates, strict=False):
            group["lr"] = rate
        for group, rate, (then, changed) in zip(self._groups, rates, saved.get("options", ()), strict=False):
            group.update({name: tuple(value) if isinstance(value, list) else value for name, value in changed.items()})
            group["lr"] *= rate / then if "lr" in changed and then else 1
        self._options = [_options(group) for group in self._groups]
        return int(saved.get("steps", 0))

    def state(self, steps: int) -> Slot:
        """What the client needs in its next round."""
        schedules = [
            now if now.get("last_epoch") != before.get("last_epoch") else {}
            for now, before in zip(self._of_schedulers(), self._schedules, strict=True)
        ]
        saved: dict[str, Any] = {"steps": steps}
        if any(schedules):
            saved["schedulers"] = schedules
        changed = [
            {name: value for name, value in _options(group).items() if value != before[name]}
            for group, before in zip(self._groups, self._options, strict=False)
        ]
        if any(changed):
            saved["options"] = [[float(rate), options] for rate, options in zip(self._rates, changed, strict=False)]
        if self._keeps:
            saved["optimizers"] = [
                copy.deepcopy(optimizer.state_dict().get("state", {})) for optimizer in self._trainer.optimizers
            ]
        return saved

    def end_client(self) -> None:
        """Restore the optimisers and schedulers of the round."""
        for optimizer, state in zip(self._trainer.optimizers, self._states, strict=True):
            optimizer.load_state_dict(state)
        for config, schedule in zip(self._trainer.lr_scheduler_configs, self._schedules, strict=True):
            config.scheduler.load_state_dict(copy.deepcopy(schedule))


def _options(group: dict[str, Any]) -> dict[str, Any]:
    """The numbers in a group of an optimiser: its learning rate, momentum, weight decay."""
    values = {name: value for name, value in group.items() if name != "params" and not isinstance(value, bool)}
    pairs = {name: list(value) for name, value in values.items() if isinstance(value, tuple | list)}
    return pairs | {name: float(value) for name, value in values.items() if isinstance(value, int | float | Tensor)}
