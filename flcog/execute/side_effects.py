"""Finds the side effects of a client's local step, which leak between clients that train side by side."""

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torchmetrics import Metric

from flcog.apply import apply_of
from flcog.core.arguments import digest
from flcog.core.global_streams import draws_from, moved, put_back
from flcog.core.trees import Tree
from flcog.core.types import Batch
from flcog.execute.frozen_writes import restored
from flcog.model_function import ModelFunction
from flcog.own_steps import among_rounds, call_step, logging_to, loss_of


@dataclass(frozen=True)
class Traces:
    """The side effects of a local step, in words; empty strings for a pure step.

    Args:
        step: the step: a module's own ``training_step``, or the model with its loss.
        fails: the step fails on a trial batch.
        keeps: the step changes attributes.
        metrics: the step updates metrics of torchmetrics; no loss depends on these.
        drawn: the libraries whose global random streams the step uses.
        logs: the columns of the values that the step logs.
    """

    step: str
    fails: str = ""
    keeps: str = ""
    metrics: str = ""
    drawn: tuple[str, ...] = ()
    logs: tuple[str, ...] = ()

    def draws(self, *libraries: str) -> str:
        """A sentence that the step draws from the global streams of some of these libraries, or an empty string."""
        sentence = draws_from([name for name in self.drawn if name in libraries])
        return f"{self.step} {sentence}" if sentence else ""

    def between_threads(self) -> str:
        """The reason why clients cannot run side by side on copies of the module, or an empty string."""
        return self.fails or self.keeps or self.draws("torch", "NumPy", "Python")

    def between_clients(self, own: bool) -> str:
        """The reason why clients cannot be one batched program, or an empty string.

        Args:
            own: whether the step is a module's own ``training_step``. A batched program gives each client draws of its own from
                torch's stream for the layers of a network.
        """
        return self.between_threads() or self.metrics if own else self.keeps or self.draws("NumPy", "Python")


def traces_of_own_step(model: ModelFunction, batch: Tree, device: torch.device) -> Traces:
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
        with model.on_trial() as stood:
            with (
                among_rounds(model.module, 0),
                model.log.of_a_step() as logged,
                logging_to(model.module, model.log.take),
                restored(model.module, model.constants) as found,
            ):
                for index in range(2):
                    result = model.training(model.params, buffers, call_step, "training_step", batch, index)
                    first = first or (result, dict(logged))
                frozen = found()
            drawn, after = moved(stood, device), _kept(model.module)
    except Exception:  # The error comes again, with its client and step, when a client trains.
        return Traces(name, fails=f"{name} fails on two copies of a training sample")
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
        name,
        keeps=f"{name} keeps something between steps (self.{kept})" if kept else "",
        metrics=f"{name} keeps metrics between steps (self.{measured})" if measured else "",
        drawn=tuple(drawn),
        logs=tuple(logged),
    )


@torch.no_grad()
def traces_of_loss(model: ModelFunction, batch: Batch, device: torch.device) -> Traces:
    """Compute the loss of a module without a ``training_step`` of its own twice on a batch, with the same random numbers.

    What the first pass stores, such as a cache, is no trace if the second pass leaves it alone and has the same loss.

    Args:
        model: the client's model.
        batch: two copies of a sample.
        device: the device of the model.
    """
    name, losses, kept = "the model", list[Tensor](), list[dict[str, Any]]()
    try:
        with model.on_trial() as stood:
            for _ in range(2):
                put_back(stood, device)
                params, buffers = ({key: value.clone() for key, value in part.items()} for part in (model.params, model.buffers))
                losses.append(apply_of(model, buffers).loss(params, batch))
                kept.append(_kept(model.module))
            drawn = moved(stood, device)
    except Exception:  # The error comes again, with its client and step, when a client trains.
        return Traces(name, fails="its loss fails on two copies of a training sample")
    changed = ", ".join(f"self.{key}" for key in kept[1] if kept[1][key] != kept[0].get(key))
    keeps = f"{name} keeps something between steps ({changed})" if changed else ""
    if not keeps and not torch.allclose(losses[0], losses[1], equal_nan=True):
        keeps = f"the loss of {name} depends on earlier steps"
    return Traces(name, keeps=keeps, drawn=tuple(drawn))


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
