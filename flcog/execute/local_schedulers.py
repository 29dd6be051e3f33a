"""The schedulers of learning rates within a client's local steps, which restart in each round."""

import copy
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from lightning.pytorch.utilities.types import LRSchedulerConfig


class LocalSchedulers:
    """Restores optimisers and schedulers before each client, and advances schedulers with the interval ``step``.

    A scheduler computes with the rates of the module, which the round's rates scale: a schedule of rounds and a schedule of steps
    multiply.

    Args:
        optimizers: of the module.
        schedulers: of the module, which are advanced here.
        bases: the learning rates of all groups that the round's rates are multiples of. They are the module's rates, except where a
            scheduler of steps begins at 0.
    """

    def __init__(
        self, optimizers: Sequence[torch.optim.Optimizer], schedulers: Sequence[LRSchedulerConfig], bases: Sequence[float]
    ) -> None:
        self._optimizers, self._bases = list(optimizers), bases
        self.configs = list(schedulers)
        self._groups = [group for optimizer in optimizers for group in optimizer.param_groups]
        self._initial = [_settings(group) for group in self._groups]
        self._states = [copy.deepcopy(config.scheduler.state_dict()) for config in self.configs]
        self._warned = False
        self._own: list[Any] = []
        self._factors: list[float] = []

    def begin(self, rates: Sequence[float]) -> None:
        """Prepare the optimisers and schedulers for a client.

        Args:
            rates: the learning rates of all groups in this round.
        """
        for optimizer in self._optimizers:
            optimizer.state.clear()
        for group, initial in zip(self._groups, self._initial, strict=True):
            group.update(copy.deepcopy(initial))
        for config, state in zip(self.configs, self._states, strict=True):
            config.scheduler.load_state_dict(copy.deepcopy(state))
        self._own = [group["lr"] for group in self._groups]
        self._factors = [rate / base if base else 1.0 for rate, base in zip(rates, self._bases, strict=True)]
        for group, rate, base in zip(self._groups, rates, self._bases, strict=True):
            if group["lr"] == base:  # else it begins at 0 in every round
                group["lr"] = rate

    @property
    def counts(self) -> list[Any]:
        """How often each scheduler has advanced."""
        return [getattr(config.scheduler, "last_epoch", None) for config in self.configs]

    def check_last_step(self, before: Sequence[Any], name: str) -> None:
        """Warn once if a client has advanced a scheduler by hand in its last step alone, after which no step has the new rate.

        Args:
            before: the counts before the client's last step.
            name: of the module.
        """
        first = [state.get("last_epoch") for state in self._states]
        if not self._warned and any(old == own != now for own, old, now in zip(first, before, self.counts, strict=True)):
            self._warned = True
            warnings.warn(
                f"{name} advances a learning-rate scheduler in a client's last step of a round, which changes no rate, because every "
                "client begins with the rates of its round: call the scheduler's step() in on_train_epoch_end instead",
                stacklevel=2,
            )

    def advance(self, step: int, update: Callable[[Any, Any], None]) -> None:
        """Advance the schedulers after a local step.

        Args:
            step: the number of the step.
            update: the module's ``lr_scheduler_step``.
        """
        due = [config for config in self.configs if (step + 1) % config.frequency == 0]
        if not due:
            return
        shown = [group["lr"] for group in self._groups]
        for group, own in zip(self._groups, self._own, strict=True):
            group["lr"] = own
        with in_any_order():
            for config in due:
                update(config.scheduler, None)
        for k, group in enumerate(self._groups):
            changed = group["lr"] != self._own[k]
            self._own[k] = group["lr"]
            group["lr"] = self._own[k] * self._factors[k] if changed else shown[k]


def _settings(group: dict[str, Any]) -> dict[str, Any]:
    return {name: copy.deepcopy(value) for name, value in group.items() if name != "params"}


@contextmanager
def in_any_order() -> Iterator[None]:
    """Without torch's warning about schedulers that advance before the optimiser has taken a step."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Detected call of `lr_scheduler.step", UserWarning)
        yield
