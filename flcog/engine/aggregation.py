"""Aggregation: weighted means and sums of what clients send, added up as their results arrive."""

from collections.abc import Sequence
from typing import Any, Literal, NamedTuple, cast

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from flcog.core.precision import float64_device, number_dtype
from flcog.core.processes import Processes
from flcog.core.types import Params, Slot
from flcog.engine.executors.base import Result
from flcog.method import ClientUpload, Method


class BadUpdate(ValueError):
    """Something that a client sends or keeps is NaN or infinite, or the model that the server makes of it."""


class Sums(NamedTuple):
    """What is added up over the clients of a round, each in the shape of one client's."""

    delta: Params
    buffers: Params
    means: list[Any]
    """Messages times the clients' weights, by method."""
    totals: list[Any]
    """Messages as they are, by method."""
    directions: Params
    """Changes of the model divided by their lengths."""
    weight: Tensor
    loss: Tensor
    """Task losses times the clients' weights."""
    clients: Tensor
    norm: Tensor
    """The lengths of the changes."""


class Aggregate:
    """Running sums over the clients of a round; never a list of all clients, unless a method asked for single uploads.

    Sums are kept in float64, so that their order, and hence the number of processes, shows only in the last bit of a float32. They are
    kept on the clients' device or, where that has no float64, on the CPU.

    Where a client is dropped these are not the sums of the others: its round is to be run again without it.

    Args:
        methods: whose messages are summed up.
        directions: whether to accumulate unit deltas, for the cosine between clients' updates.
        on_bad_update: "raise", or "drop" the client and say so.
        device: the clients'.
    """

    def __init__(self, methods: Sequence[Method], directions: bool, on_bad_update: str, device: torch.device) -> None:
        self.sums: Sums | None = None
        """None until a client was added."""
        self._dtypes: Sums | None = None
        self.individual: list[list[ClientUpload]] = [[] for _ in methods]
        self.slots: dict[int, list[Slot]] = {}
        """What each client will keep, by method."""
        self.dropped: list[int] = []
        self.up_bytes: list[int] = [0] * (len(methods) + 1)
        """What the clients sent: the model, then by method."""
        self.down_bytes: list[int] = [0] * len(methods)
        """What one client got beside the model, by method."""
        self.left_out = 0
        """Bytes of the model that clients neither received nor sent, all added up."""
        self._methods, self._directions, self._on_bad_update, self._device = methods, directions, on_bad_update, device

    def add(self, result: Result, global_buffers: Params, round: int) -> None:
        """Add some clients, if all that they send and keep are numbers."""
        updates = result.delta if result.delta is not None else {}
        norms = _norms(updates, len(result.works)) if updates else torch.zeros_like(result.losses)
        bad = self._bad(result, norms)
        if bad and self._on_bad_update == "raise":
            client, where = next(iter(bad.items()))
            raise BadUpdate(
                f"the update of client {client} in round {round + 1} is NaN or infinite{where}: lower the learning rate or clip "
                "gradients (`flcog methods` lists what does), or set trainer.on_bad_update=drop to go on without such clients"
            )
        self.dropped += bad
        if self.dropped:
            return
        home = float64_device(self._device)
        weights = torch.tensor([work.weight for work in result.works], dtype=torch.float64, device=home)
        terms = Sums(
            delta=updates,
            buffers={name: value - global_buffers[name] for name, value in result.buffers.items()},
            means=result.mean,
            totals=result.sum,
            directions=updates if self._directions else {},
            weight=torch.ones_like(weights),
            loss=result.losses,
            clients=torch.ones_like(weights),
            norm=norms,
        )
        terms = pytree.tree_map(lambda term: term.to(home), terms)  # numbers that methods send lie on the CPU
        self._accumulate(terms, weights, 1 / terms.norm.double().clamp(min=1e-30))
        for i, method in enumerate(self._methods):
            if method.individual_uploads:
                self.individual[i] += _individual(result, result.mean[i], result.sum[i])
        for i, count in enumerate(result.up_bytes):
            self.up_bytes[i] += count * len(result.works)
        self.left_out += int(result.left_out.sum())
        for k, work in enumerate(result.works):
            self.slots[work.client] = _of_client(result.slots, k)

    def _bad(self, result: Result, norms: Tensor) -> dict[int, str]:
        """The clients with a NaN or infinite value, each with where it stands."""
        rest = [result.losses, result.buffers, result.slots, result.mean, result.sum]
        suspects = (~(torch.isfinite(norms) & _finite_sums(rest, norms))).nonzero().flatten().tolist()
        found = {result.works[k].client: self._where(result, norms, k) for k in suspects}
        return {client: where for client, where in found.items() if where is not None}

    def _where(self, result: Result, norms: Tensor, k: int) -> str | None:
        """Where one client's first bad value stands; None if a sum of good ones was too large."""
        parts: list[tuple[str, Any]] = [("", [norms, result.losses]), (" (in the model's buffers)", result.buffers)]
        for i, method in enumerate(self._methods):
            parts.append((f" (in what {method.name} sends)", [result.mean[i], result.sum[i]]))
            parts.append((f" (in what {method.name} keeps of the client)", result.slots[i]))
        for where, tree in parts:
            if not all(torch.isfinite(value[k]).all() for value in _floats(tree)):
                return where
        return None

    def _accumulate(self, terms: Sums, weights: Tensor, per_length: Tensor) -> None:
        if self.sums is None or self._dtypes is None:
            zeros = pytree.tree_map(lambda t: torch.zeros(t.shape[1:], dtype=torch.float64, device=t.device), terms)
            self.sums, self._dtypes = zeros, pytree.tree_map(_dtype_of_mean, terms)
        factors = Sums(weights, weights, weights, None, per_length, weights, weights, None, None)  # type: ignore[arg-type]
        for total, term, factor in zip(self.sums, terms, factors, strict=True):
            _add(total, term, cast(Tensor | None, factor))

    def reduce(self, processes: Processes, cohort: Sequence[int], somebody_idle: bool) -> None:
        """Add up over the processes: all sums travel as one vector, whatever the methods.

        Args:
            processes: who adds up.
            cohort: the clients of the round.
            somebody_idle: whether some process had no client, and so does not know which sums there are.
        """
        if processes.count == 1:
            return
        if self._on_bad_update == "drop":
            bad = torch.tensor([int(client in self.dropped) for client in cohort], device=processes.device)
            self.dropped = [client for client, times in zip(cohort, processes.total(bad), strict=True) if times]
            if self.dropped:
                return
        if somebody_idle:
            self._learn_shapes(processes)
        if self.sums is None:
            return
        leaves, spec = pytree.tree_flatten(self.sums)
        vector = processes.total(torch.cat([leaf.reshape(-1) for leaf in leaves]))
        parts = vector.split([leaf.numel() for leaf in leaves])
        self.sums = pytree.tree_unflatten([p.view(leaf.shape) for p, leaf in zip(parts, leaves, strict=True)], spec)
        counts = torch.tensor([*self.up_bytes, self.left_out], dtype=torch.int64, device=processes.device)
        *self.up_bytes, self.left_out = processes.total(counts).tolist()
        if any(method.individual_uploads for method in self._methods):
            gathered = processes.gather(self.individual)
            self.individual = [[upload for part in gathered for upload in part[i]] for i in range(len(self.individual))]

    def _learn_shapes(self, processes: Processes) -> None:
        """A process without a client learns from another which sums there are, and makes them zeros."""
        shapes = None if self.sums is None else pytree.tree_map(lambda t: tuple(t.shape), self.sums)
        known = next((pair for pair in processes.gather((shapes, self._dtypes)) if pair[0] is not None), None)
        if self.sums is None and known is not None:
            leaves, spec = pytree.tree_flatten(known[0], is_leaf=_is_shape)
            zeros = [torch.zeros(shape, dtype=torch.float64, device=float64_device(self._device)) for shape in leaves]
            self.sums, self._dtypes = pytree.tree_unflatten(zeros, spec), known[1]

    @property
    def weight(self) -> float:
        """The weights of the clients that count, added up."""
        return 0.0 if self.sums is None else float(self.sums.weight)

    @property
    def sent(self) -> Sequence[str]:
        """The parameters whose changes clients sent."""
        return [] if self.sums is None else list(self.sums.delta)

    def delta(self) -> Params:
        """The weighted mean of the changes: weights are renormalised over the clients that counted."""
        return self._mean("delta")

    def buffers(self) -> Params:
        """The weighted mean of the changes of the buffers."""
        return self._mean("buffers")

    def messages(self, i: int) -> tuple[Any, Any]:
        """The weighted mean, and the sum, of what clients sent to the i-th method."""
        if self.sums is None or self._dtypes is None:
            return {}, {}
        mean = self._as_sent(self.sums.means[i], self._dtypes.means[i], self.sums.weight)
        return mean, self._as_sent(self.sums.totals[i], self._dtypes.totals[i])

    def _mean(self, field: Literal["delta", "buffers"]) -> Params:
        if self.sums is None or self._dtypes is None:
            return {}
        return self._as_sent(getattr(self.sums, field), getattr(self._dtypes, field), self.sums.weight)

    def _as_sent(self, sums: Any, dtypes: Any, divisor: Tensor | None = None) -> Any:
        """Means or sums in the precision of what clients sent: a count sent as float32 would lose digits in bfloat16."""

        def sent(total: Tensor, dtype: torch.dtype) -> Tensor:
            return (total if divisor is None else total / divisor).to(dtype).to(self._device)

        return pytree.tree_map(sent, sums, dtypes) if sums else {}

    def figures(self) -> dict[str, float]:
        """The round's own figures: training loss and drift."""
        sums = self.sums
        if sums is None:
            return {}
        clients = float(sums.clients)
        figures = {
            "train/loss": float(sums.loss / sums.weight),
            "clients/participating": clients,
            "drift/norm": float(sums.norm) / clients,
        }
        if sums.directions:
            inner = sum(float((sums.directions[name] * sums.delta[name]).sum()) for name in sums.delta)
            norm = sum(float(value.square().sum()) for value in sums.delta.values()) ** 0.5
            figures["drift/cosine"] = inner / (clients * norm) if norm else 0.0
        return figures


def _add(totals: Any, terms: Any, factors: Tensor | None) -> None:
    """Add each client's terms, times its factor, to the sums."""
    values = pytree.tree_leaves(terms)
    # Read once: an accelerator is waited for.
    alone = float(factors[0]) if factors is not None and any(len(value) == 1 for value in values) else 1.0
    for total, value in zip(pytree.tree_leaves(totals), values, strict=True):
        if len(value) == 1:
            total.add_(value[0], alpha=alone)
        elif factors is None:
            total.add_(value.sum(0, dtype=torch.float64))
        else:
            # Weights are shares: as integers they would be 0, as bfloat16 0.4% off.
            value = value.to(number_dtype(value.dtype)) if value.is_floating_point() else value.double()
            total.add_(_weighted(factors.to(value.dtype), value))


def _weighted(factors: Tensor, values: Tensor) -> Tensor:
    """The sum of values [K, ...], each times its factor [K]. Away from the CPU this is no product of matrices: GPUs may round what
    goes into one to 11 binary digits, where the user allows that for training (``torch.set_float32_matmul_precision``)."""
    if values.device.type == "cpu":
        return torch.tensordot(factors, values, 1)
    return (factors.view(-1, *[1] * (values.ndim - 1)) * values).sum(0, dtype=torch.float64)


def _is_shape(value: Any) -> bool:
    return isinstance(value, tuple) and not isinstance(value, Sums)


def _dtype_of_mean(value: Tensor) -> torch.dtype:
    """The type of a mean or sum of such values: the run's precision, or theirs if higher; for integers float32 at least."""
    return torch.promote_types(value.dtype, torch.get_default_dtype()) if value.is_floating_point() else number_dtype()


def _norms(delta: Params, num_clients: int) -> Tensor:
    if num_clients == 1:
        return torch.stack(torch._foreach_norm(list(delta.values()))).norm().unsqueeze(0)
    return torch.stack([torch.linalg.vector_norm(v.view(num_clients, -1), dim=1) for v in delta.values()]).norm(dim=0)


def _floats(tree: Any) -> list[Tensor]:
    return [value for value in pytree.tree_leaves(tree) if isinstance(value, Tensor) and value.is_floating_point()]


def _finite_sums(tree: Any, like: Tensor) -> Tensor:
    """Which clients' values are all finite, told by their sum, which else is NaN or infinite: one pass, and no temporary."""
    sums = [value.reshape(len(value), -1).sum(1).to(like) for value in _floats(tree)]
    return torch.isfinite(torch.stack(sums)).all(0)


def _of_client(tree: Any, k: int) -> Any:
    """One client's part; its own memory, so that it does not hold the others'."""
    return pytree.tree_map(lambda t: t[k].clone() if len(t) > 1 else t[k], tree)


def _individual(result: Result, mean: Any, total: Any) -> list[ClientUpload]:
    delta, buffers = result.delta or {}, result.buffers
    return [
        ClientUpload(work.client, work.weight, *(_of_client(tree, k) for tree in (delta, buffers, mean, total)))
        for k, work in enumerate(result.works)
    ]
