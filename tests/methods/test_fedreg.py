"""FedReg against its paper: its moved batches, its rejected directions, and the data that it refuses."""

from functools import partial

import pytest
import torch
from contracts.case import Case
from harness import NUM_FEATURES, ODD_BATCHES, BatchNormFeatures, assert_close, classifier, distance, train
from reference import fedreg

from flcog.callbacks.fedreg import FedReg, climb, reject
from flcog.functional.apply import Apply
from flcog.functional.model_function import ModelFunction
from flcog.method import Batch

pytestmark = pytest.mark.filterwarnings("error")


CASES: dict[str, Case] = {
    "FedReg": Case(
        FedReg(gamma=0.6, eta_s=0.2, eta_p=0.02, steps=2),
        partial(fedreg.run, gamma=0.6, eta_s=0.2, eta_p=0.02, steps=2),
        data=ODD_BATCHES,
        options={"local_epochs": 1},
    ),
}


def test_fedreg_climbs_from_a_copy_of_the_batch_and_stays_in_its_range() -> None:
    model = ModelFunction(classifier(network=BatchNormFeatures).double())
    inputs, targets = torch.randn(6, NUM_FEATURES, dtype=torch.float64), torch.randint(3, (6,))
    inputs[4:] *= 5
    batch = Batch(inputs.clone(), targets, torch.tensor([1.0, 1, 1, 1, 0, 0]))
    frozen = Apply(model, model.buffers).frozen(model.params, model.buffers)
    moved, less = climb(frozen, batch, etas=(0.3, 0.1), steps=4)
    assert torch.equal(batch.inputs, inputs)
    real, made = inputs[:4], moved.inputs[:4]
    assert (made - real).abs().max() > 0.5
    assert made.min() >= real.min() and made.max() <= real.max()
    for eta, climbed in ((0.3, moved), (0.1, less)):
        (alone,) = climb(frozen, Batch(real, targets[:4]), etas=(eta,), steps=4)
        torch.testing.assert_close(climbed.inputs[:4], alone.inputs)
    losses = [frozen.loss(Batch(x, targets[:4])) for x in (real, made)]
    assert losses[1] > losses[0]


def test_reject_removes_what_is_along_and_keeps_what_is_against() -> None:
    d, g = ({"a": torch.randn(3), "b": torch.randn(2, 2)} for _ in range(2))
    inner = sum((d[name] * g[name]).sum() for name in d)
    along = d if inner > 0 else {name: -value for name, value in d.items()}
    against = {name: -value for name, value in along.items()}
    assert sum((reject(along, g)[name] * g[name]).sum() for name in g) == pytest.approx(0, abs=1e-5)
    assert distance(reject(against, g), against) == 0
    assert distance(reject(along, {name: torch.zeros_like(value) for name, value in g.items()}), along) == 0


@pytest.mark.slow
def test_fedreg_leaves_batchnorm_to_the_real_batches() -> None:
    method = FedReg(gamma=0.7, eta_s=0.2, eta_p=0.02, steps=2)
    loop, vmap, plain = (
        train(*methods, module=classifier(network=BatchNormFeatures), executor=executor, rounds=2)
        for methods, executor in (([method], "loop"), ([method], "vmap"), ([], "loop"))
    )
    assert_close(vmap.state, loop.state, 1e-11)
    steps = "body.1.num_batches_tracked"
    assert loop.state[steps] == plain.state[steps] == 8
