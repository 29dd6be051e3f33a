"""FFA-LoRA against its paper, and its purpose: the mean of the adapters is the adapter of the mean."""

import torch
from contracts.case import Case
from harness import adapted, train
from reference import ffa_lora

from flcog.callbacks import FFALoRA

CASES: dict[str, Case] = {
    # The model is changed before round 1 for any start_round: like_fedavg means like FedAvg on the same frozen model.
    "FFALoRA": Case(FFALoRA(), ffa_lora.run, module=adapted, like_fedavg=True),
}


def test_the_mean_of_the_changes_is_the_change_of_the_mean() -> None:
    trainer = train(FFALoRA(), module=adapted(), rounds=1)
    plain = train(module=adapted(), rounds=1)
    assert "hidden.0.A" not in trainer.state and "hidden.0.A" in plain.state
    aggregates = [run.collect(round=0)[0] for run in (trainer, plain)]
    a, b = "model.hidden.0.A", "model.hidden.0.B"
    ours, theirs = (aggregate.mean("delta") for aggregate in aggregates)
    assert a not in ours and theirs[a].norm() > 1e-3
    frozen = trainer.run.model.constants[a]
    torch.testing.assert_close((trainer.params[b] + ours[b]) @ frozen, trainer.params[b] @ frozen + ours[b] @ frozen)


def test_half_of_the_adapters_travel() -> None:
    ledgers = [train(*methods, module=adapted(), rounds=1).ledger.up["model"] for methods in ((), (FFALoRA(),))]
    assert ledgers[0] - ledgers[1] == 5 * 8 * 4 * 6  # five clients' float64 matrices A of rank 4
