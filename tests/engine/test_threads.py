"""Clients that run at the same time on threads give the loop's numbers, bit for bit. Where this is impossible, the loop runs instead.

``test_methods.py`` tests this for every method, together with the other executors.
"""

import threading
import time
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from faithful.modules import Plain
from harness import (
    NUM_CLASSES,
    NUM_FEATURES,
    SGD,
    BatchNormMLP,
    TinyData,
    assert_close,
    classifier,
    make_trainer,
    train,
)
from torch import Tensor, nn

import flcog
from engine.test_executor_choice import Pictures
from flcog.execute.placements import Chunks, Threads
from flcog.method import Context, Method
from flcog.models import Dropout
from flcog.schedules import Exponential

pytestmark = pytest.mark.filterwarnings("error")


@pytest.mark.parametrize(
    "options",
    [
        {"module": lambda: classifier(network=BatchNormMLP)},
        {"module": lambda: classifier(lambda params: torch.optim.Adam(params, lr=0.01))},
        {
            "module": lambda: flcog.Classifier(
                flcog.models.MLP(NUM_FEATURES, (8,), NUM_CLASSES), SGD, lr_schedule=Exponential(0.5)
            )
        },
        {
            "module": lambda: classifier(
                network=lambda: nn.Sequential(nn.Linear(NUM_FEATURES, 8), Dropout(0.5), nn.ReLU(), nn.Linear(8, NUM_CLASSES))
            )
        },
        {"precision": "bf16-mixed"},
        {"local_epochs": 2, "clients_per_round": 8},
        {"local_epochs": 2, "clients_per_round": 8, "chunk_size": 20},
    ],
    ids=["batch-norm", "adam", "schedule", "dropout", "autocast", "ragged", "more-threads-than-clients"],
)
def test_side_by_side_is_one_by_one(options: dict[str, Any]) -> None:
    module = options.get("module", classifier)
    rest = {name: value for name, value in options.items() if name != "module"}
    torch.manual_seed(0)
    alone = train(module=module(), **(rest | {"chunk_size": 1}))
    torch.manual_seed(0)
    together = train(module=module(), **({"chunk_size": 3} | rest))
    assert isinstance(together.executor.placement, Threads) and type(alone.executor.placement) is Chunks
    assert_close(together.state, alone.state, 0)
    assert together.rows == alone.rows


def test_clients_do_run_at_the_same_time_and_the_longest_first() -> None:
    meeting, order = threading.Barrier(2, timeout=30), []

    @dataclass(frozen=True)
    class Meets(Method):
        def start(self, apply: Any, params: Any, ctx: Context) -> Any:
            order.append(int(ctx.data.num_samples))
            meeting.wait()  # one client alone cannot pass
            return params, {}

    train(Meets(), data=TinyData(batch_size=1), rounds=1, clients_per_round=8, local_epochs=1.0, chunk_size=2)
    # Each client has one step per sample. Of two clients at a time, either may start first.
    pairs = [sorted(order[i : i + 2], reverse=True) for i in range(0, 8, 2)]
    assert pairs == [[16, 14], [12, 11], [10, 7], [6, 4]]


def test_what_runs_one_at_a_time_and_why() -> None:
    torch.set_num_threads(2)  # conftest resets it

    def note(module: Any, data: Any = None, **options: Any) -> str:
        trainer = make_trainer(None, **options)
        trainer.prepare(module, data or TinyData())
        return trainer.notes[0]

    pictures, alone = {"clients_per_round": 2}, "executor: loop, 1 client at a time"
    assert note(flcog.Classifier(flcog.models.SimpleCNN(1)), Pictures(), **pictures) == ("executor: loop, 2 clients at a time")
    assert note(flcog.Classifier(flcog.models.SimpleCNN(1)), Pictures(), **pictures, chunk_size=1) == alone
    # Without convolutions, steps are so short that threads would wait for Python's lock.
    assert note(classifier()) == alone
    assert note(classifier(), chunk_size=3) == "executor: loop, 3 clients at a time"
    assert note(Plain(), chunk_size=2) == "executor: loop, 2 clients at a time"
    wide = classifier(network=lambda: nn.Linear(NUM_FEATURES + 1, NUM_CLASSES))
    assert "1 client at a time (the model fails in a plain torch loop (" in note(wide, chunk_size=2)


@pytest.mark.parametrize(("threads", "clients", "at_once"), [(4, 10, 4), (64, 10, 5), (64, 6, 6), (2, 1, 1), (1, 10, 1)])
def test_as_many_at_a_time_as_leave_no_thread_idle(threads: int, clients: int, at_once: int) -> None:
    torch.set_num_threads(threads)
    trainer = make_trainer(None, clients_per_round=clients)
    trainer.prepare(flcog.Classifier(flcog.models.SimpleCNN(1)), Pictures(num_clients=10))
    assert trainer.executor.clients_at_once == at_once


class Poisoned(flcog.Classifier):
    """Fails on batches of two different rows once it is ill."""

    is_ill = threading.Event()

    def per_example_loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        time.sleep(0.002)
        if self.is_ill.is_set() and len(targets) == 2 and not torch.equal(outputs[0], outputs[1]):
            raise FloatingPointError("this client is ill")
        started.append(1)
        return super().per_example_loss(outputs, targets)


started: list[int] = []


def test_an_error_names_the_client_and_ends_the_others() -> None:
    # Clients 7, 2 and 0 (14, 10 and 6 samples, in batches of 4) have a last batch of two. Client 7 starts first, with client 3.
    trainer = make_trainer(None, local_epochs=30.0, clients_per_round=8, chunk_size=2)
    trainer.prepare(Poisoned(flcog.models.MLP(NUM_FEATURES, (8,), NUM_CLASSES)), TinyData())
    started.clear()
    Poisoned.is_ill.set()
    with pytest.raises(FloatingPointError, match="this client is ill") as caught:
        trainer.train_round()
    assert any("in client 7, round 1, local step 4 of 120" in note for note in caught.value.__notes__)
    soon = len(started)
    assert soon < 40, "the client beside it gave up too"
    time.sleep(0.05)
    assert len(started) == soon, "nobody goes on"
