"""Aggregation of sealed uploads, of which the server reads only the sum over all processes' clients."""

from collections.abc import Sequence
from typing import Any

import torch
from torch.utils import _pytree as pytree

from flcog.client.messages import ClientReply
from flcog.core.precision import float64_device
from flcog.core.processes import Processes
from flcog.core.types import Params
from flcog.method import Cohort, Method
from flcog.method.sealed_sum import REFUSED, RoundKeys, SealedSum, SealedUploads
from flcog.server.aggregate import Aggregate
from flcog.server.bad_updates import BadUpdate
from flcog.server.sums import Sums, dtype_of_mean
from flcog.wire.envelope import Field


class SealedAggregate(Aggregate):
    """The sums of a round whose uploads are sealed. They are known after ``reduce``.

    Args:
        rule: adds up words, and reads their sum.
        keys: of the round.
        methods: the active methods of the round.
        cohort: the clients of the round.
        on_bad_update: ``raise`` an error or ``drop`` the client.
        device: the clients' device.
    """

    def __init__(
        self,
        rule: SealedSum,
        keys: RoundKeys,
        methods: Sequence[Method],
        cohort: Cohort,
        on_bad_update: str,
        device: torch.device,
    ) -> None:
        super().__init__([method for method in methods if method is not rule], cohort, False, on_bad_update, device)
        self.up_bytes[rule.name] = 0
        self._sealer, self._keys = rule, keys
        self._state: SealedUploads | None = rule.init(keys)
        self._fields: Any = None

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
        uploads = SealedUploads(reply.envelope.sum[self._sealer.name], reply.clients, self._keys)
        self._state, self._fields = self._sealer.add(self._state, uploads), reply.manifest.fields
        self.count_bytes(reply)

    def reduce(self, processes: Processes, somebody_idle: bool, logs: bool = False) -> None:
        if self.somebody_dropped(processes):
            return
        self.total_bytes(processes)
        known = [(state, fields) for state, fields in processes.gather((self._state, self._fields)) if state is not None]
        if not known:
            return
        state, fields = self._sealer.merge([state for state, _ in known]), known[0][1]
        values = self._sealer.finish(state).to(float64_device(self._device))
        clients = torch.tensor(len(state.clients), dtype=torch.float64)
        leaves, spec = pytree.tree_flatten(fields, is_leaf=lambda part: isinstance(part, Field))
        shapes = [torch.Size(field.shape) for field in leaves]
        parts = values.split([shape.numel() for shape in shapes])
        sums = pytree.tree_unflatten([part.view(shape) for part, shape in zip(parts, shapes, strict=True)], spec)
        dtypes = pytree.tree_unflatten([dtype_of_mean(torch.empty(0, dtype=field.dtype)) for field in leaves], spec)
        self.sums = Sums(directions={}, clients=clients, **sums)
        self._dtypes = Sums(directions={}, clients=clients, **dtypes)
