"""Attacks: some clients, the same in all rounds, that send other envelopes than they should."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import ClassVar

import torch
from torch import Generator

from flcog.core.checks import option
from flcog.core.randomness import fold, sample_without_replacement
from flcog.core.types import Slot
from flcog.method.client_view import ClientView
from flcog.method.context import Context
from flcog.method.observer import Note
from flcog.method.stage import Kind, Stage
from flcog.wire.envelope import Envelope


@dataclass(frozen=True, kw_only=True)
class Attack(Stage, protocol=True):
    """Makes some clients attackers, which skip all stages but encodings: they do not clip their updates.

    All attacks of a run have the same attackers, as far as their number is the same.

    Args:
        fraction: the share of all clients that attack, in [0, 1]. A share above 0 that rounds to no client is refused.
        count: their number, in the place of ``fraction``.
        clients: the numbers of the attackers, in the place of both.
    """

    fraction: float = option(0.1, "[0, 1]")
    count: int | None = option(None, ">= 0")
    clients: Sequence[int] | None = None

    kind: ClassVar[Kind] = "alter"

    def check_clients(self, num_clients: int) -> None:
        """Refuse attackers that do not exist, and a share of clients that rounds to none."""
        if any(not 0 <= client < num_clients for client in self.clients or ()) or (self.count or 0) > num_clients:
            raise ValueError(
                f"{self.name}: attackers must be among the {num_clients} clients; got count={self.count}, clients={self.clients}"
            )
        if self.fraction > 0 and not self.attackers(0, num_clients) and self.count is None and self.clients is None:
            raise ValueError(
                f"{self.name}: fraction must be 0, or above {0.5 / num_clients:g} to make one of {num_clients} clients an attacker; got "
                f"{self.fraction}: raise it, or set count: 1"
            )

    def attackers(self, seed: int, num_clients: int) -> frozenset[int]:
        """The attackers of a run with this seed and this number of clients."""
        if self.clients is not None:
            return frozenset(self.clients)
        return _drawn(seed, num_clients, round(self.fraction * num_clients) if self.count is None else self.count)

    def note(self, seed: int, num_clients: int) -> Note:
        """The number of attackers and their first numbers, for the summary."""
        known = sorted(self.attackers(seed, num_clients))
        shown = ", ".join(map(str, known[:10])) + (", ..." if len(known) > 10 else "")
        return Note("attackers", f"{self.name}: {len(known)} of {num_clients} clients" + (f" ({shown})" if known else ""))

    def draw(self, rng: Generator, client: ClientView) -> Slot:
        """Whether the client attacks."""
        return {"attacks": torch.tensor(client.id in self.attackers(client.seed, client.population.num_clients))}

    def send(self, envelope: Envelope, ctx: Context) -> tuple[Envelope, Slot]:
        return envelope, ctx.state


@lru_cache(maxsize=8)
def _drawn(seed: int, num_clients: int, count: int) -> frozenset[int]:
    return frozenset(sample_without_replacement(num_clients, count, fold(seed, "attackers")))
