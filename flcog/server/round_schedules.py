"""The clients' learning rates by round, from the schedulers of ``configure_optimizers`` with the interval ``epoch``."""

import copy
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from lightning.pytorch.utilities.types import LRSchedulerConfig

from flcog.own_steps import among_rounds


class RoundSchedules:
    """Advances a module's schedulers once per round, as Lightning does once per epoch.

    The rates of a round are a function of its number and of the figures that ``ReduceLROnPlateau`` follows. A checkpoint stores these
    figures, and a resumed run advances the schedulers again from the first round. A module with manual optimisation advances its
    schedulers itself, in a hook at the end of a round (:meth:`by_hand`), and a checkpoint stores their states.

    Args:
        module: the client's module, whose ``lr_scheduler_step`` advances a scheduler.
        optimizer: the module's optimiser.
        configs: the module's schedulers.
        rates: the learning rates of the optimiser's groups in the first round.
    """

    def __init__(
        self, module: Any, optimizer: torch.optim.Optimizer, configs: Sequence[LRSchedulerConfig], rates: Sequence[float]
    ) -> None:
        self._module, self._groups = module, optimizer.param_groups
        self._manual = not module.automatic_optimization
        self.configs = [config for config in configs if config.interval == "epoch" or self._manual]
        """The schedulers that advance at the end of a round."""
        self._follows = [
            config.monitor for config in self.configs if config.reduce_on_plateau and config.monitor and not self._manual
        ]
        self._rates = [list(rates)]
        self._states = [copy.deepcopy(config.scheduler.state_dict()) for config in self.configs]
        self.followed: list[dict[str, float]] = []
        """The figures that schedulers follow, by round."""
        self._warned = False

    def rates(self, round: int) -> list[float]:
        """The learning rates of the optimiser's groups in a round, counted from 0.

        A scheduler that follows a figure knows the rounds until the last one that :meth:`follow` has seen.
        """
        if not self.configs or self._manual:
            return self._rates[-1]
        while len(self._rates) <= round and (not self._follows or len(self._rates) <= len(self.followed)):
            self._advance()
        return self._rates[min(round, len(self._rates) - 1)]

    @property
    def follows(self) -> bool:
        """Whether a scheduler follows a figure of the rounds."""
        return bool(self._follows)

    def follow(self, metrics: Mapping[str, float], known: Mapping[str, float], evaluated: bool) -> None:
        """Note the figures of a finished round.

        Args:
            metrics: the round's row.
            known: the same figures under all of their names.
            evaluated: whether an absent figure is a mistake. A round without an evaluation advances no scheduler that follows one.
        """
        if not self.follows:
            return
        for config in self.configs:
            if config.reduce_on_plateau and config.monitor not in known and evaluated:
                problem = (
                    f"{type(config.scheduler).__name__} follows {config.monitor!r}, which is no column of this run: choose one of "
                    f"{', '.join(sorted(metrics))}"
                )
                if config.strict:
                    raise ValueError(problem)
                warnings.warn(f"{problem}; until then the learning rate stays as it is", stacklevel=2)
        self.followed.append({name: float(known[name]) for name in self._follows if name in known})

    @contextmanager
    def by_hand(self) -> Iterator[None]:
        """Let the hooks at the end of a round advance the schedulers of a module with manual optimisation."""
        if not self._manual or not self.configs:
            yield
            return
        with self._at(self._rates[-1]):
            self._load_states()
            yield
            self._states = [copy.deepcopy(config.scheduler.state_dict()) for config in self.configs]
            self._rates = [[group["lr"] for group in self._groups]]

    def state_dict(self) -> dict[str, Any]:
        """The figures that were followed, and the states of schedulers that a module advances itself; empty if there are none."""
        by_hand = {"rates": self._rates[-1], "states": self._states} if self._manual and self.configs else {}
        return by_hand | ({"followed": self.followed} if self.followed else {})

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """The inverse of :meth:`state_dict`."""
        self.followed = [dict(figures) for figures in state.get("followed", [])]
        self._rates = [list(state.get("rates", self._rates[0]))]
        self._states = state.get("states", self._states)
        self._load_states()

    def _load_states(self) -> None:
        for config, state in zip(self.configs, self._states, strict=True):
            config.scheduler.load_state_dict(copy.deepcopy(state))

    @contextmanager
    def _at(self, rates: Sequence[float]) -> Iterator[None]:
        """The optimiser with these learning rates. All of its settings are restored afterwards."""
        kept = [{name: value for name, value in group.items() if name != "params"} for group in self._groups]
        for group, rate in zip(self._groups, rates, strict=True):
            group["lr"] = rate
        try:
            yield
        finally:
            for group, settings in zip(self._groups, kept, strict=True):
                group.update(settings)

    def _advance(self) -> None:
        """Advance the schedulers by one round."""
        done = len(self._rates)
        before = [{name: group[name] for name in ("momentum", "betas") if name in group} for group in self._groups]
        with self._at(self._rates[-1]), among_rounds(self._module, done - 1), warnings.catch_warnings():
            warnings.filterwarnings("ignore", "Detected call of `lr_scheduler.step", UserWarning)
            for config in sorted(self.configs, key=lambda config: config.reduce_on_plateau):
                if done % config.frequency:
                    continue
                if not config.reduce_on_plateau:
                    self._module.lr_scheduler_step(config.scheduler, None)
                elif config.monitor in self.followed[done - 1]:
                    self._module.lr_scheduler_step(config.scheduler, self.followed[done - 1][config.monitor])
            self._rates.append([group["lr"] for group in self._groups])
            moved = [name for now, was in zip(self._groups, before, strict=True) for name in was if now[name] != was[name]]
        if moved and not self._warned:
            self._warned = True
            warnings.warn(
                f"{type(self._module).__name__}: a scheduler that advances once per round changes {moved[0]}, and clients take its "
                f"learning rates alone, with the {moved[0]} of the first round: pass cycle_momentum=False, or take interval='step'",
                stacklevel=2,
            )
