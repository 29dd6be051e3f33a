"""On a device with a second queue, samples, clients' states and draws are copied in advance, without changing a bit of the run."""

from typing import Any

import pytest
from contracts.registry import CASES
from copy_queues import Delayed
from harness import assert_close, classifier, make_trainer, train

from engine.test_sources import Announced

STATEFUL = ("SCAFFOLD", "FedCOG", "GradientNoise", "MOON-batchnorm")


@pytest.fixture
def queue(monkeypatch: pytest.MonkeyPatch) -> Delayed:
    made = Delayed()
    monkeypatch.setattr("flcog.data.reading.copy_queue_of", lambda device: made if made.is_there else None)
    monkeypatch.setattr("flcog.client.work.BLOCK_BYTES", 10 * 6 * 8)  # two batches are read at a time
    return made


def run(executor: str, whole_batches: bool = False, **options: Any) -> Any:
    work = {"local_epochs": 2, "rounds": 2, "chunk_size": 2 if executor == "vmap" else 1}
    return train(data=Announced(whole_batches, batch_size=5), executor=executor, **(work | options))


@pytest.mark.parametrize("executor", ["loop", "vmap"])
@pytest.mark.parametrize("whole_batches", [False, True])
def test_samples_that_come_later_train_the_same_model(executor: str, whole_batches: bool, queue: Delayed) -> None:
    ours = run(executor, whole_batches)
    assert queue.done == queue.begun > 0, "nothing is copied in vain"
    assert queue.kept == queue.done
    queue.is_there = False
    assert_close(ours.state, run(executor, whole_batches).state, 0)


@pytest.mark.parametrize("executor", ["loop", "vmap"])
def test_the_next_samples_are_on_their_way_while_a_device_computes(executor: str, queue: Delayed) -> None:
    at_once = 2 if executor == "vmap" else 1
    trainer = make_trainer(None, local_epochs=2, clients_per_round=4, executor=executor, chunk_size=at_once)
    trainer.prepare(classifier(), Announced(batch_size=5, order=(1, 1, 1, 1)))
    queue.ahead.clear()
    trainer.train_round()
    *before, last = queue.ahead
    assert len(before) >= 4 and all(before), "at the end of a client, the next one's first"
    assert last == 0


@pytest.mark.parametrize("executor", ["loop", "vmap"])
@pytest.mark.parametrize("name", STATEFUL)
def test_states_and_draws_that_come_later_train_the_same_model(name: str, executor: str, queue: Delayed) -> None:
    case = CASES[name]

    def trained() -> Any:
        options: dict[str, Any] = {"local_epochs": 1, "executor": executor, "chunk_size": 2 if executor == "vmap" else 1}
        return train(case.method, module=case.module(case.optimizer), data=case.data(), **options)

    ours = trained()
    assert queue.begun > 0 and max(queue.ahead) > 0
    queue.is_there = False
    assert_close(ours.state, trained().state, 0)
