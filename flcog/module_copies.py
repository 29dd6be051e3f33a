"""Lets the copies of a module follow the attributes that a hook changes."""

import copy
from collections import deque
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, cast
from weakref import WeakKeyDictionary, WeakSet

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree
from torchmetrics import Metric, MetricCollection

IGNORED = frozenset(("_parameters", "_buffers", "_modules", "_trainer", "_fabric", "log", "log_dict"))
"""Entries of a layer that belong to each copy alone."""

MANY = 1000
"""The most parts of a list or an object that are compared. A change within a larger one is not seen; a new one is."""

LARGE = 2**20
"""The most bytes of a NumPy array whose contents are compared."""

QUICK = frozenset((type(None), bool, int, float, str))
"""Types of most entries of torch's layers."""

PLAIN = (int, float, complex, str, bytes, tuple)
"""Types whose values are compared by equality."""

UNTOUCHED = "untouched"
"""Marks a metric until a hook resets it."""

Entry = tuple[str, str]
"""The path of a layer, and the name of its attribute, its layer or its buffer."""

Parts = list[tuple[Any, Any]]
"""The parts of a value, each with the number of its changes."""


class ModuleCopies:
    """The copies of a module: one for evaluations, and two for each thread.

    Args:
        module: the module.
        state: the names of buffers that have other values in each copy.
        temporary: the names of buffers whose values only evaluations take from here; clients get them in each round.
    """

    def __init__(self, module: nn.Module, state: Collection[str], temporary: Collection[str]) -> None:
        self._module, self._state, self._temporary = module, state, temporary
        self.training, self._frozen = WeakSet[nn.Module](), WeakSet[nn.Module]()
        self.version = 0
        """Counts the hooks that changed an attribute, for compiled programs, which contain the attributes' values."""
        self.changed = ""
        """The first attribute that the last of these hooks changed."""
        self._agreed = WeakKeyDictionary({module: _attributes(module)})
        """The attributes of the module, and of each copy that trains, when they last equalled those of the copy for evaluations."""

    def add(self, training: nn.Module | None, frozen: nn.Module) -> None:
        """Add copies.

        Args:
            training: trains a thread's clients.
            frozen: is in evaluation mode.
        """
        self._frozen.add(frozen)
        if training is not None:
            self.training.add(training)
            self._agreed[training] = _attributes(training)
            _follow(self._module, training, {(path, "training"): [] for path, _ in _layers(training)}, self._temporary, True)

    @contextmanager
    def follow(self) -> Iterator[None]:
        """Give the copies all attributes that change within the context, and reset metrics of evaluations with the module's own."""
        before = self._entries()
        with self._following_resets():
            yield
        if changed := _changed(before, self._entries()):
            if attributes := [name for entry in changed if (name := _name(*entry)) not in self._temporary]:
                self.version, self.changed = self.version + 1, attributes[0]
            for target in self.training:
                _follow(self._module, target, changed, self._temporary, True)
            for target in self._frozen:
                _follow(self._module, target, changed, self._temporary, False)
            self._agree(changed)

    def _agree(self, changed: Collection[Entry]) -> None:
        for target, agreed in self._agreed.items():
            now = _attributes(target)
            agreed.update({entry: now.get(entry, []) for entry in changed if not entry[0]})

    def _still(self, target: nn.Module, changed: Mapping[Entry, Parts]) -> dict[Entry, Parts]:
        """Those of the changed entries that training has not set in the module or a copy of it."""
        now, agreed = _attributes(target), self._agreed[target]
        return {entry: parts for entry, parts in changed.items() if _same(now.get(entry, []), agreed.get(entry, []))}

    @contextmanager
    def hand_back(self, evaluated: nn.Module, fitting: bool, own: bool) -> Iterator[None]:
        """Give the module the attributes that its hooks and steps set on its copy for evaluations within the context.

        In a fit these are attributes of the module itself that training has not set meanwhile, and copies that train get them, too. Outside
        a fit metrics have the values that the evaluation gave them and did not log.

        Args:
            evaluated: the copy.
            fitting: whether the evaluation is part of a fit.
            own: whether the step evaluates its own kind of set. What ``validation_step`` sets on the test set of a fit is forgotten.
        """
        before = _attributes(evaluated, deep=not fitting)
        yield
        paths = {path for path, _ in before}
        changed = {
            entry: parts for entry, parts in _changed(before, _attributes(evaluated, not fitting)).items() if entry[0] in paths
        }
        if not fitting:
            _follow(evaluated, self._module, changed, trains=True)
            _give_metrics(evaluated, self._module)
            return
        if not own:
            _follow(self._module, evaluated, self._still(self._module, changed))
            return
        for target, agreed in self._agreed.items():
            _follow(evaluated, target, given := self._still(target, changed), trains=True)
            now = _attributes(target)
            agreed.update({entry: now.get(entry, []) for entry in given})

    @contextmanager
    def _following_resets(self) -> Iterator[None]:
        """Reset a metric of the copies for evaluations, which has values of its own, where a hook resets the module's."""
        metrics: list[tuple[str, Any]] = [pair for pair in self._module.named_modules() if isinstance(pair[1], Metric)]
        before = [metric._forward_cache for _, metric in metrics]
        for _, metric in metrics:
            metric._forward_cache = UNTOUCHED
        try:
            yield
        finally:
            for (path, metric), value in zip(metrics, before, strict=True):
                if metric._forward_cache is None:
                    for target in self._frozen:
                        cast(Metric, target.get_submodule(path)).reset()
                elif metric._forward_cache is UNTOUCHED:
                    metric._forward_cache = value

    def _entries(self) -> dict[Entry, Parts]:
        return {
            (path, key): _parts(value)
            for path, layer in _layers(self._module)
            for kind in _stores(layer)
            for key, value in kind.items()
            if key not in IGNORED and not (kind is layer._buffers and _name(path, key) in self._state)
        }


def _attributes(module: nn.Module, deep: bool = False) -> dict[Entry, Parts]:
    """The attributes of a module, and of its layers if ``deep``."""
    return {
        (path, key): _parts(value)
        for path, layer in (_layers(module) if deep else [("", module)])
        for key, value in vars(layer).items()
        if key not in IGNORED and key != "training"
    }


def _changed(before: Mapping[Entry, Parts], after: Mapping[Entry, Parts]) -> dict[Entry, Parts]:
    """The entries that are new, changed or missing."""
    changed = {entry: parts for entry, parts in after.items() if entry not in before or not _same(parts, before[entry])}
    return changed | {entry: [] for entry in before if entry not in after}


def _follow(
    module: nn.Module, target: nn.Module, changed: Mapping[Entry, Parts], temporary: Collection[str] = (), trains: bool = False
) -> None:
    """Copy the changed entries of a module to a copy of it.

    Args:
        module, target: the module and the copy.
        changed: the entries.
        temporary: the names of buffers whose values only copies for evaluations take.
        trains: whether the copy trains.
    """
    memo, layers = _counterparts(module, target, changed), dict(module.named_modules())
    for (path, key), parts in changed.items():
        is_temporary = _name(path, key) in temporary
        if (is_temporary if trains else key == "training") or path not in layers:
            continue
        # Tensors are shared, without the graph of an earlier training.
        tensors = [part for part, _ in parts if isinstance(part, Tensor) and id(part) not in memo]
        memo |= {id(tensor): tensor.detach() if tensor.requires_grad else tensor for tensor in tensors}
        for source, store in zip(_stores(layers[path]), _stores(target.get_submodule(path)), strict=True):
            if key not in source:
                store.pop(key, None)
                continue
            store[key] = source[key].detach().clone() if is_temporary else _copied(source[key], memo)
            if isinstance(store[key], nn.Module) and not trains:
                store[key].eval().requires_grad_(False)


def _give_metrics(module: nn.Module, target: nn.Module) -> None:
    """Give the metrics of a copy the values that the module's have, unless these have been reset."""
    for path, metric in module.named_modules():
        if isinstance(metric, Metric) and metric._update_count:
            names = (*metric._defaults, "_update_count", "_computed")
            values = {name: pytree.tree_map_only(Tensor, torch.clone, vars(metric)[name]) for name in names}
            vars(target.get_submodule(path)).update(values)


def _name(path: str, key: str) -> str:
    return f"{path}.{key}".removeprefix(".")


def _layers(module: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """The layers with their paths, except metrics, whose states differ between copies."""
    passed = "\0"
    for path, layer in module.named_modules():
        if isinstance(layer, Metric | MetricCollection):
            passed = f"{path}."
        elif not path.startswith(passed):
            yield path, layer


def _stores(layer: nn.Module) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any]]:
    return vars(layer), layer._modules, layer._buffers


def _parts(value: Any) -> Parts:
    """A value's parts, which are compared by identity, or by equality if they are plain."""
    if type(value) in QUICK:
        return [(value, None)]
    if isinstance(value, dict | set) and not value:
        return [(type(value), 0)]
    found: Parts = []
    waiting, seen = deque([value]), set[int]()
    while waiting and len(found) < MANY:
        part = waiting.popleft()
        if isinstance(part, Tensor):
            found.append((part, None if part.is_inference() else part._version))
        elif isinstance(part, np.ndarray) and part.nbytes <= LARGE and part.dtype != object:
            found.append(((part.shape, part.dtype.str, part.tobytes()), None))
        elif isinstance(part, Mapping | list | tuple | set | deque):
            found.append((type(part), len(part)))
            if id(part) not in seen:
                waiting.extend(list(part.items()) if isinstance(part, Mapping) else part)
            seen.add(id(part))
        else:
            found.append((part, None))
            if id(part) not in seen and not isinstance(part, nn.Module | type) and not callable(part):
                waiting.extend([getattr(part, "__dict__", ())])
            seen.add(id(part))
    return found


def _same(now: Parts, before: Parts) -> bool:
    return len(now) == len(before) and all(
        count == counted and (part is other or (type(part) is type(other) and isinstance(part, PLAIN) and part == other))
        for (part, count), (other, counted) in zip(now, before, strict=True)
    )


def _counterparts(module: nn.Module, target: nn.Module, changed: Collection[Entry]) -> dict[int, Any]:
    """The layers, parameters and buffers of a copy by the identity of the module's own, except changed ones and what they contain."""
    found: dict[int, Any] = {}
    layers = dict(module.named_modules())
    new = {_name(path, key) for path, key in changed if path in layers and key not in vars(layers[path])}
    for kind in ("named_modules", "named_parameters", "named_buffers"):
        theirs = dict(getattr(target, kind)())
        for name, each in getattr(module, kind)():
            if name in theirs and not any(name == other or name.startswith(f"{other}.") for other in new):
                found[id(each)] = theirs[name]
    return found


def _copied(value: Any, memo: dict[int, Any]) -> Any:
    """A deep copy that refers to a copy's layers. An object that cannot be copied, such as an open file, is shared."""
    try:
        return copy.deepcopy(value, memo)
    except Exception:
        return value
