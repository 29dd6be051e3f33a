"""Uploads that the server keeps until the last has arrived, for methods that compare them."""

import copy
import warnings
from collections.abc import Mapping, Sequence
from functools import partial, reduce
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from flcog.core.precision import float64_device, number_dtype, weighted_sum
from flcog.core.processes import Processes
from flcog.core.types import Slot
from flcog.method import Attack, Cohort, Method, Note, UploadAggregator, UploadChange, UploadMatrix, method_of


class Columns(NamedTuple):
    """The place of a tensor in a row.

    Whole numbers, whose ``size`` is None, are kept beside the matrix, where ``start`` is their position. ``dtype`` is that of the mean.
    """

    shape: tuple[int, ...]
    dtype: torch.dtype
    start: int
    size: int | None


class KeptUploads:
    """The uploads of a round as the rows of a matrix, and the methods that change and combine them."""

    def __init__(self, methods: Sequence[Method], device: torch.device) -> None:
        self.changes, self.rule = upload_methods(methods)
        self.home, self._device = float64_device(device), device
        self._places: list[Columns] = []
        self._spec: Any = None
        self._parts: list[tuple[Sequence[int], Tensor, list[Tensor]]] = []

    def add(self, clients: Sequence[int], values: Mapping[str, Any]) -> None:
        """Keep some clients' values, whose tensors have a leading client axis."""
        leaves, spec = pytree.tree_flatten(dict(values))
        if self._spec is None:
            self._spec, self._places = spec, _places(leaves)
        dtype = reduce(torch.promote_types, (leaf.dtype for leaf in leaves if leaf.is_floating_point()), number_dtype())
        rows = torch.empty(len(clients), _width(self._places), dtype=dtype, device=self.home)
        whole: dict[int, Tensor] = {}
        for leaf, place in zip(leaves, self._places, strict=True):
            if place.size is None:
                whole[place.start] = leaf.to(self.home)
            else:
                rows[:, place.start : place.start + place.size] = leaf.reshape(len(clients), place.size)
        self._parts.append((clients, rows, list(whole.values())))

    def gather(self, processes: Processes) -> None:
        """Exchange the uploads of all processes."""
        gathered = processes.gather((self._spec, self._places, self._parts))
        self._spec, self._places = next(((spec, places) for spec, places, _ in gathered if spec is not None), (None, []))
        self._parts = [part for *_, parts in gathered for part in parts]

    def combine(self, servers: Mapping[str, Slot], cohort: Cohort) -> tuple[dict[str, Any], dict[str, Slot]] | None:
        """The combined values in the shape of one client's, and the methods' new states; None if the rule lacks uploads."""
        uploads, whole = self._rows(cohort)
        lacking = _lacking(self.changes, self.rule, len(uploads.values))
        if lacking is not None:
            warnings.warn(f"round {cohort.round + 1}: {lacking}; the model stays as it was", stacklevel=2)
            return None
        equal = torch.full_like(uploads.weights, 1 / len(uploads.weights))
        for_sums = self._for_sums(uploads, equal, servers, cohort)
        uploads, vector, new = self._combined(uploads, self.changes, servers, cohort)
        combined = self._tree(vector, whole, cohort.weights.to(self.home))
        sums = self._tree(vector if for_sums is None else for_sums, whole, equal)
        total = pytree.tree_map(lambda value: len(cohort.clients) * value, sums["sum"])
        return combined | {"sum": total}, new

    def _for_sums(self, uploads: UploadMatrix, equal: Tensor, servers: Mapping[str, Slot], cohort: Cohort) -> Tensor | None:
        """The vector in which all clients count equally, for the messages that methods need as sums; None if it is no other vector.

        Methods and the rule may change the uploads and their states in place, so that they get copies.
        """
        sums = pytree.tree_leaves(pytree.tree_unflatten(self._places, self._spec)["sum"])
        if not sums or torch.allclose(uploads.weights, equal, rtol=1e-12, atol=0):
            return None
        copied = uploads._replace(values=uploads.values.clone(), weights=equal)
        states = {method.name: copy.deepcopy(servers[method.name]) for method in (*self.changes, self.rule) if method is not None}
        return self._combined(copied, self.changes, states, cohort)[1]

    def _combined(
        self, uploads: UploadMatrix, changes: Sequence[UploadChange], servers: Mapping[str, Slot], cohort: Cohort
    ) -> tuple[UploadMatrix, Tensor, dict[str, Slot]]:
        """The uploads after some changes, the vector that the rule makes of them, and the methods' new states."""
        new: dict[str, Slot] = {}

        def combine(later: Sequence[UploadChange], others: UploadMatrix) -> Tensor:
            return self._combined(others, later, servers, cohort)[1]

        for i, method in enumerate(changes):
            rest = partial(combine, changes[i + 1 :])
            uploads, new[method.name] = method.change(uploads, servers[method.name], cohort, rest)
        if self.rule is None:
            return uploads, uploads.mean(), new
        vector, new[self.rule.name] = self.rule.combine(uploads, servers[self.rule.name])
        return uploads, vector, new

    def _rows(self, cohort: Cohort) -> tuple[UploadMatrix, list[Tensor]]:
        """The matrix and the whole numbers in the order of the cohort. The parts are freed on the way."""
        rows = {client: i for i, client in enumerate(cohort.clients)}
        _, first, whole_numbers = self._parts[0]
        matrix = torch.empty(len(rows), first.shape[1], dtype=first.dtype, device=self.home)
        whole = [torch.empty(len(rows), *value.shape[1:], dtype=value.dtype, device=self.home) for value in whole_numbers]
        while self._parts:
            clients, values, numbers = self._parts.pop()
            places = torch.tensor([rows[client] for client in clients], device=self.home)
            for total, part in zip([matrix, *whole], [values, *numbers], strict=True):
                total[places] = part
        delta = pytree.tree_unflatten(self._places, self._spec)["delta"]
        return UploadMatrix(matrix, cohort.weights.to(self.home), cohort.clients, _width([*delta.values()])), whole

    def _tree(self, vector: Tensor, whole: Sequence[Tensor], weights: Tensor) -> dict[str, Any]:
        """A vector in the shape of one client's values."""

        def value(place: Columns) -> Tensor:
            if place.size is not None:
                found = vector[place.start : place.start + place.size]
            elif self.rule is None:
                found = weighted_sum(weights, whole[place.start].double())
            else:
                found = whole[place.start].double().quantile(0.5, dim=0)
            return found.view(place.shape).to(place.dtype).to(self._device)

        tree: dict[str, Any] = pytree.tree_unflatten([value(place) for place in self._places], self._spec)
        return tree


def upload_methods(methods: Sequence[Method]) -> tuple[list[UploadChange], UploadAggregator | None]:
    """The methods that change uploads, in the order of their actions, and the rule that combines the uploads."""
    changes = [method for method in methods if isinstance(method, UploadChange)]
    rule = method_of(methods, UploadAggregator)
    return sorted(changes, key=lambda method: not isinstance(method, Attack)), rule


def check_uploads(methods: Sequence[Method], count: int, num_numbers: int) -> Note | None:
    """Refuse a rule that needs larger cohorts than the expected ``count``, and note the memory that its rounds take."""
    changes, rule = upload_methods(methods)
    lacking = _lacking(changes, rule, count)
    if lacking is not None:
        raise ValueError(f"{lacking}, because a round has {count} clients: lower f, or raise trainer.clients_per_round")
    if rule is None:
        return None
    megabytes = 2 * count * num_numbers * number_dtype().itemsize / 1e6
    return Note(
        "memory",
        f"{rule.name} keeps {count} uploads until the last has arrived, in {megabytes:.3g} MB; messages of methods add to it",
    )


def _lacking(changes: Sequence[UploadChange], rule: UploadAggregator | None, count: int) -> str | None:
    """The first method that gets too few of ``count`` uploads."""
    after = ""
    acting: list[UploadChange | UploadAggregator] = [*changes, *([rule] if rule else [])]
    for method in acting:
        if count < method.least:
            return f"{method.name} needs at least {method.least} uploads and gets {count}{after}"
        if isinstance(method, UploadChange) and method.rows_left(count) < count:
            count, after = method.rows_left(count), f" from {method.name}"
    return None


def _places(leaves: Sequence[Tensor]) -> list[Columns]:
    """The places of one client's tensors. A tensor that appears twice has one place."""
    known: dict[int, Columns] = {}
    width = whole = 0
    for leaf in leaves:
        shape = tuple(leaf.shape[1:])
        if id(leaf) in known:
            continue
        if leaf.is_floating_point():
            size = leaf[0].numel()
            known[id(leaf)] = Columns(shape, torch.promote_types(leaf.dtype, torch.get_default_dtype()), width, size)
            width += size
        else:
            known[id(leaf)] = Columns(shape, number_dtype(), whole, None)
            whole += 1
    return [known[id(leaf)] for leaf in leaves]


def _width(places: Sequence[Columns]) -> int:
    return max((place.start + place.size for place in places if place.size is not None), default=0)
