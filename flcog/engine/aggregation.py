"""What the server adds up: weighted means of deltas and messages, as clients' results arrive."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from flcog.core.precision import number_dtype
from flcog.core.types import Params, Slot
from flcog.engine.executors.base import Result
from flcog.hooks import ClientUpload, Method


class BadUpdate(ValueError):
    """Something that a client sends or keeps is NaN or infinite."""


class Aggregate:
    """Running sums over the clients of a round; never a list of all clients, unless a method asked for single uploads.

    Sums are kept in float64, so that their order, and hence the number of processes, shows only in the last bit of a float32.

    Where a client is dropped these are not the sums of the others: its round is to be run again without it.

    Args:
        methods: whose messages are summed up.
        directions: whether to accumulate unit deltas, for the cosine between clients' updates.
        on_bad_update: "raise", or "drop" the client and say so.
    """

    def __init__(self, methods: Sequence[Method], directions: bool, on_bad_update: str) -> None:
        self.sums: dict[str, Any] = {}
        self._dtypes: dict[str, Any] = {}
        self.individual: list[list[ClientUpload]] = [[] for _ in methods]
        self.slots: dict[int, list[Slot]] = {}
        """What each client will keep, by method."""
        self.dropped: list[int] = []
        self.up_bytes: list[int] = [0] * (len(methods) + 1)
        """What the clients sent: the model, then by method."""
        self.down_bytes: list[int] = [0] * len(methods)
        """What one client got beside the model, by method."""
        self._methods, self._directions, self._on_bad_update = methods, directions, on_bad_update

    def add(self, result: Result, global_buffers: Params, round: int) -> None:
        """Add some clients, if all that they send and keep are numbers."""
        updates = result.delta if result.delta is not None else {}
        norms = _norms(updates, len(result.works)) if updates else torch.zeros_like(result.losses)
        bad = self._bad(result, norms)
        if bad and self._on_bad_update == "raise":
            client, where = next(iter(bad.items()))
            raise BadUpdate(
                f"the update of client {client} in round {round + 1} is NaN or infinite{where}: lower the learning rate or clip "
                "gradients (flcog.callbacks.ClipGradient), or set trainer.on_bad_update=drop to go on without such clients"
            )
        self.dropped += bad
        if self.dropped:
            return
        weights = torch.tensor([work.weight for work in result.works], dtype=torch.float64, device=norms.device)
        buffers = {name: value - global_buffers[name] for name, value in result.buffers.items()}
        self._accumulate("delta", result.delta or {}, weights)
        self._accumulate("buffers", buffers, weights)
        for i, (mean, total) in enumerate(zip(result.mean, result.sum, strict=True)):
            self._accumulate(f"mean/{i}", mean, weights)
            self._accumulate(f"sum/{i}", total, None)
            if self._methods[i].individual_uploads:
                self.individual[i] += _individual(result, mean, total)
        scalars = {"weight": torch.ones_like(weights), "loss": result.losses}
        self._accumulate("weighted", scalars, weights)
        self._accumulate("counted", {"clients": torch.ones_like(weights), "norm": norms}, None)
        if self._directions and updates:
            self._accumulate("direction", updates, 1 / norms.double().clamp(min=1e-30))
        for i, count in enumerate(result.up_bytes):
            self.up_bytes[i] += count * len(result.works)
        for k, work in enumerate(result.works):
            self.slots[work.client] = _of_client(result.slots, k)

    def _bad(self, result: Result, norms: Tensor) -> dict[int, str]:
        """The clients of whom something is no number, and where it stands."""
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

    def _accumulate(self, key: str, tree: Any, weights: Tensor | None) -> None:
        if not tree:
            self.sums.setdefault(key, {})
            return
        if key not in self.sums:
            self.sums[key] = pytree.tree_map(lambda t: torch.zeros(t.shape[1:], dtype=torch.float64, device=t.device), tree)
            self._dtypes[key] = pytree.tree_map(_dtype_of_mean, tree)
        for total, value in zip(pytree.tree_leaves(self.sums[key]), pytree.tree_leaves(tree), strict=True):
            if len(value) == 1:
                total.add_(value[0], alpha=1.0 if weights is None else float(weights[0]))
            elif weights is None:
                total.add_(value.sum(0, dtype=torch.float64))
            else:
                # Weights are shares: as integers they would be 0, as bfloat16 0.4% off.
                value = value.to(number_dtype(value.dtype)) if value.is_floating_point() else value.double()
                total.add_(torch.tensordot(weights.to(value.dtype), value, 1))

    def reduce(
        self, all_reduce: Callable[[Tensor], Tensor], agree: Callable[[Any], Any], somebody_idle: bool, device: torch.device
    ) -> None:
        """Add up over processes: one vector crosses, whatever the methods.

        Args:
            all_reduce: sums a tensor over processes.
            agree: gives every process the first one's object.
            somebody_idle: whether some process had no client, so that it must be told what the vector is made of.
            device: where sums live.
        """
        if somebody_idle:
            shapes, dtypes = agree((pytree.tree_map(lambda t: tuple(t.shape), self.sums), self._dtypes))
            if not self.sums:
                self._dtypes = dtypes
                leaves, spec = pytree.tree_flatten(shapes, is_leaf=lambda leaf: isinstance(leaf, tuple))
                self.sums = pytree.tree_unflatten([torch.zeros(s, dtype=torch.float64, device=device) for s in leaves], spec)
        leaves, spec = pytree.tree_flatten(self.sums)
        if not leaves:
            return
        vector = all_reduce(torch.cat([leaf.reshape(-1) for leaf in leaves]))
        parts = vector.split([leaf.numel() for leaf in leaves])
        self.sums = pytree.tree_unflatten([p.view(leaf.shape) for p, leaf in zip(parts, leaves, strict=True)], spec)

    def mean(self, key: str) -> Any:
        """The weighted mean of what was accumulated under ``key``: weights are renormalised over the clients that counted."""
        weight = self.sums["weighted"]["weight"]
        return self._as_sent(key, lambda total: total / weight)

    def total(self, key: str) -> Any:
        return self._as_sent(key, lambda total: total)

    def _as_sent(self, key: str, made: Callable[[Tensor], Tensor]) -> Any:
        """In the precision in which clients sent it, if not the run's: a count sent as float32 is none in bfloat16."""
        if not self.sums.get(key):
            return {}
        return pytree.tree_map(lambda total, dtype: made(total).to(dtype), self.sums[key], self._dtypes[key])

    def figures(self) -> dict[str, float]:
        """The round's own figures: training loss and drift."""
        if "weighted" not in self.sums:
            return {}
        clients = float(self.sums["counted"]["clients"])
        figures = {
            "train/loss": float(self.sums["weighted"]["loss"] / self.sums["weighted"]["weight"]),
            "clients/participating": clients,
            "drift/norm": float(self.sums["counted"]["norm"]) / clients,
        }
        if self.sums.get("direction"):
            delta, direction = self.sums["delta"], self.sums["direction"]
            inner = sum(float((direction[name] * delta[name]).sum()) for name in delta)
            norm = sum(float(value.square().sum()) for value in delta.values()) ** 0.5
            figures["drift/cosine"] = inner / (clients * norm) if norm else 0.0
        return figures


def _dtype_of_mean(value: Tensor) -> torch.dtype:
    """What a mean or sum of such values is in: the run's precision, or theirs if that is higher; integers' as numbers are."""
    return torch.promote_types(value.dtype, torch.get_default_dtype()) if value.is_floating_point() else number_dtype()


def _norms(delta: Params, num_clients: int) -> Tensor:
    if num_clients == 1:
        return torch.stack(torch._foreach_norm(list(delta.values()))).norm().unsqueeze(0)
    return torch.stack([torch.linalg.vector_norm(v.view(num_clients, -1), dim=1) for v in delta.values()]).norm(dim=0)


def _floats(tree: Any) -> list[Tensor]:
    return [value for value in pytree.tree_leaves(tree) if isinstance(value, Tensor) and value.is_floating_point()]


def _finite_sums(tree: Any, like: Tensor) -> Tensor:
    """Whose values add up to a number, as they do not where one is NaN or infinite: one pass, and no temporary."""
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
