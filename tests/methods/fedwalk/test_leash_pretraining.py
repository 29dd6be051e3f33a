"""Pre-training on the leash, which FedWalk's paper compares with FedWalk."""

import copy
from typing import Any

import pytest
import torch
from harness import (
    NUM_CLASSES,
    SGD,
    BatchNormFeatures,
    TinyData,
    assert_close,
    classifier,
    distance,
    make_trainer,
    problem_of,
    train,
)

from flcog.callbacks.fedwalk.leash_pretraining import LeashPretraining
from flcog.schedules import Piecewise
from methods.fedwalk.leashes import pretraining, tiny_leash

pytestmark = pytest.mark.filterwarnings("error")


@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("mode", ["eval", "train"])
def test_pretraining_is_leash_steps_and_then_fedavg(mode: Any, shared: bool) -> None:
    leash = tiny_leash(NUM_CLASSES if shared else 5)
    module = classifier(network=BatchNormFeatures).double()
    before = copy.deepcopy(module)
    method = LeashPretraining(
        leash=leash, num_steps=7, lr=Piecewise([0.3, 0.1], [3]), head="shared" if shared else "own", mode=mode, seed=0
    )
    trainer = train(method, module=module)
    assert distance(dict(module.state_dict()), dict(before.state_dict())) == 0
    run = pretraining(5 - 2 * shared, shared, lr=[0.3] * 3 + [0.1] * 4, mode=mode)
    assert_close(trainer.state, run(problem_of(trainer, before, SGD)))


def test_pretrainings_seed_draws_its_head_and_its_batches() -> None:
    trainer = train(LeashPretraining(leash=tiny_leash(), num_steps=7, lr=0.2, seed=3), module=classifier().double())
    run = pretraining(5, False, lr=[0.2] * 7, seed=3)
    assert_close(trainer.state, run(problem_of(trainer, classifier().double(), SGD)))


def test_by_default_pretrainings_seed_is_the_runs() -> None:
    def start(seed: int, elsewhere: int) -> Any:
        torch.manual_seed(elsewhere)
        trainer = make_trainer(None, LeashPretraining(leash=tiny_leash(), num_steps=3, lr=0.2), seed=seed)
        trainer.prepare(module, TinyData())
        return trainer.state

    module = classifier()
    assert distance(start(1, elsewhere=0), start(1, elsewhere=1)) == 0
    assert distance(start(1, elsewhere=0), start(2, elsewhere=0)) > 1e-4


def test_pretraining_sends_nothing() -> None:
    plain, trained = (train(*callbacks, rounds=1) for callbacks in ([], [LeashPretraining(leash=tiny_leash(), num_steps=3)]))
    assert trained.rows[0]["comm/total_bytes"] == plain.rows[0]["comm/total_bytes"]
    assert distance(trained.state, plain.state) > 1e-3
