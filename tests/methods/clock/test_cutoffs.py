"""Rounds that end before all clients have finished."""

from dataclasses import dataclass
from functools import partial

import pytest
import torch
from contracts.case import Case
from harness import RAGGED, TinyData, distance, train
from reference import cutoffs

from flcog.callbacks import SCAFFOLD, Deadline, FedDisco, OverSelect, PoissonSampling
from flcog.core.randomness import fold, fold_each
from flcog.method import ClientView, Workload


def draws(round: int, client: int) -> int:
    """The random numbers that break ties."""
    return int(fold_each(fold(0, "ties", round), [client])[0])


CASES: dict[str, Case] = {
    "Deadline": Case(
        Deadline(seconds=5.0), partial(cutoffs.run, seconds=5.0), neutral=Deadline(seconds=100.0), options=RAGGED, random=True
    ),
    "OverSelect": Case(
        OverSelect(factor=1.4),
        partial(cutoffs.run, first=5, draws=draws),
        neutral=OverSelect(factor=1.0),
        options=RAGGED,
        random=True,
    ),
}


@dataclass(frozen=True)
class Quick(Workload):
    """Clients that need more than ``seconds`` seconds do not take part."""

    seconds: float = 5.0

    def plan(self, num_steps: int, client: ClientView, rng: torch.Generator) -> int | None:
        return num_steps if num_steps <= self.seconds else None


@pytest.mark.parametrize("options", [{"executor": "loop"}, {"executor": "vmap", "chunk_size": 3}])
def test_late_clients_might_as_well_have_stayed_away(options: dict[str, str]) -> None:
    """Late clients change neither the model, nor clients' states, nor the bytes of uploads.

    FedDisco is in the list because its weights depend on the clients that take part.
    """
    methods = [SCAFFOLD(), FedDisco()]
    late, absent = (train(*methods, method, **RAGGED, **options) for method in (Deadline(seconds=5.0), Quick()))
    assert distance(late.state, absent.state) < 1e-12
    assert late.run.clients.clients == absent.run.clients.clients
    assert late.ledger.up["model"] == absent.ledger.up["model"] and late.ledger.total_down > absent.ledger.total_down
    for row, works in zip(late.rows, late.works, strict=True):
        assert row["clients/late"] == sum(work.num_steps > 5 for work in works) == len(works) - row["clients/participating"]
        assert row["time/simulated"] == row["round"] * 5.0


def test_ties_are_broken_at_random() -> None:
    """All clients finish at the same time. The clients with the lowest numbers would have won every round."""
    data = TinyData(order=(1,) * 10)
    trainer = train(SCAFFOLD(), OverSelect(factor=2.0), rounds=8, local_steps=1, clients_per_round=5, data=data)
    assert sorted(trainer.run.clients.clients) == list(range(10))


def test_a_round_without_late_clients_ends_with_the_last_one() -> None:
    trainer = train(Deadline(seconds=100.0), **RAGGED)
    ends = [max(work.num_steps for work in works) for works in trainer.works]
    assert [row["time/simulated"] for row in trainer.rows] == [sum(ends[: k + 1]) for k in range(3)]


def test_a_client_that_ends_at_the_deadline_counts() -> None:
    trainer = train(Deadline(seconds=3.0), local_steps=3)
    assert all(row["clients/late"] == 0 for row in trainer.rows)
    assert distance(trainer.state, train(local_steps=3).state) == 0


def test_a_round_of_late_clients_changes_nothing_but_the_time() -> None:
    with pytest.warns(UserWarning, match="no client's update counts; the model stays as it was"):
        trainer = train(Deadline(seconds=0.5), SCAFFOLD(), rounds=1)
    assert trainer.rows[0]["clients/late"] == 5 and trainer.rows[0]["time/simulated"] == 0.5 and not trainer.run.clients.clients


def test_the_earlier_of_two_ends_counts() -> None:
    """Seven of eight clients are selected; the first five to finish count if they finish within the deadline."""
    for seconds in (5.0, 100.0):
        trainer = train(OverSelect(factor=1.4), Deadline(seconds=seconds), **RAGGED)
        before = 0.0
        for row, works in zip(trainer.rows, trainer.works, strict=True):
            steps = sorted(work.num_steps for work in works)
            assert len(steps) == 7 and row["time/simulated"] - before == min(seconds, steps[4])
            assert row["clients/participating"] == sum(number <= seconds for number in steps[:5])
            before = row["time/simulated"]


def test_any_selection_selects_more() -> None:
    rows = train(OverSelect(factor=1.5), PoissonSampling(), rounds=30, clients_per_round=2, local_steps=1).rows
    asked = [row["clients/participating"] + row.get("clients/late", 0) for row in rows]
    assert max(row["clients/participating"] for row in rows) == 2 and 2.2 < sum(asked) / 30 < 3.8
