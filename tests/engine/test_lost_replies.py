"""Replies that are lost on their way to the server, and replies that the server has not asked for."""

import dataclasses
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from harness import RAGGED, RecordingTrainer, TinyData, assert_close, classifier, make_trainer
from torch.utils import _pytree as pytree

from flcog.callbacks import SCAFFOLD, FedDisco
from flcog.client.messages import ClientReply, ClientTask, Download
from flcog.method import ClientView, Cutoff, Method, RoundEnd, Workload

LOST = {0: (1, 6), 1: (3,), 2: (1, 4, 7)}
"""Clients whose replies are lost, by round."""

Deliver = Callable[[int, ClientReply], Sequence[ClientReply]]


@dataclass(frozen=True)
class Tolerant(Cutoff):
    """Waits for all clients whose replies arrive."""

    def close(self, finishes: Mapping[int, float], count: int) -> RoundEnd:
        return RoundEnd(finishes, max(finishes.values()))


@dataclass(frozen=True)
class Absent(Workload):
    """Excludes the clients of ``LOST`` from the round."""

    def plan(self, num_steps: int, client: ClientView, rng: torch.Generator) -> int | None:
        return None if client.id in LOST[client.round] else num_steps


@dataclass(frozen=True)
class Single(Method):
    individual_uploads = True


class Network:
    """The clients of a run, behind a network that may change, lose or repeat replies."""

    def __init__(self, clients: Any, deliver: Deliver, elsewhere: bool) -> None:
        self._clients, self._deliver, self._elsewhere = clients, deliver, elsewhere

    def __getattr__(self, name: str) -> Any:
        return getattr(self._clients, name)

    @property
    def here(self) -> Any:
        return None if self._elsewhere else self._clients.here

    def train(self, received: Download, tasks: Sequence[ClientTask]) -> Generator[ClientReply, None, None]:
        replies = self._clients.train(received, tasks)
        for reply in reversed(list(replies)) if self._elsewhere else replies:
            yield from self._deliver(received.round, reply)


def lose(round: int, reply: ClientReply) -> Sequence[ClientReply]:
    """Remove the clients of ``LOST`` from the reply."""
    rows = [k for k, client in enumerate(reply.clients) if client not in LOST[round]]
    envelope = pytree.tree_map(lambda value: value[rows], reply.envelope)
    left = reply._replace(
        clients=[reply.clients[k] for k in rows],
        envelope=envelope,
        masked_bytes=[reply.masked_bytes[k] for k in rows],
        masked_plain_bytes=[reply.masked_plain_bytes[k] for k in rows],
    )
    return [left] if rows else []


def prepared(deliver: Deliver, *methods: Method, elsewhere: bool = False, **options: Any) -> RecordingTrainer:
    trainer = make_trainer(None, *methods, **{"clients_per_round": 8, **RAGGED, **options})
    trainer.prepare(classifier(), TinyData())
    engine = trainer.run.engine
    trainer.run.engine = dataclasses.replace(engine, clients=Network(engine.clients, deliver, elsewhere))
    return trainer


def after_its_rounds(trainer: RecordingTrainer) -> RecordingTrainer:
    trainer.rows = [trainer.train_round() for _ in range(3)]
    return trainer


@pytest.mark.parametrize("options", [{"executor": "loop"}, {"executor": "vmap", "chunk_size": 3}, {"elsewhere": True}])
def test_the_model_is_the_mean_over_the_clients_that_replied(options: dict[str, Any]) -> None:
    trainer = prepared(lose, Tolerant(), Single(), **options)
    before = dict(trainer.params)
    everybody = prepared(lambda round, reply: [reply], Single()).collect()[0].individual["Single"]
    uploads = [upload for upload in everybody if upload.client not in LOST[0]]
    sizes = TinyData().federation.partition.sizes
    row = trainer.train_round()
    total = sum(int(sizes[upload.client]) for upload in uploads)
    mean = {n: sum(int(sizes[u.client]) / total * u.delta[n] for u in uploads) for n in before}
    assert_close(trainer.params, {name: value + mean[name] for name, value in before.items()}, 1e-12)
    assert row["clients/lost"] == 2 and row["clients/participating"] == 6


@pytest.mark.parametrize("elsewhere", [False, True])
def test_lost_clients_might_as_well_have_stayed_away(elsewhere: bool) -> None:
    """The model and all states are equal to the last bit. FedDisco's weights depend on the clients that replied."""
    methods = [SCAFFOLD(), FedDisco()]
    lost = after_its_rounds(prepared(lose, *methods, Tolerant(), elsewhere=elsewhere))
    absent = after_its_rounds(prepared(lambda round, reply: [reply], *methods, Absent()))
    values = [
        pytree.tree_flatten((trainer.params, trainer.servers["SCAFFOLD"], trainer.run.clients.by_client))
        for trainer in (lost, absent)
    ]
    assert values[0][1] == values[1][1]
    assert all(torch.equal(ours, theirs) for ours, theirs in zip(values[0][0], values[1][0], strict=True))
    more = [ours["comm/down_bytes"] > theirs["comm/down_bytes"] for ours, theirs in zip(lost.rows, absent.rows, strict=True)]
    assert any(more) and more == [row["clients/lost"] > 0 for row in lost.rows], "lost clients received the model"


def test_a_round_whose_replies_are_all_lost_changes_nothing() -> None:
    trainer = prepared(lambda round, reply: [], SCAFFOLD(), Tolerant())
    before = trainer.params
    with pytest.warns(UserWarning, match="round 1: no client's update counts"):
        trainer.train_round()
    assert all(torch.equal(value, trainer.params[name]) for name, value in before.items())
    assert not trainer.run.clients.by_client and trainer.round == 1


@pytest.mark.parametrize("elsewhere", [False, True])
def test_a_lost_reply_is_an_error_without_a_cutoff(elsewhere: bool) -> None:
    says = (
        r"2 of 8 clients have sent no reply to their task in round 1; the first is client [16]\. .* beside a flcog.method.Cutoff"
    )
    with pytest.raises(ValueError, match=says):
        prepared(lose, elsewhere=elsewhere).train_round()
