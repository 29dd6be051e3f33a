"""What the server adds up: weighted means of deltas and messages, as clients' results arrive."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from flcog.executors import Result
from flcog.hooks import ClientUpload, Params
from flcog.work import Work


class BadUpdate(ValueError):
    """A client's update is NaN or infinite."""


class Aggregate:
    """Running sums over the clients of a round; never a list of all clients, unless a method asked for single uploads.

    Sums are kept in float64, so that their order, and hence the number of processes, shows only in the last bit of a float32.

    Args:
        num_methods: how many methods send messages.
        keep_individual: for which of them single uploads are kept.
        directions: whether to accumulate unit deltas, for the cosine between clients' updates.
        on_bad_update: "raise", or "drop" the client and say so.
    """

    def __init__(self, num_methods: int, keep_individual: Sequence[bool], directions: bool, on_bad_update: str) -> None:
        self.sums: dict[str, Any] = {}
        self.individual: list[list[ClientUpload]] = [[] for _ in range(num_methods)]
        self.kept: list[Work] = []
        self.dropped: list[int] = []
        self.up_bytes: list[int] = [0] * (num_methods + 1)
        self._keep_individual, self._directions, self._on_bad_update = keep_individual, directions, on_bad_update

    def add(self, result: Result, global_buffers: Params, round: int) -> list[int]:
        """Add some clients; returns the positions of those that count."""
        updates = result.delta if result.delta is not None else {}
        norms = _norms(updates, len(result.works)) if updates else torch.zeros_like(result.losses)
        finite = (torch.isfinite(norms) & torch.isfinite(result.losses) & _finite([result.mean, result.sum], norms)).tolist()
        good = [k for k, ok in enumerate(finite) if ok]
        if len(good) < len(result.works):
            bad = [work.client for work, ok in zip(result.works, finite, strict=True) if not ok]
            if self._on_bad_update == "raise":
                raise BadUpdate(
                    f"the update of client {bad[0]} in round {round + 1} is NaN or infinite: lower the learning rate or clip gradients "
                    "(flcog.callbacks.ClipGradient), or set trainer.on_bad_update=drop to go on without such clients"
                )
            self.dropped += bad
            if not good:
                return good
            result, norms = _select(result, good), norms[good]
        weights = torch.tensor([work.weight for work in result.works], dtype=torch.float64, device=norms.device)
        buffers = {name: value - global_buffers[name] for name, value in result.buffers.items()}
        self._accumulate("delta", result.delta or {}, weights)
        self._accumulate("buffers", buffers, weights)
        for i, (mean, total) in enumerate(zip(result.mean, result.sum, strict=True)):
            self._accumulate(f"mean/{i}", mean, weights)
            self._accumulate(f"sum/{i}", total, None)
            if self._keep_individual[i]:
                self.individual[i] += _individual(result, mean, total)
        scalars = {"weight": torch.ones_like(weights), "loss": result.losses}
        self._accumulate("weighted", scalars, weights)
        self._accumulate("counted", {"clients": torch.ones_like(weights), "norm": norms}, None)
        if self._directions and updates:
            self._accumulate("direction", updates, 1 / norms.double().clamp(min=1e-30))
        for i, count in enumerate(result.up_bytes):
            self.up_bytes[i] += count * len(result.works)
        self.kept += result.works
        return good

    def _accumulate(self, key: str, tree: Any, weights: Tensor | None) -> None:
        if not tree:
            self.sums.setdefault(key, {})
            return
        if key not in self.sums:
            self.sums[key] = pytree.tree_map(lambda t: torch.zeros(t.shape[1:], dtype=torch.float64, device=t.device), tree)
        for total, value in zip(pytree.tree_leaves(self.sums[key]), pytree.tree_leaves(tree), strict=True):
            if len(value) == 1:
                total.add_(value[0], alpha=1.0 if weights is None else float(weights[0]))
            elif weights is None:
                total.add_(value.sum(0, dtype=torch.float64))
            else:
                value = value if value.is_floating_point() else value.double()  # weights are shares: as integers they would be 0
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
            shapes = agree(pytree.tree_map(lambda t: tuple(t.shape), self.sums))
            if not self.sums:
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
        return pytree.tree_map(lambda total: (total / weight).to(torch.get_default_dtype()), self.sums.get(key, {}))

    def total(self, key: str) -> Any:
        return pytree.tree_map(lambda total: total.to(torch.get_default_dtype()), self.sums.get(key, {}))

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


def _norms(delta: Params, num_clients: int) -> Tensor:
    if num_clients == 1:
        return torch.stack(torch._foreach_norm(list(delta.values()))).norm().unsqueeze(0)
    return torch.stack([torch.linalg.vector_norm(v.view(num_clients, -1), dim=1) for v in delta.values()]).norm(dim=0)


def _finite(messages: Any, like: Tensor) -> Tensor:
    """Which clients' messages hold only numbers."""
    verdict = torch.ones_like(like, dtype=torch.bool)
    for value in pytree.tree_leaves(messages):
        if value.is_floating_point():
            # A sum is NaN or infinite if one of its terms is, and costs one pass without a temporary.
            verdict &= torch.isfinite(value.view(len(value), -1).sum(1, dtype=torch.float64))
    return verdict


def _select(result: Result, good: list[int]) -> Result:
    def pick(tree: Any) -> Any:
        return pytree.tree_map(lambda t: t[good], tree)

    return result._replace(
        works=[result.works[k] for k in good],
        delta=None if result.delta is None else pick(result.delta),
        buffers=pick(result.buffers),
        slots=[result.slots[k] for k in good],
        mean=pick(result.mean),
        sum=pick(result.sum),
        losses=result.losses[good],
    )


def _individual(result: Result, mean: Any, total: Any) -> list[ClientUpload]:
    def of(tree: Any, k: int) -> Any:
        return pytree.tree_map(lambda t: t[k].clone(), tree)

    return [
        ClientUpload(work.client, work.weight, of(result.delta or {}, k), of(result.buffers, k), of(mean, k), of(total, k))
        for k, work in enumerate(result.works)
    ]
