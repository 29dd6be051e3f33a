"""Tries two clients before round 1: does a step depend on its parameters, buffers, batch and torch's random numbers alone?"""

import pickle
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from types import CellType, FunctionType
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from flcog.client.executor import Assignment, Choice, Result
from flcog.client.program import Program
from flcog.client.work import ClientWork, batches
from flcog.core.global_streams import draws_from, kept_streams, moved, streams
from flcog.core.text import first_line
from flcog.core.types import Params
from flcog.execute.job import Job
from flcog.execute.one_client import Learner, OneClient
from flcog.execute.placements import make_placement
from flcog.functional.apply import Apply
from flcog.functional.model_function import ModelFunction
from flcog.functional.own_steps import LOGGED
from flcog.method import GlobalModel, Gradient, Notes, Optimisation

STEPS = 2
"""The local steps of each client."""

ROUNDING = 100.0
"""Results are different if they differ by more than this multiple of the effect of a change of the weights in their last digit."""


class Findings(NamedTuple):
    """What the probe has found.

    ``fault`` says why the clients cannot train in the placement, and is empty if they can. ``mixes``: whether a row's result depends on
    other rows, so that padding would change it. ``draws`` are the libraries from whose global streams a step draws, and ``logs`` the
    columns of the values that it logs.
    """

    fault: str = ""
    mixes: bool = False
    draws: tuple[str, ...] = ()
    logs: tuple[str, ...] = ()


def probe(job: Job, choice: Choice) -> Findings:
    """Train two clients for two steps, each alone and both in a placement, on copies of the module with other weights."""
    with kept_streams(job.device):
        try:
            return _Probe(job, choice).findings()
        except _Fault as fault:
            return Findings(str(fault))


class _Fault(Exception):
    """The reason why the clients cannot train in the placement."""


class _Probe:
    def __init__(self, job: Job, choice: Choice) -> None:
        self._job, self._choice, self._draws = job, choice, SameDraws()
        self._owns_step = job.model.trains_itself
        self._name = f"{type(job.model.module).__name__}.training_step" if self._owns_step else "the model"

    def findings(self) -> Findings:
        model, optimizer = self._copy()
        works = self._works(equal=True)
        alone = [self._alone(*self._copy(), work) for work in works]
        unused = ""
        with suppress(Exception):  # a loss that cannot be computed outside a client's training
            unused = self._unused(model, optimizer, works[0]) if self._owns_step else ""
        if unused:
            raise _Fault(f"{self._name} leaves out {unused}, which weight decay would change")
        draws = tuple(self._draws.libraries)
        found = Findings(draws=draws, logs=tuple(k.removeprefix(LOGGED) for k in alone[0] if k.startswith(LOGGED)))
        if self._choice.name == "loop":
            return found  # clients on threads share nothing but the streams
        if others := [library for library in draws if library != "torch"]:
            raise _Fault(f"{self._name} {draws_from(others)}")
        scale = self._rounding(alone[0], self._alone(model, optimizer, works[0], moved=True))
        if not model.feels_padding:
            unequal = self._works(equal=False)
            if self._distance([self._alone(*self._copy(), work) for work in unequal], unequal) <= scale:
                return found
            found = found._replace(mixes=True)
        if (distance := self._distance(alone, works)) > scale:
            raise _Fault(f"two clients side by side differ by {distance:.1g} from each of them alone, rounding by {scale:.1g}")
        return found

    def _copy(self) -> tuple[ModelFunction, torch.optim.Optimizer]:
        """A copy of the module and of its optimiser. Client modules share their frozen weights, which may be large."""
        model = self._job.model
        try:
            module, optimizer = model.copy_of((model.module, self._job.client.optimizer), with_constants=self._owns_step)
        except Exception as error:
            raise _Fault(f"{type(model.module).__name__} cannot be copied ({first_line(error)})") from error
        return model.on_copy(module), optimizer

    def _works(self, equal: bool) -> list[ClientWork]:
        """Two clients with two steps each, of two or three samples."""
        partition = self._job.reader.federation.partition
        clients = [*np.argsort(-partition.sizes, kind="stable")[:2], 0][:2]
        rows = (2, 2) if equal else (2, 3)
        keyed = self._job.reader.federation.needs_keys
        return [_work(int(k), partition.client(int(k)), count, keyed) for k, count in zip(clients, rows, strict=True)]

    def _assignment(self, model: ModelFunction, works: Sequence[ClientWork], moved: bool = False) -> Assignment:
        params = {name: _moved(value.detach(), self._eps(value) if moved else 0.0) for name, value in model.params.items()}
        received = GlobalModel(params, {name: model.buffers[name].clone() for name in model.shared_buffers})
        rates = [group["lr"] for group in self._job.client.optimizer.param_groups]
        program = Program(model, [], [], received, Optimisation(rates[0], 0.0, 0.0))
        return Assignment(program, works, self._job.reader, rates, 0, 0)

    def _alone(self, model: ModelFunction, optimizer: torch.optim.Optimizer, work: ClientWork, moved: bool = False) -> Params:
        """The results of one client in plain torch. Refuses a step that changes more than parameters and buffers."""
        kept, states = {name: value.clone() for name, value in model.constants.items()}, list[dict[str, Any]]()
        try:
            with self._draws:
                client = _Watched(Learner(model, optimizer), states, self._draws.libraries)
                result = client.train(self._assignment(model, [work], moved), [work])
        except Exception as error:
            raise _Fault(f"{self._name} fails in a plain torch loop ({first_line(error)})") from error
        first, last = states[0], states[-1]
        changed = [name for name, value in kept.items() if not torch.equal(value, model.constants[name])]
        changed += sorted(name for name in last if last[name] != first.get(name))
        if changed:
            raise _Fault(f"{self._name} keeps something between steps (self.{changed[0]})")
        return _results(result, model)[0]

    def _distance(self, alone: Sequence[Params], works: Sequence[ClientWork]) -> float:
        """The largest difference between the clients side by side and each of them alone."""
        model, optimizer = self._copy()
        client = self._job.client._replace(function=model, optimizer=optimizer)
        job, assignment = replace(self._job, client=client, compile=False), self._assignment(model, works)
        placement = make_placement(job, self._choice._replace(compiled=False), Notes())
        try:
            with self._draws:
                found = [(result.works, _results(result, model)) for result in placement.run(assignment)]
        except Exception as error:
            raise _Fault(f"{self._name} fails in a placement with several clients ({first_line(error)})") from error
        together = {id(work): own for some, results in found for work, own in zip(some, results, strict=True)}
        return max(_difference(one, together[id(work)]) for one, work in zip(alone, works, strict=True))

    def _rounding(self, one: Params, other: Params) -> float:
        """The largest difference that rounding explains."""
        params = self._job.model.params.values()
        size = max(float(value.detach().abs().max()) * self._eps(value) for value in params if value.numel())
        return ROUNDING * (_difference(one, other) + size)

    def _eps(self, weight: Tensor) -> float:
        """The last digit of the numbers with which the model computes, relative to them."""
        kind = weight.device.type
        with self._job.model.autocast():
            dtype = torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else weight.dtype
        return torch.finfo(dtype).eps

    def _unused(self, model: ModelFunction, optimizer: torch.optim.Optimizer, work: ClientWork) -> str:
        """A parameter with weight decay on which the loss does not depend; empty if there is none."""
        decayed = {id(p) for group in optimizer.param_groups if group.get("weight_decay") for p in group["params"]}
        named = {name: value for name, value in model.params.items() if id(value) in decayed}
        if not named:
            return ""
        buffers = {name: value.clone() for name, value in model.buffers.items()}
        loss = Apply(model, buffers).loss(model.params, next(iter(batches(work, self._job.reader))))
        gradients = torch.autograd.grad(loss, list(named.values()), allow_unused=True)
        return next((name for name, value in zip(named, gradients, strict=True) if value is None), "")


def _work(client: int, own: np.ndarray, rows: int, keyed: bool) -> ClientWork:
    order = np.resize(own, STEPS * rows)
    keys = np.arange(len(order), dtype=np.uint64) + np.uint64(client << 32) if keyed else None  # no two samples have the same key
    return ClientWork(client, len(own), STEPS, 1.0, own, order, np.arange(STEPS) * rows, np.full(STEPS, rows), keys)


def _moved(weight: Tensor, share: float) -> Tensor:
    """The weights with small numbers of both signs added, so that a gate which begins at 0 is open, and a share of themselves."""
    steps = torch.arange(weight.numel(), device=weight.device, dtype=torch.float32).cos()
    return (weight + 0.1 * steps.view(weight.shape).to(weight.dtype)) * (1 + share)


def _results(result: Result, model: ModelFunction) -> list[Params]:
    """What each client has computed, by name. Dropout's keys are no results."""
    parts = {f"change of {name}": value for name, value in result.envelope.delta.items()}
    parts |= {f"buffer {name}": value for name, value in result.envelope.buffers.items()} | dict(result.envelope.measured)
    return [{name: value[place].detach().cpu().clone() for name, value in parts.items()} for place in range(len(result.works))]


def _difference(one: Params, other: Params) -> float:
    """The largest difference; infinite if results are missing, or if whole numbers differ."""
    if one.keys() != other.keys():
        return float("inf")
    found = [0.0]
    for name, value in one.items():
        if not value.is_floating_point():
            found.append(0.0 if torch.equal(value, other[name]) else float("inf"))
        elif value.numel():
            both_nan = value.isnan() & other[name].isnan()
            gap = (value.double() - other[name].double()).abs().masked_fill(both_nan, 0.0)
            found.append(float(gap.nan_to_num(float("inf")).amax()))
    return max(found)


def attributes(module: nn.Module) -> dict[str, Any]:
    """All attributes of a module and its layers except parameters, buffers and layers, as values that can be compared.

    They include the variables of functions that it holds: a hook may keep what it sees in the function that has registered it.
    """
    own = ("_parameters", "_buffers", "_modules", "_trainer", "log", "log_dict")
    return {
        f"{path}.{key}".removeprefix("."): _token(value, set())
        for path, layer in module.named_modules()
        for key, value in vars(layer).items()
        if key not in own
    }


def _token(value: Any, seen: set[int]) -> Any:
    """A value that changes when the given value changes."""
    if value is None or isinstance(value, bool | int | float | str | bytes):
        return value
    if isinstance(value, FunctionType) and value.__closure__ and id(value) not in seen:
        seen.add(id(value))
        return [_token(cell.cell_contents, seen) for cell in value.__closure__ if cell != CellType()]
    if isinstance(value, nn.Parameter | nn.Module | type) or callable(value) or id(value) in seen:
        return id(value)
    seen.add(id(value))
    if isinstance(value, Tensor):
        return id(value), value._version
    if isinstance(value, Mapping):
        return [(repr(key), _token(part, seen)) for key, part in value.items()]
    if isinstance(value, Sequence | set):
        return [_token(part, seen) for part in value]
    if not hasattr(value, "__dict__"):  # arrays, iterators, and generators of random numbers
        with suppress(Exception):
            return pickle.dumps(value)
    return id(value), [(key, _token(part, seen)) for key, part in getattr(value, "__dict__", {}).items()]


class _Watched(OneClient):
    """Keeps the attributes of the module after each step, and the libraries from whose global streams a step draws."""

    def __init__(self, learner: Learner, states: list[dict[str, Any]], libraries: dict[str, None]) -> None:
        super().__init__(learner)
        self._states, self._libraries = states, libraries

    def _gradient(self, *arguments: Any) -> Gradient:
        device = next(iter(self.model.params.values())).device
        before = streams(device)
        gradient = super()._gradient(*arguments)
        self._libraries.update(dict.fromkeys(moved(before, device)))
        self._states.append(attributes(self.model.module))
        return gradient


class SameDraws(TorchFunctionMode):
    """Inside, random numbers are functions of their place in a tensor, so that all placements draw the same."""

    def __init__(self) -> None:
        super().__init__()
        self.libraries = dict[str, None]()
        """The libraries that have drawn."""

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        named = kwargs or {}
        draw = _DRAWS.get(function) if named.get("generator") is None else None  # an own generator is state of the module
        drawn = NotImplemented if draw is None else draw(*args, **named)
        if drawn is NotImplemented:
            return function(*args, **named)
        self.libraries["torch"] = None
        return drawn


def _uniform(like: Tensor) -> Tensor:
    """Numbers between 0 and 1 for the places of a tensor."""
    places = torch.arange(like.numel(), device=like.device, dtype=torch.float32).view(like.shape)
    return (places * 0.61803398875 + 0.3).frac().to(like.dtype if like.is_floating_point() else torch.get_default_dtype())


def _normal(like: Tensor) -> Tensor:
    return (_uniform(like) - 0.5) * 12**0.5


def _dropout(input: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> Any:
    """At a rate of 0 or 1 dropout draws nothing."""
    return input * (_uniform(input) >= p) / (1 - p) if training and 0 < p < 1 else NotImplemented


def _made(draw: Callable[[Tensor], Tensor]) -> Callable[..., Tensor]:
    """A draw whose arguments are a shape."""
    return lambda *size, generator=None, **named: draw(torch.empty(*size, **named))


def _like(draw: Callable[[Tensor], Tensor]) -> Callable[..., Tensor]:
    return lambda input, **named: draw(torch.empty_like(input, **named))


def _whole(low: int, high: Any = None, size: Any = None, **named: Any) -> Tensor:
    if not isinstance(high, int):
        low, high, size = 0, low, size or high
    return (low + _uniform(torch.empty(size)) * (high - low)).long().to(named.get("device"))


_DRAWS: Mapping[Any, Callable[..., Any]] = {
    **dict.fromkeys(
        (functional.dropout, functional.dropout1d, functional.dropout2d, functional.dropout3d, functional.alpha_dropout), _dropout
    ),
    torch.dropout: lambda input, p, train: _dropout(input, p, train),
    torch.rand: _made(_uniform),
    torch.randn: _made(_normal),
    torch.rand_like: _like(_uniform),
    torch.randn_like: _like(_normal),
    torch.randint: _whole,
    torch.randperm: lambda n, **named: torch.arange(n, device=named.get("device")).flip(0),
    torch.bernoulli: lambda input, *others, **named: (_uniform(input) < input).to(input.dtype),
    torch.normal: lambda mean, std=1.0, *others, **named: mean + std * _normal(mean if isinstance(mean, Tensor) else std),
    Tensor.uniform_: lambda self, low=0.0, high=1.0, **named: self.copy_(low + (high - low) * _uniform(self)),
    Tensor.normal_: lambda self, mean=0.0, std=1.0, **named: self.copy_(mean + std * _normal(self)),
    Tensor.bernoulli_: lambda self, p=0.5, **named: self.copy_(_uniform(self) < p),
}
"""The functions of torch that draw, and their replacements. Others draw as they do, so that clients may seem to differ."""
