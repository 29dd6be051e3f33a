"""The exchange of data before round 1: the run uses its data and counts its bytes, and the method's hooks can read it."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from harness import TinyData, train
from torch import Tensor

from flcog.data import Exchange, Federation, Partition
from flcog.method import ClientView, Cohort, DataExchange, FirstContact, Params


@dataclass(frozen=True, kw_only=True)
class Kept(Exchange):
    clients: int
    workspace: Path | None


@dataclass(frozen=True)
class Halves(DataExchange):
    """Keeps every second sample of each client, and sends the number of clients."""

    def prepare_data(self, federation: Federation, rng: torch.Generator, workspace: Path | None) -> Exchange:
        partition = Partition.from_clients([federation.partition.client(k)[::2] for k in range(federation.num_clients)])
        changed = replace(federation, partition=partition)
        return Kept(changed, (30, 7), clients=federation.num_clients, workspace=workspace)

    def init_client(self, params: Params, buffers: Params, client: ClientView) -> FirstContact:
        return FirstContact({}, client.exchanges[self.name].clients)  # type: ignore[attr-defined]

    def weights(self, weights: Tensor, messages: Sequence[Any], cohort: Cohort) -> Tensor:
        assert messages[0] >= 8
        return weights


@dataclass(frozen=True)
class Again(Halves):
    """A second method, which receives the data that the first method has changed."""


def test_methods_change_the_data_one_after_another() -> None:
    trainer = train(Halves(), Again(), rounds=1, clients_per_round=8)
    sizes = TinyData().federation.partition.sizes
    first, second = trainer.run.engine.exchanges["Halves"], trainer.run.engine.exchanges["Again"]
    assert first.federation.partition.sizes.tolist() == [-(-size // 2) for size in sizes]
    assert second.federation is trainer.federation and sum(trainer.federation.partition.sizes) < sum(sizes) / 2
    assert first.clients == second.clients == len(sizes)


def test_bytes_are_counted_before_round_1() -> None:
    trainer = train(Halves(), rounds=1, clients_per_round=8)
    assert (trainer.ledger.up["Halves"], trainer.ledger.down["Halves"]) == (30 + 8 * 4, 7)
    assert trainer.rows[0]["comm/up_bytes"] == trainer.ledger.total_up
