"""Aggregation of sealed uploads, of which the server reads only the sum over all processes' clients."""

import functools
import itertools
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from flcog.client.messages import PRIVATE, ClientReply, Download
from flcog.core.precision import float64_device
from flcog.core.processes import Processes
from flcog.core.types import Params
from flcog.method import Cohort, Envelope, Method, PrivateSum, SealedSum, method_of
from flcog.method.sealed_sum import REFUSED
from flcog.server.aggregate import Aggregate, BadUpdate, Sums, dtype_of_mean
from flcog.wire.envelope import Field


class SealedAggregate(Aggregate):
    """The sums of a round whose uploads are sealed. They are known after ``reduce``."""

    def __init__(
        self, received: Download, methods: Sequence[Method], cohort: Cohort, on_bad_update: str, device: torch.device
    ) -> None:
        rule, keys = method_of(methods, SealedSum), received.keys
        assert rule is not None and keys is not None
        super().__init__([method for method in methods if method is not rule], cohort, False, on_bad_update, device)
        self.up_bytes[rule.name] = 0
        self._sealer, self._keys = rule, keys
        self._words: Tensor | None = None
        """The sum of the clients' words; whole numbers of k bits wrap around, which is addition modulo 2^k."""
        self._clients: list[int] = []
        self._fields: Any = None
        self._private = method_of(methods, PrivateSum)
        self._sent = {} if self._private is None else received.server[self._private.name]

    def discard(self) -> None:
        """Leave the uploads sealed. Clients reveal no keys."""
        self._words = None

    def add(self, reply: ClientReply, received_buffers: Params, round: int) -> None:
        limit, refused = self._sealer.limit(len(self._keys.clients)), reply.envelope.measured[REFUSED].tolist()
        bad = {client: value for client, value in zip(reply.clients, refused, strict=True) if value}
        if bad and self._on_bad_update == "raise":
            client, value = next(iter(bad.items()))
            raise BadUpdate(
                f"{self._sealer.name}: client {client} has the number {value:.3g} in round {round + 1}, and each of "
                f"{len(self._keys.clients)} clients can send numbers up to {limit:.3g}: lower fraction_bits, raise bits, lower the "
                "learning rate, or set trainer.on_bad_update=drop to go on without such clients"
            )
        self.dropped += bad
        if self.dropped:
            return
        words = reply.envelope.sum[self._sealer.name]
        words = words.sum(0, dtype=words.dtype)
        self._words = words if self._words is None else self._words + words
        self._clients, self._fields = [*self._clients, *reply.clients], reply.manifest.fields
        self.count_bytes(reply)

    def reduce(self, processes: Processes, somebody_idle: bool, logs: bool = False) -> None:
        if self.somebody_dropped(processes):
            return
        self.total_bytes(processes)
        known = [part for part in processes.gather((self._words, self._clients, self._fields)) if part[0] is not None]
        if not known:
            return
        words, arrived, fields = zip(*known, strict=True)
        everybody = list(itertools.chain(*arrived))
        values = self._sealer.finish(functools.reduce(torch.add, words), everybody, self._keys)
        clients, fields = torch.tensor(len(everybody), dtype=torch.float64), fields[0]
        leaves, spec = pytree.tree_flatten(fields, is_leaf=lambda part: isinstance(part, Field))
        shapes = [torch.Size(field.shape) for field in leaves]
        parts = values.split([shape.numel() for shape in shapes])
        sums = pytree.tree_unflatten([part.view(shape) for part, shape in zip(parts, shapes, strict=True)], spec)
        dtypes = pytree.tree_unflatten([dtype_of_mean(torch.empty(0, dtype=field.dtype)) for field in leaves], spec)
        if self._private is not None:
            dtypes |= dict.fromkeys(("weight", "loss", "norm"), torch.float64)
            sums = self._of_whole_numbers(sums, self._private, len(everybody))
        sums = pytree.tree_map(lambda value: value.to(float64_device(self._device)), sums)
        self.sums = Sums(directions={}, clients=clients, **sums)
        self._dtypes = Sums(directions={}, clients=clients, **dtypes)

    def _of_whole_numbers(self, sums: dict[str, Any], private: PrivateSum, clients: int) -> dict[str, Any]:
        """The sums over clients of the same weight that have sent whole numbers of a private sum."""
        unit = private.unit(self._sent, Envelope(*(sums[name] for name in PRIVATE))) / self._sealer.step
        share = next(iter(self._weights.values()))
        found = {
            name: pytree.tree_map(lambda value, factor=unit if name == "totals" else unit * share: factor * value, sums[name])
            for name in PRIVATE
        }
        nothing = torch.zeros((), dtype=torch.float64)
        return found | {"weight": nothing + clients * share, "loss": nothing, "norm": nothing}
