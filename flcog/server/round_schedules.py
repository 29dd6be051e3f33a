"""The clients' learning rates by round, from the schedulers of ``configure_optimizers`` with the interval ``epoch``."""

import copy
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from lightning.pytorch.utilities.types import LRSchedulerConfig

from flcog.own_steps import among_rounds


class RoundSchedules:
    """Advances a module's schedulers once per round, as Lightning does once per epoch.

    The rates of a round are a function of its number and of the figures that ``ReduceLROnPlateau`` follows. A checkpoint stores these
    figures, and a resumed run advances the schedulers again from the first round.

    Args:
        module: the client's module, whose ``lr_scheduler_step`` advances a scheduler.
        optimizer: the module's optimiser.
        configs: the module's schedulers.
    """

    def __init__(self, module: Any, optimizer: torch.optim.Optimizer, configs: Sequence[LRSchedulerConfig]) -> None:
        self._module, self._groups = module, optimizer.param_groups
        self.configs = [config for config in configs if config.interval == "epoch"] if module.automatic_optimization else []
        self._follows = [config.monitor for config in self.configs if config.reduce_on_plateau and config.monitor]
        self._rates = [[group["lr"] for group in self._groups]]
        self._states = [copy.deepcopy(config.scheduler.state_dict()) for config in self.configs]
        self.followed: list[dict[str, float]] = []
        """The figures that schedulers follow, by round."""

    def rates(self, round: int) -> list[float]:
        """The learning rates of the optimiser's groups in a round, counted from 0.

        A scheduler that follows a figure knows the rounds until the last one that :meth:`follow` has seen.
        """
        if not self.configs:
            return self._rates[0]
        while len(self._rates) <= round and (not self._follows or len(self._rates) <= len(self.followed)):
            self._advance()
        return self._rates[min(round, len(self._rates) - 1)]

    def follow(self, metrics: Mapping[str, float], evaluated: bool) -> None:
        """Note the figures of a finished round.

        Args:
            metrics: the round's row.
            evaluated: whether an absent figure is a mistake. A round without an evaluation advances no scheduler that follows one.
        """
        if not self._follows:
            return
        known = dict(metrics) | {name.replace("/", "_"): value for name, value in metrics.items()}
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

    def restore(self, followed: Sequence[Mapping[str, float]]) -> None:
        """Take over the figures of a checkpoint."""
        self.followed = [dict(figures) for figures in followed]
        del self._rates[1:]
        for config, state in zip(self.configs, self._states, strict=True):
            config.scheduler.load_state_dict(copy.deepcopy(state))

    def _advance(self) -> None:
        """Advance the schedulers by one round."""
        done = len(self._rates)
        kept = [{name: value for name, value in group.items() if name != "params"} for group in self._groups]
        for group, rate in zip(self._groups, self._rates[-1], strict=True):
            group["lr"] = rate
        with among_rounds(self._module, done - 1), warnings.catch_warnings():
            warnings.filterwarnings("ignore", "Detected call of `lr_scheduler.step", UserWarning)
            for config in sorted(self.configs, key=lambda config: config.reduce_on_plateau):
                if done % config.frequency:
                    continue
                if not config.reduce_on_plateau:
                    self._module.lr_scheduler_step(config.scheduler, None)
                elif config.monitor in self.followed[done - 1]:
                    self._module.lr_scheduler_step(config.scheduler, self.followed[done - 1][config.monitor])
        self._rates.append([group["lr"] for group in self._groups])
        for group, settings in zip(self._groups, kept, strict=True):
            group.update(settings)
