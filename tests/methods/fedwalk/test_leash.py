"""Leash steps: the mode of the model, and the samples of each step."""

from functools import partial
from typing import Any

import pytest
import torch
from harness import SGD, BatchNormFeatures, assert_close, classifier, distance, problem_of, train
from torch import Tensor

from flcog.callbacks.fedwalk.fedwalk import FedWalk
from flcog.callbacks.fedwalk.leash import leash_rows
from flcog.callbacks.fedwalk.leash_pretraining import LeashPretraining
from flcog.data import Augment
from flcog.datamodules import ArrayData
from methods.fedwalk.leashes import ALWAYS, NoisyNet, columns, reference, tiny_leash

pytestmark = pytest.mark.filterwarnings("error")


@pytest.mark.parametrize("executor", ["loop", "vmap"])
@pytest.mark.parametrize("mode", ["eval", "train"])
def test_batchnorm(mode: Any, executor: str) -> None:
    module, trace = partial(classifier, network=BatchNormFeatures), list[Any]()
    trainer = train(FedWalk(leash=tiny_leash(), tau=ALWAYS, num_steps=2, mode=mode), module=module(), executor=executor)
    run = reference(tiny_leash, tau=ALWAYS, steps=2, mode=mode)
    assert_close(trainer.state, run(problem_of(trainer, module(), SGD), trace=trace))
    # A client's own loss is computed by its model in evaluation mode, with its own statistics.
    for ours, theirs in zip(columns(trainer.rows), trace, strict=True):
        assert ours == pytest.approx(theirs, rel=1e-9)


def test_leash_steps_in_evaluation_mode_leave_the_statistics_alone() -> None:
    def statistics(*callbacks: Any) -> dict[str, Tensor]:
        return train(*callbacks, module=classifier(network=BatchNormFeatures), rounds=1).buffers

    plain, still, moved = (
        statistics(*callbacks) for callbacks in ([], *([FedWalk(leash=tiny_leash(), mode=mode)] for mode in ("eval", "train")))
    )
    assert distance(still, plain) == 0
    assert distance({n: v for n, v in moved.items() if "mean" in n}, {n: v for n, v in plain.items() if "mean" in n}) > 1e-3


def test_dropout_of_a_leash_step_is_a_function_of_the_step() -> None:
    def run(mode: str, **options: Any) -> Any:
        return train(
            FedWalk(leash=tiny_leash(), tau=ALWAYS, num_steps=2, mode=mode), module=classifier(network=NoisyNet), **options
        )

    drawn = run("train")
    torch.manual_seed(5)
    assert distance(run("train").state, drawn.state) == 0
    assert distance(run("eval").state, drawn.state) > 1e-3


def test_leash_steps_leave_torchs_stream_as_it_was() -> None:
    module = classifier(network=NoisyNet)
    before = torch.get_rng_state()
    LeashPretraining(leash=tiny_leash(), num_steps=2, mode="train", seed=0).configure_model(module)
    assert torch.equal(torch.get_rng_state(), before)


def test_a_shared_head_needs_the_federations_labels() -> None:
    with pytest.raises(ValueError, match=r"the model has 3 outputs .* needs 5 .* use head=own"):
        train(FedWalk(leash=tiny_leash(5), head="shared"), rounds=1)


def test_leash_steps_pass_over_all_samples_in_turn() -> None:
    passes = [torch.cat([rows for _, rows in leash_rows(26, 4, range(6 * k, 6 * k + 6), seed=1)]) for k in range(3)]
    assert all(len(set(rows.tolist())) == 24 for rows in passes)
    assert not torch.equal(passes[0], passes[1])
    whole = {step: rows.tolist() for step, rows in leash_rows(26, 4, range(14), seed=1)}
    pieces = [{step: rows.tolist() for step, rows in leash_rows(26, 4, part, seed=1)} for part in (range(5), range(5, 14))]
    assert pieces[0] | pieces[1] == whole
    assert [len(rows) for _, rows in leash_rows(3, 64, range(2), seed=0)] == [3, 3]


class Shaken(ArrayData):
    """Data whose augmentation adds a number that depends on the sample's key."""

    def augment(self) -> Augment | None:
        return lambda inputs, keys: inputs + torch.from_numpy(keys % 7).to(inputs)[:, None]


def test_augmentation_is_for_leash_steps_alone() -> None:
    arrays = tiny_leash().federation.train
    shaken = Shaken(train_inputs=arrays.inputs, train_targets=arrays.targets, num_clients=1, batch_size=4)
    plain, moved = (train(FedWalk(leash=leash, tau=ALWAYS), rounds=1) for leash in (tiny_leash(), shaken))
    assert distance(moved.state, plain.state) > 1e-3
    still = [train(FedWalk(leash=leash, tau=ALWAYS, lr=1e-15), rounds=1).rows[0] for leash in (tiny_leash(), shaken)]
    assert still[1]["fedwalk/leash_loss"] == pytest.approx(still[0]["fedwalk/leash_loss"], rel=1e-9)
