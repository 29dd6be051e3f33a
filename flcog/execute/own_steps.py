"""Runs a module's own ``training_step`` for many clients, and finds its side effects."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torchmetrics import Metric

from flcog.core.arguments import digest
from flcog.core.global_streams import draws_from, kept_streams, moved
from flcog.core.trees import Tree
from flcog.execute.frozen_writes import restored
from flcog.model_function import ModelFunction
from flcog.own_steps import among_rounds, call_step, logging_to, loss_of


@contextmanager
def own_steps(model: ModelFunction, round: int) -> Iterator[None]:
    """Give a module's ``training_step`` the round number and a logger, for the training of one client or of a chunk.

    It does nothing for modules without such a step.
    """
    if not model.trains_itself:
        yield
        return
    model.log.begin_client()
    with among_rounds(model.module, round), logging_to(model.module, model.log.take):
        yield


@dataclass(frozen=True)
class Traces:
    """The side effects of a ``training_step`` that leak between clients, in words; empty strings for a pure step.

    Args:
        fails: the step fails on a trial batch.
        keeps: the step changes attributes.
        metrics: the step updates metrics of torchmetrics; no loss depends on these.
        draws: the step draws from global random streams.
        logs: the columns of the values that the step logs.
    """

    fails: str = ""
    keeps: str = ""
    metrics: str = ""
    draws: str = ""
    logs: tuple[str, ...] = ()

    def between_threads(self) -> str:
        """The reason why clients cannot run side by side on copies of the module, or an empty string."""
        return self.fails or self.keeps or self.draws

    def between_clients(self) -> str:
        """The reason why clients cannot be one batched program, or an empty string."""
        return self.between_threads() or self.metrics


def traces(model: ModelFunction, batch: Tree, device: torch.device) -> Traces:
    """Try a module's ``training_step`` twice on a batch, and report all changes.

    Args:
        model: the client's model.
        batch: two copies of a sample.
        device: the device of the model.
    """
    name = f"{type(model.module).__name__}.training_step"
    buffers = {key: buffer.clone() for key, buffer in model.buffers.items()}
    before = _kept(model.module)
    first: tuple[Any, dict[str, Tensor]] | None = None
    try:
        with (
            kept_streams(device) as stood,
            among_rounds(model.module, 0),
            model.log.of_a_step() as logged,
            logging_to(model.module, model.log.take),
            restored(model.module, model.constants) as found,
        ):
            for index in range(2):
                result = model.training(model.params, buffers, call_step, "training_step", batch, index)
                first = first or (result, dict(logged))
            frozen, drawn = found(), moved(stood, device)
    except Exception:  # The error comes again, with its client and step, when a client trains.
        return Traces(fails=f"{name} fails on two copies of a training sample")
    after = _kept(model.module)
    model.log.begin_client()
    if first is not None:
        with suppress(ValueError):  # the error comes again, too
            model.log.compare(loss_of(model.module, first[0]), first[1])
    changed = [key for key in after if after[key] != before.get(key)]
    metrics = {key for key in changed if _is_of_metric(model.module, key)}
    # Of many frozen parameters, such as a teacher's, the first is named.
    kept, measured = (
        ", ".join(keys) for keys in ([*(key for key in changed if key not in metrics), *frozen[:1]], sorted(metrics))
    )
    return Traces(
        keeps=f"{name} keeps something between steps (self.{kept})" if kept else "",
        metrics=f"{name} keeps metrics between steps (self.{measured})" if measured else "",
        draws=f"{name} {sentence}" if (sentence := draws_from(drawn)) else "",
        logs=tuple(logged),
    )


def _is_of_metric(module: nn.Module, name: str) -> bool:
    return isinstance(module.get_submodule(name.rpartition(".")[0]), Metric)


def _kept(module: nn.Module) -> dict[str, Any]:
    """All attributes of a module and its layers except parameters, buffers and layers, as values that can be compared."""
    return {
        f"{name}.{key}".removeprefix("."): _token(value, set())
        for name, layer in module.named_modules()
        for key, value in vars(layer).items()
        if key not in ("_parameters", "_buffers", "_modules")
    }


def _token(value: Any, seen: set[int]) -> Any:
    """A value that changes when the given value changes: its content, or the identity of an object without content."""
    if value is None or isinstance(value, bool | int | float | str | bytes):
        return repr(value)
    if isinstance(value, Tensor | np.ndarray):
        return digest(value)
    if id(value) in seen or isinstance(value, type | nn.Module):
        return id(value)
    seen.add(id(value))
    if isinstance(value, Mapping):
        return [(repr(key), _token(part, seen)) for key, part in value.items()]
    if isinstance(value, list | tuple):
        return [_token(part, seen) for part in value]
    return id(value), [(key, _token(part, seen)) for key, part in getattr(value, "__dict__", {}).items()]
