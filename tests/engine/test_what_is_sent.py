"""What clients send and keep, and the bytes that are counted."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from harness import BatchNormMLP, TinyData, classifier, make_trainer, train

from flcog.data import Partition, Partitioner, Samples
from flcog.method import Method, ParameterMask, Upload


def test_a_client_may_keep_parameters_or_send_no_weights() -> None:
    @dataclass(frozen=True)
    class Keep(ParameterMask):
        def mask(self, params: Any, client: int) -> Any:
            return {name: torch.tensor(False) for name in params if name.startswith("model.3.")}

    @dataclass(frozen=True)
    class KeepAll(Method):
        def finish_client(self, delta: Any, params: Any, ctx: Any) -> Upload:
            return Upload(None, ctx.state)

    for executor in ("loop", "vmap"):
        untrained = make_trainer(None)
        untrained.prepare(classifier(network=BatchNormMLP), TinyData())
        start = untrained.state
        plain, part, none = (
            train(*methods, module=classifier(network=BatchNormMLP), executor=executor, rounds=2)
            for methods in ((), (Keep(),), (KeepAll(),))
        )
        head = [name for name in start if name.startswith("3.")]
        assert len(head) == 2
        assert all(
            torch.equal(part.state[name], start[name]) == (name in head)
            for name in (n.removeprefix("model.") for n in part.params)
        )
        # Who sends no weights sends no statistics either.
        assert all(torch.equal(none.state[name], value) for name, value in start.items())
        assert none.ledger.total_up == 0
        size = 8 * sum(start[name].numel() for name in head)
        assert plain.ledger.total_up - part.ledger.total_up == 2 * 5 * size
        # In the first round everybody must be told where to start.
        assert plain.ledger.total_down - part.ledger.total_down == 5 * size


def test_only_the_sampled_clients_have_state_and_cost() -> None:
    @dataclass(frozen=True)
    class Everyone(Partitioner):
        def __call__(self, samples: Samples, num_clients: int, seed: int) -> Partition:
            return Partition(np.arange(num_clients, dtype=np.int64) % len(samples), np.arange(num_clients + 1, dtype=np.int64))

    @dataclass(frozen=True)
    class Stateful(Method):
        def init_client(self, params: Any, buffers: Any, client: Any) -> Any:
            return {"seen": torch.zeros(1)}

        def finish_client(self, delta: Any, params: Any, ctx: Any) -> Upload:
            return Upload(delta, {"seen": ctx.state["seen"] + 1})

    data = TinyData()
    data.num_clients, data.partitioner = 1_000_000, Everyone()
    trainer = train(Stateful(), data=data, clients_per_round=10)
    assert len(trainer.run.clients.by_client) == 30  # three cohorts of ten of a million, with nobody twice
    assert all(int(slot["Stateful"]["seen"]) == 1 for slot in trainer.run.clients.by_client.values())


def test_ledger_counts_what_crosses() -> None:
    from flcog.callbacks import SCAFFOLD

    plain, corrected = train(rounds=1), train(SCAFFOLD(), rounds=1)
    model = sum(p.numel() for p in plain.params.values()) * 8  # float64
    assert plain.ledger.up == plain.ledger.down == {"model": 5 * model}
    assert corrected.ledger.up == corrected.ledger.down == {"model": 5 * model, "SCAFFOLD": 5 * model}
