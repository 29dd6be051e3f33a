"""The residuals of error feedback, which are part of a client's state: lost uploads, methods that begin later, and resumed runs."""

from pathlib import Path

import pytest
import torch
from engine.test_lost_replies import LOST, Tolerant, lose, prepared
from harness import fit, train
from torch import Tensor

from contracts.registry import client_states
from flcog.callbacks import SCAFFOLD, TopK


@pytest.mark.parametrize("executor", ["loop", "vmap"])
def test_a_lost_upload_leaves_the_residual_as_it_was(executor: str) -> None:
    trainer = prepared(lose, Tolerant(), TopK(fraction=0.3, error_feedback=True), executor=executor)
    before = dict[str, Tensor]()
    for round, lost in LOST.items():
        trainer.train_round()
        after = client_states(trainer)
        kept = {client: {name for name in after if name.startswith(f"[{client}]")} for client in range(8)}
        for client, names in kept.items():
            if client in lost:
                assert all(torch.equal(after[name], before[name]) for name in names) and bool(names) == (round > 0)
            else:
                assert names and not any(name in before and torch.equal(after[name], before[name]) for name in names)
        before = after


def test_residuals_exist_for_clients_that_took_part_and_for_all_large_tensors() -> None:
    trainer = train(SCAFFOLD(), TopK(fraction=0.3, error_feedback=True), rounds=1)
    slots = trainer.states.by_client
    assert sorted(slots) == sorted(trainer.run.clients.clients) and len(slots) == 5
    sizes = sorted(value.numel() for value in slots[min(slots)]["TopK"].values())
    assert sizes == [24, 24, 48, 48], "the change of the model and SCAFFOLD's message, without biases"
    assert not any("TopK" in kept for kept in train(SCAFFOLD(), TopK(fraction=0.3), rounds=1).states.by_client.values())


@pytest.mark.parametrize("executor", ["loop", "vmap"])
def test_messages_that_begin_later_join_the_residual(executor: str, tmp_path: Path) -> None:
    """Clients without a residual, or without SCAFFOLD's message in it, train beside the others. A resumed run repeats this."""
    methods = SCAFFOLD(start_round=2), TopK(fraction=0.3, error_feedback=True)
    whole = fit(tmp_path, *methods, rounds=4, executor=executor, clients_per_round=4)
    half = fit(tmp_path, *methods, rounds=3, executor=executor, clients_per_round=4)
    resumed = fit(tmp_path, *methods, rounds=4, executor=executor, clients_per_round=4, ckpt_path=str(half.run_dir))
    counts = {len(kept["TopK"]) for kept in whole.states.by_client.values()}
    assert counts <= {2, 4} and 4 in counts
    states = [client_states(trainer) for trainer in (resumed, whole)]
    assert states[0].keys() == states[1].keys() and all(torch.equal(value, states[1][name]) for name, value in states[0].items())
    assert all(torch.equal(value, whole.state[name]) for name, value in resumed.state.items())
