"""Trainers whose rounds ``flcog bench`` times: the config's own, or several that compute its rounds in different ways."""

import copy
import dataclasses
import itertools
import time
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from flcog.commands.bench.waiting import synchronise
from flcog.execute.fastest import Choice

MAY_VARY = ("executor", "chunk_size", "compile", "precision", "tf32")
"""Arguments of the trainer that change how a round is computed, and not what: its steps stay those of the bare loop."""


class Contestant:
    """A trainer whose rounds are timed.

    Args:
        trainer: not yet prepared.
        values: what is special about it, by the trainer's arguments.
    """

    def __init__(self, trainer: Any, values: Mapping[str, Any] | None = None) -> None:
        self.trainer, self.values = trainer, dict(values or {})
        self.first_round, self.memory = 0.0, 0

    def warm_up(self) -> None:
        """Train a first round, in which is compiled and measured what has to be."""
        self.first_round = self.round()

    def round(self) -> float:
        """Seconds that a round takes."""
        on_gpu = self.trainer.run.processes.device.type == "cuda"
        held = _forget_peak(self.trainer.run.processes.device) if on_gpu else 0
        began = time.perf_counter()
        self.trainer.train_round()
        synchronise(self.trainer)
        took = time.perf_counter() - began
        if on_gpu:
            self.memory = max(self.memory, torch.cuda.max_memory_allocated(self.trainer.run.processes.device) - held)
        return took

    @property
    def ran_as(self) -> str:
        """Its executor, which may be another one than was asked for."""
        executor = self.trainer.run.engine.clients.executor
        return str(Choice(executor.name, executor.clients_at_once, executor.compiled))


def _forget_peak(device: torch.device) -> int:
    """What is held of a GPU's memory, from which its peak is counted anew."""
    torch.cuda.reset_peak_memory_stats(device)
    return torch.cuda.memory_allocated(device)


def variations(trainer: Any, vary: Mapping[str, Any]) -> list[Contestant]:
    """A trainer for each combination of values.

    Args:
        trainer: the config's.
        vary: lists of values by the trainer's arguments.
    """
    if not vary:
        raise ValueError(f"vary has nothing to vary; give a list of values of {', '.join(MAY_VARY)}")
    for name, values in vary.items():
        if name not in MAY_VARY:
            raise ValueError(f"vary: {name} cannot be varied; what changes only how a round is computed is {', '.join(MAY_VARY)}")
        if not isinstance(values, list) or not values:
            raise ValueError(f"vary.{name} is a list of values, as in --vary.{name} '[{EXAMPLES[name]}]'; got {values!r}")
    return [_varied(trainer, dict(zip(vary, values, strict=True))) for values in itertools.product(*vary.values())]


EXAMPLES = {
    "executor": "loop, vmap, vmap-patches",
    "chunk_size": "1, 10, 50",
    "compile": "false, true",
    "precision": "32-true, bf16-mixed",
    "tf32": "false, true",
}


def _varied(trainer: Any, values: Mapping[str, Any]) -> Contestant:
    other = copy.copy(trainer)
    other.settings = dataclasses.replace(trainer.settings, **values)
    other.methods = copy.deepcopy(trainer.methods)
    return Contestant(other, values)


def warmed_up(contestants: Sequence[Contestant], model: Any, datamodule: Any) -> list[Contestant]:
    """Those that are ready to be timed. A line says why another is left out, for want of memory for instance.

    Args:
        contestants: not prepared.
        model: as configured; each gets a copy.
        datamodule: of all of them.
    """
    ready, reasons = [], list[Exception]()
    for contestant in contestants:
        try:
            contestant.trainer.prepare(copy.deepcopy(model), datamodule)
            contestant.warm_up()
        except Exception as error:
            if contestant.trainer.fabric.world_size > 1:  # the other processes may have got through
                raise
            reasons.append(error)
            values = ", ".join(f"{name} {as_yaml(value)}" for name, value in contestant.values.items())
            print(f"{values} is left out: {(str(error).strip() or type(error).__name__).splitlines()[0]}")
        else:
            ready.append(contestant)
    if not ready:
        raise reasons[0]
    return ready


def as_yaml(value: Any) -> str:
    """A value as configs have it."""
    return "null" if value is None else str(value).lower() if isinstance(value, bool) else str(value)
