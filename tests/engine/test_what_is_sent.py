"""The values that clients send and keep, and the bytes that are counted."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from harness import BatchNormMLP, TinyData, classifier, fit, make_trainer, train

from flcog.method import Method, ParameterMask, Upload
from flcog.server.select import select

HEAD = ("model.3.", "model.head.")
"""The head's parameters of the two networks of these tests."""


@dataclass(frozen=True)
class KeepHead(ParameterMask):
    def mask(self, params: Any, client: int) -> Any:
        return {name: torch.tensor(False) for name in params if name.startswith(HEAD)}


def selected(trainer: Any, round: int) -> Sequence[int]:
    return select(trainer.run.engine, replace(trainer.run.server, round=round)).clients


def test_a_client_may_keep_parameters_or_send_no_weights() -> None:
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
            for methods in ((), (KeepHead(),), (KeepAll(),))
        )
        head = [name for name in start if name.startswith("3.")]
        assert len(head) == 2
        assert all(
            torch.equal(part.state[name], start[name]) == (name in head)
            for name in (n.removeprefix("model.") for n in part.params)
        )
        # Clients that send no weights send no BatchNorm statistics either.
        assert all(torch.equal(none.state[name], value) for name, value in start.items())
        assert none.ledger.total_up == 0
        size = 8 * sum(start[name].numel() for name in head)
        assert plain.ledger.total_up - part.ledger.total_up == 2 * 5 * size
        again = set.intersection(*(set(selected(part, round)) for round in range(2)))
        assert plain.ledger.total_down - part.ledger.total_down == len(again) * size


def test_a_client_receives_its_own_parameters_once(tmp_path: Path) -> None:
    """A client receives the initial values in its first round, whenever that is. A resumed run knows which clients have them."""
    plain, kept = (fit(tmp_path, *methods, rounds=4, clients_per_round=2) for methods in ((), (KeepHead(),)))
    assert kept.run_dir is not None
    asked = [client for round in range(4) for client in selected(kept, round)]
    assert 2 < len(set(asked)) < len(asked) == 8  # some clients start in a later round, and some take part again
    size = sum(kept.params[name].nbytes for name in kept.params if name.startswith(HEAD))
    assert plain.ledger.total_down - kept.ledger.total_down == (8 - len(set(asked))) * size
    half = fit(tmp_path, KeepHead(), rounds=2, clients_per_round=2)
    resumed = fit(tmp_path, KeepHead(), rounds=4, clients_per_round=2, ckpt_path=str(half.run_dir))
    assert resumed.ledger.down == kept.ledger.down
