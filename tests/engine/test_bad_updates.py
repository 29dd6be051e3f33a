"""Clients that send NaN or infinite numbers: dropping such a client gives the same round as if it had not taken part."""

from dataclasses import dataclass
from typing import Any

import pytest
import torch
from contracts.case import Case
from contracts.registry import CASES, each, run
from harness import RecordingTrainer, distance, train
from torch import Tensor

from flcog.callbacks import SCAFFOLD, CoordinateMedian, FedDisco, FedExP
from flcog.method import Context, Method, Params, PrivateSum, Slot, Upload, Workload
from flcog.method.clock import AsynchronousRounds
from flcog.server.aggregate import BadUpdate

pytestmark = pytest.mark.filterwarnings("error")

both_executors = pytest.mark.parametrize("executor", ["loop", "vmap"])

BROKEN = 4
"""This client is in the cohorts of rounds 1 and 2 when five of eight clients are sampled."""


class ByClient(Method):
    def draw(self, rng: torch.Generator, client: Any) -> Slot:
        return {"bad": torch.tensor(client.id == BROKEN)}


@dataclass(frozen=True)
class BadDelta(ByClient):
    """One client's update is NaN, or has another given value."""

    value: float = torch.nan

    def finish_client(self, delta: Params, params: Params, ctx: Context) -> Upload:
        return Upload({n: torch.where(ctx.draws["bad"], self.value, v) for n, v in delta.items()}, ctx.state)


@dataclass(frozen=True)
class BadMessage(ByClient):
    def finish_client(self, delta: Params, params: Params, ctx: Context) -> Upload:
        return Upload(delta, ctx.state, mean={"message": torch.where(ctx.draws["bad"], -torch.inf, torch.zeros(3))})


@dataclass(frozen=True)
class Diverges(ByClient):
    """The loss, the gradient and so the model of one client are NaN."""

    def loss(self, apply: Any, params: Params, batch: Any, task_loss: Tensor, ctx: Context) -> Tensor:
        return torch.where(ctx.draws["bad"], torch.nan, 0.0) * task_loss


@dataclass(frozen=True)
class StaysAway(Workload):
    """The client that sends bad numbers in the other run takes no part in this run."""

    def plan(self, num_steps: int, client: Any, rng: torch.Generator) -> int | None:
        return None if client.id == BROKEN else num_steps


def assert_same_run(dropped: RecordingTrainer, without: RecordingTrainer, told: bool = True) -> None:
    """Check that models, states and figures are equal to the last bit, except the bytes that were sent.

    Args:
        dropped, without: the run that drops a client, and the run without this client.
        told: whether the column ``clients/dropped`` counts the client.
    """
    assert (sum([row.pop("clients/dropped", 0) for row in dropped.rows]) > 0) == told
    for name in ("params", "buffers", "servers"):
        ours, theirs = getattr(dropped, name), getattr(without, name)
        for a, b in zip(*map(torch.utils._pytree.tree_leaves, (ours, theirs)), strict=True):
            assert torch.equal(a, b) if isinstance(a, Tensor) else a == b
    kept = {client: states for client, states in without.states.by_client.items() if client != BROKEN}
    assert dropped.states.by_client.keys() == kept.keys()
    for a, b in zip(*map(torch.utils._pytree.tree_leaves, (dropped.states.by_client, kept)), strict=True):
        assert torch.equal(a, b)
    for a, b in zip(dropped.rows, without.rows, strict=True):
        assert a.keys() == b.keys()
        # A dropped client has downloaded the model, so the bytes differ.
        assert {n: v for n, v in a.items() if "bytes" not in n} == {n: v for n, v in b.items() if "bytes" not in n}


AT_THE_SERVER = {
    name: case
    for name, case in CASES.items()
    if (case.method.overrides("weights") or case.method.overrides("server_step"))
    and not isinstance(case.method, AsynchronousRounds)  # the broken client's update would arrive after round 2
}


@pytest.mark.slow
@each(AT_THE_SERVER)
def test_dropping_a_client_is_a_round_without_it(case: Case) -> None:
    dropped = run(case, BadDelta(), BadMessage(), case.method, on_bad_update="drop", rounds=2)
    assert_same_run(
        dropped, run(case, BadMessage(), StaysAway(), case.method, rounds=2), told=not isinstance(case.method, PrivateSum)
    )


@both_executors
@pytest.mark.parametrize("bad", [BadDelta(), BadDelta(value=torch.inf), BadMessage(), Diverges()], ids=lambda bad: bad.name)
def test_wherever_it_goes_bad(bad: Method, executor: Any) -> None:
    methods = (FedDisco(), FedExP(), SCAFFOLD())
    options = {"executor": executor, "clients_per_round": 8}
    dropped = train(*methods, bad, on_bad_update="drop", **options)
    assert [row["clients/participating"] for row in dropped.rows] == [7, 7, 7]
    without = train(*methods, BadMessage(), StaysAway(), **options)
    if executor == "loop":
        assert all(torch.equal(value, without.params[name]) for name, value in dropped.params.items())
    assert distance(dropped.params, without.params) < 1e-12
    assert sorted(dropped.states.by_client) == sorted(without.states.by_client) == [k for k in range(8) if k != BROKEN]


@both_executors
def test_the_error_names_the_client_and_the_place(executor: Any) -> None:
    with pytest.raises(BadUpdate, match=r"client 4 in round 1 is NaN or infinite \(in what BadMessage sends\): lower the"):
        train(SCAFFOLD(), BadMessage(), executor=executor, clients_per_round=8)


def test_nobody_is_left() -> None:
    @dataclass(frozen=True)
    class AllBad(Method):
        def finish_client(self, delta: Params, params: Params, ctx: Context) -> Upload:
            return Upload({name: value / 0 for name, value in delta.items()}, ctx.state)

    with pytest.warns(UserWarning, match="round 1: no client's update counts; the model stays as it was"):
        trainer = train(FedDisco(), AllBad(), rounds=1, on_bad_update="drop")
    row = trainer.rows[0]
    assert row["clients/dropped"] == 5 and row["comm/up_bytes"] == 5 * 4  # FedDisco's first messages
    assert row["comm/down_bytes"] == train(FedDisco(), rounds=1).rows[0]["comm/down_bytes"]


@both_executors
@pytest.mark.parametrize("on_bad_update", ["raise", "drop"])
def test_a_rule_sees_large_updates(executor: str, on_bad_update: str) -> None:
    """The square of 1e25 overflows in float32, but the update is finite: the median keeps it out of the model."""
    options = {"precision": "32-true", "rounds": 1, "clients_per_round": 8, "executor": executor, "on_bad_update": on_bad_update}
    trainer = train(BadDelta(value=1e25), CoordinateMedian(), **options)
    row = trainer.rows[0]
    assert row["clients/participating"] == 8 and "clients/dropped" not in row
    count = sum(value.numel() for value in trainer.params.values())
    assert row["drift/norm"] == pytest.approx(1e25 * count**0.5 / 8, rel=1e-6)
    assert distance(trainer.params, train(CoordinateMedian(), **options).params) < 0.1


@both_executors
@pytest.mark.parametrize("on_bad_update", ["raise", "drop"])
def test_a_server_that_makes_no_model_of_sound_updates_is_named(executor: str, on_bad_update: str) -> None:
    """The error names the server's step, not a client of the next round. It is raised even after the last round."""

    @dataclass(frozen=True)
    class Explodes(Method):
        def server_step(self, server: Slot, params: Params, delta: Params, messages: Any, cohort: Any) -> tuple[Params, Slot]:
            return {name: value / (cohort.round != 1) for name, value in delta.items()}, server

    with pytest.raises(
        BadUpdate, match=r"NaN or infinite after the server's step of Explodes in round 2, though the clients' updates"
    ):
        train(Explodes(), rounds=2, executor=executor, on_bad_update=on_bad_update)
