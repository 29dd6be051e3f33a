"""The trainers of ``flcog bench``: the config's own, or several that compute the same rounds in different ways."""

import copy
import dataclasses
import itertools
import time
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from lightning.pytorch.cli import instantiate_class

from flcog.client.executor import Choice
from flcog.core.output import say
from flcog.core.text import first_line
from flcog.method import Method, check_methods

CALLBACKS = "callbacks"
"""The name of the variation of single methods. Each one joins the config's own methods in a run of its own."""

MAY_VARY = {
    "executor": "loop, vmap, vmap-patches",
    "chunk_size": "1, 10, 50",
    "compile": "false, true",
    "precision": "32-true, bf16-mixed",
    "tf32": "false, true",
}
"""Arguments of the trainer that change how a round is computed, but not its result, each with an example."""


class Contestant:
    """A trainer whose rounds are timed."""

    def __init__(self, trainer: Any, values: Mapping[str, Any] | None = None) -> None:
        self.trainer, self.values = trainer, dict(values or {})
        self.first_round, self.memory = 0.0, 0

    def warm_up(self) -> None:
        """Train a first round, which includes compiling and measuring."""
        self.first_round = self.round()
        if self.trainer.run.processes.is_first:
            say(f"first round of {self.name}: {self.first_round:.4f} s")

    def round(self) -> float:
        """Train a round and return its seconds."""
        device = self.trainer.run.processes.device
        held = _forget_peak(device) if device.type == "cuda" else 0
        began = time.perf_counter()
        self.trainer.train_round()
        synchronise(self.trainer)
        took = time.perf_counter() - began
        if device.type == "cuda":
            self.memory = max(self.memory, torch.cuda.max_memory_allocated(device) - held)
        return took

    @property
    def name(self) -> str:
        """Its variations in words."""
        return ", ".join(f"{name} {as_yaml(value)}" for name, value in self.values.items()) or "flcog"

    @property
    def ran_as(self) -> str:
        """Its executor, which may differ from the requested one."""
        executor = self.trainer.run.engine.clients.executor
        return str(Choice(executor.name, executor.clients_at_once, executor.compiled))


def wait_for_device(device: torch.device) -> None:
    """Wait for computations to finish, so that a clock measures all of them."""
    if device.type != "cpu":
        torch.get_device_module(device).synchronize()


def synchronise(trainer: Any) -> None:
    """Wait for the device and for the other processes."""
    wait_for_device(trainer.run.processes.device)
    trainer.fabric.barrier()


def _forget_peak(device: torch.device) -> int:
    """Reset the peak of a GPU's memory. Returns the memory in use."""
    torch.cuda.reset_peak_memory_stats(device)
    return torch.cuda.memory_allocated(device)


def variations(trainer: Any, vary: Mapping[str, Any] | None) -> list[Contestant]:
    """Make a trainer for each combination of values; without any, the config's own alone."""
    if vary is None:
        return [Contestant(trainer)]
    examples = {**MAY_VARY, CALLBACKS: "none, NAME"}
    for name, values in vary.items():
        if name not in examples or not isinstance(values, list) or not values:
            raise ValueError(
                f"vary.{name}={values!r}: give a list of values of one or several of "
                f"{', '.join(f'{known} ([{example}])' for known, example in examples.items())}"
            )
    return [_varied(trainer, dict(zip(vary, values, strict=True))) for values in itertools.product(*vary.values())]


def _varied(trainer: Any, values: Mapping[str, Any]) -> Contestant:
    other, settings = copy.copy(trainer), {name: value for name, value in values.items() if name != CALLBACKS}
    other.settings = dataclasses.replace(trainer.settings, **settings)
    other.methods = [*copy.deepcopy(trainer.methods), *_method(values.get(CALLBACKS))]
    check_methods(other.methods)
    return Contestant(other, values)


def _method(value: Any) -> list[Method]:
    """A method by its name, or by its class path and arguments as in configs; no method for ``none``."""
    if value in (None, "none"):
        return []
    given = {"class_path": value if "." in value else f"flcog.callbacks.{value}"} if isinstance(value, str) else value
    return [instantiate_class((), given)]


def warmed_up(contestants: Sequence[Contestant], model: Any, datamodule: Any) -> list[Contestant]:
    """Prepare and warm up the contestants.

    Prints why others are left out, for example because memory ran out.
    """
    ready, reasons = [], list[Exception]()
    for contestant in contestants:
        try:
            contestant.trainer.prepare(copy.deepcopy(model), datamodule)
            contestant.warm_up()
        except Exception as error:
            if contestant.trainer.fabric.world_size > 1:  # the other processes may have succeeded
                raise
            reasons.append(error)
            print(f"{contestant.name} is left out: {first_line(error)}")
        else:
            ready.append(contestant)
    if not ready:
        raise reasons[0]
    return ready


def as_yaml(value: Any) -> str:
    """Format a value as in configs; a method with its arguments by its name and these."""
    if isinstance(value, dict):
        arguments = ", ".join(f"{name}={as_yaml(each)}" for name, each in value.get("init_args", {}).items())
        return f"{value['class_path'].rpartition('.')[2]}({arguments})"
    return "null" if value is None else str(value).lower() if isinstance(value, bool) else str(value)
