"""Steps that several attacks share."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import count

import torch
from torch import Tensor

from flcog.core.types import Slot
from flcog.method import Attack, Cohort, Context, Envelope, UploadChange, UploadMatrix
from flcog.wire.envelope import changes_of, map_fields

STRENGTHS = tuple(0.1 * 2**i for i in range(11))
"""The strengths from 0.1 to 102.4 that an optimised attack tries."""


def altered(envelope: Envelope, ctx: Context, change: Callable[[Tensor, int], Tensor]) -> Envelope:
    """The envelope after the replacement of an attacker's floating-point changes and messages.

    >>> from flcog.method import GlobalModel
    >>> context = Context(GlobalModel({}, {}), {}, {}, {"attacks": torch.tensor(True)}, {}, {}, 0, 1, None, None)
    >>> altered(Envelope({"w": torch.ones(2)}, {}), context, lambda change, place: -change).delta["w"]
    tensor([-1., -1.])

    Args:
        envelope: the client's.
        ctx: the client, with its draw ``attacks``.
        change: takes a change or a message, and its number in the envelope.
    """
    numbers = count()

    def replaced(value: Tensor) -> Tensor:
        if not isinstance(value, Tensor) or not value.is_floating_point():
            return value
        return torch.where(ctx.draws["attacks"], change(value, next(numbers)), value)

    received = ctx.received.buffers
    floats = {name: value for name, value in envelope.buffers.items() if value.is_floating_point()}
    new = map_fields(replaced, envelope._replace(buffers=changes_of(floats, received)))
    # An honest client's buffers must stay the very same, and subtracting and adding would round them.
    buffers = {name: torch.where(ctx.draws["attacks"], received[name] + new.buffers[name], floats[name]) for name in floats}
    return new._replace(buffers={**envelope.buffers, **buffers})


@dataclass(frozen=True, kw_only=True)
class OmniscientAttack(Attack, UploadChange, protocol=True):
    """An attack that knows the uploads of all clients of the round. It acts at the server, where the attackers' uploads are replaced."""

    def change(
        self, uploads: UploadMatrix, server: Slot, cohort: Cohort, combine: Callable[[UploadMatrix], Tensor]
    ) -> tuple[UploadMatrix, Slot]:
        known = self.attackers(cohort.seed, cohort.num_clients)
        evil = torch.tensor([client in known for client in uploads.clients], device=uploads.values.device)
        if not evil.any() or evil.all():
            return uploads, server

        def attacked(forged: Tensor) -> UploadMatrix:
            return uploads._replace(values=torch.where(evil.unsqueeze(1), forged, uploads.values))

        honest = [client for client in uploads.clients if client not in known]
        view = AttackerView(uploads.values[~evil], honest, int(evil.sum()), cohort, lambda forged: combine(attacked(forged)))
        forged, new = self.forge(view, server)
        return attacked(forged), new

    def forge(self, view: "AttackerView", server: Slot) -> tuple[Tensor, Slot]:
        """The upload of all attackers [d], and the attack's new state at the server. *Plain Python.*"""
        raise NotImplementedError


@dataclass(frozen=True)
class AttackerView:
    """A round as omniscient attackers see it.

    Args:
        honest: the other clients' uploads, [n - f, d].
        clients: these clients.
        count: the number of attackers.
        cohort: the clients of the round.
        combine: the server's result if all attackers send an upload.
    """

    honest: Tensor
    clients: Sequence[int]
    count: int
    cohort: Cohort
    combine: Callable[[Tensor], Tensor]

    def std(self) -> Tensor:
        """Each coordinate's standard deviation over the honest uploads; ``torch.std`` along the rows takes five times as long."""
        return (self.honest - self.honest.mean(0)).square_().sum(0).div_(max(1, len(self.honest) - 1)).sqrt_()

    def strongest(self, forge: Callable[[float], Tensor]) -> Tensor:
        """The forged upload that moves the server's result farthest from the honest mean."""
        mean = self.honest.mean(0)
        distances = [float((self.combine(forge(strength)) - mean).norm()) for strength in STRENGTHS]
        return forge(STRENGTHS[distances.index(max(distances))])
