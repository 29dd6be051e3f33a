"""FedWalk agrees with its paper: its two losses, its schedules, and all forms of the leash."""

import math
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from contracts.case import Case
from harness import MOMENTUM, NUM_CLASSES, RAGGED, SGD, BatchNormFeatures, assert_close, classifier, distance, problem_of, train
from torch import Tensor

import flcog
from flcog.callbacks import EqualWeights, FedAvgM
from flcog.callbacks.fedwalk.fedwalk import FedWalk, log_loss_ratio
from flcog.callbacks.fedwalk.leash_pretraining import LeashPretraining
from flcog.method import Cohort, Messages, Method, Params, Slot
from flcog.schedules import Piecewise
from methods.fedwalk.leashes import ALWAYS, NEVER, WIDTH, columns, pretraining, reference, tiny_leash

pytestmark = pytest.mark.filterwarnings("error")


def double_classifier(*arguments: Any) -> flcog.ClientModule:
    """A classifier in float64, because pre-training keeps the module's precision."""
    return classifier(*arguments).double()


CASES: dict[str, Case] = {
    "FedWalk": Case(
        FedWalk(leash=tiny_leash(), tau=-1.4, num_steps=3, lr=0.4, beta=0.5),
        reference(tiny_leash, tau=-1.4, steps=3, lr=[0.4] * 3, beta=0.5),
        neutral=FedWalk(leash=tiny_leash(), tau=-float("inf")),
        options=RAGGED,
    ),
    "FedWalk-shared": Case(
        FedWalk(leash=tiny_leash(NUM_CLASSES), tau=-1.1, bias_correction=True, head="shared"),
        reference(partial(tiny_leash, NUM_CLASSES), shared=True, tau=-1.1, correction=True),
        neutral=FedWalk(leash=tiny_leash(NUM_CLASSES), tau=-float("inf"), head="shared"),
    ),
    "LeashPretraining": Case(
        LeashPretraining(leash=tiny_leash(), num_steps=7, lr=Piecewise([0.3, 0.1], [3]), seed=0),
        pretraining(5, shared=False, lr=[0.3] * 3 + [0.1] * 4),
        module=double_classifier,
    ),
}


def binary(outputs: Tensor, targets: Tensor) -> Tensor:
    return F.binary_cross_entropy_with_logits(outputs, targets.double())


def square(outputs: Tensor, targets: Tensor) -> Tensor:
    return F.mse_loss(outputs[:, 0], targets.double())


FORMS: dict[str, tuple[dict[str, Any], Any]] = {
    "tau between the losses": (
        {"tau": -1.4, "num_steps": 3, "lr": 0.4, "beta": 0.5},
        reference(tiny_leash, tau=-1.4, steps=3, lr=[0.4] * 5, beta=0.5),
    ),
    "bias correction": (
        {"tau": -1.4, "bias_correction": True, "beta": 0.8},
        reference(tiny_leash, tau=-1.4, correction=True, beta=0.8),
    ),
    "schedules": (
        {"tau": Piecewise([ALWAYS, NEVER, 3.0], [1, 3]), "lr": Piecewise([0.5, 0.05], [2]), "num_steps": 2},
        reference(tiny_leash, tau=[ALWAYS, NEVER, NEVER, 3.0, 3.0], lr=[0.5, 0.5, 0.05, 0.05, 0.05], steps=2),
    ),
    "shared head": (
        {"leash": tiny_leash(NUM_CLASSES), "head": "shared", "tau": ALWAYS},
        reference(partial(tiny_leash, NUM_CLASSES), shared=True, tau=ALWAYS),
    ),
    "multilabel": (
        {"leash": tiny_leash(4, "multilabel"), "tau": ALWAYS},
        reference(partial(tiny_leash, 4, "multilabel"), tau=ALWAYS, loss=binary),
    ),
    "regression": (
        {"leash": tiny_leash(4, "regression"), "tau": ALWAYS},
        reference(partial(tiny_leash, 4, "regression"), tau=ALWAYS, loss=square),
    ),
}


@pytest.mark.parametrize(("arguments", "run"), FORMS.values(), ids=FORMS.keys())
def test_against_the_paper(arguments: dict[str, Any], run: Any) -> None:
    trace: list[Any] = []
    trainer = train(FedWalk(**({"leash": tiny_leash()} | arguments)), rounds=5)
    assert_close(trainer.state, run(problem_of(trainer, classifier(), SGD), trace=trace))
    for ours, theirs in zip(columns(trainer.rows), trace, strict=True):
        assert ours == pytest.approx(theirs, rel=1e-9)


def test_some_of_those_runs_hold_the_leash_in_some_rounds_only() -> None:
    for name in ("tau between the losses", "bias correction", "schedules"):
        trainer = train(FedWalk(**({"leash": tiny_leash()} | FORMS[name][0])), rounds=5)
        assert {row["fedwalk/applied"] for row in trainer.rows} == {0.0, 1.0}, (name, columns(trainer.rows))


def test_plain_means_with_equal_weights() -> None:
    trace: list[Any] = []
    method = FedWalk(leash=tiny_leash(), tau=ALWAYS, lr=0.1)
    trainer = train(EqualWeights(), method, module=classifier(MOMENTUM), local_epochs=2)
    run = reference(tiny_leash, tau=ALWAYS, lr=[0.1] * 3, uniform=True)
    assert_close(trainer.state, run(problem_of(trainer, classifier(MOMENTUM), MOMENTUM), trace=trace))
    assert [row["fedwalk/client_loss"] for row in trainer.rows] == pytest.approx([row["fedwalk/client_loss"] for row in trace])


def test_by_default_the_leashs_step_is_the_clients_of_that_round() -> None:
    """gamma_t = eta_t for any schedule of the clients."""

    def scheduled(lr: Any) -> Any:
        module = flcog.Classifier(classifier().model, optimizer=SGD, lr_schedule=Piecewise([1.0, 0.3, 0.2], [1, 2]))
        return train(FedWalk(leash=tiny_leash(), tau=ALWAYS, lr=lr), module=module).state

    assert_close(scheduled(None), scheduled(Piecewise([0.1, 0.03, 0.02], [1, 2])), 1e-12)
    assert distance(scheduled(None), scheduled(0.1)) > 1e-4


def test_a_leash_never_held_is_fedavg_to_the_bit() -> None:
    plain = train(rounds=2)
    for callbacks in ([FedWalk(leash=tiny_leash(), tau=NEVER)], [FedWalk(leash=tiny_leash(), start_round=2)]):
        trainer = train(*callbacks, rounds=2)
        assert all(torch.equal(trainer.run.params[name], value) for name, value in plain.params.items())
    assert (
        distance(train(FedAvgM(), rounds=2).state, train(FedAvgM(), FedWalk(leash=tiny_leash(), tau=NEVER), rounds=2).state) == 0
    )
    assert distance(train(FedWalk(leash=tiny_leash(), tau=ALWAYS), rounds=2).state, plain.state) > 1e-3


def test_a_loss_that_is_no_number_does_not_leash() -> None:
    assert math.isnan(log_loss_ratio(0.0, 0.0)) and math.isnan(log_loss_ratio(math.nan, 1.0))
    assert log_loss_ratio(0.0, 1.0) == -math.inf and log_loss_ratio(1.0, 0.0) == math.inf
    for ratio in (log_loss_ratio(0.0, 0.0), log_loss_ratio(1.0, 0.0)):
        assert not ratio < ALWAYS


def test_the_head_stays_on_the_server_and_a_client_sends_one_number() -> None:
    plain, leashed = (train(*callbacks, rounds=2) for callbacks in ([], [FedWalk(leash=tiny_leash(), tau=ALWAYS)]))
    assert leashed.params.keys() == plain.params.keys()
    assert leashed.servers["FedWalk"]["head"]["weight"].shape == (5, WIDTH)
    for before, after in zip(plain.rows, leashed.rows, strict=True):
        assert after["comm/down_bytes"] == before["comm/down_bytes"]
        assert after["comm/up_bytes"] == before["comm/up_bytes"] + 5 * 8
    # The leash's loss does not use the model's own head: in one round, the leash moves only the features.
    once, plain_once = train(FedWalk(leash=tiny_leash(), tau=ALWAYS), rounds=1), train(rounds=1)
    moved = {name for name, value in once.params.items() if not torch.equal(value, plain_once.params[name])}
    assert moved and not any("head" in name for name in moved) and moved < once.params.keys()


@dataclass(frozen=True)
class Watch(Method):
    """Listed before FedWalk, it records the server's buffers before the leash steps, with a copy of their values."""

    seen: list[tuple[Params, Params]] = field(default_factory=list)

    def server_step(self, server: Slot, params: Params, delta: Params, messages: Messages, cohort: Cohort) -> tuple[Params, Slot]:
        self.seen.append((cohort.buffers, {name: value.clone() for name, value in cohort.buffers.items()}))
        return delta, server


def test_the_leash_returns_new_statistics_and_leaves_the_others_alone() -> None:
    watch = Watch()
    trainer = train(
        watch, FedWalk(leash=tiny_leash(), tau=math.inf, mode="train"), module=classifier(network=BatchNormFeatures), rounds=1
    )
    ((buffers, before),) = watch.seen
    assert all(torch.equal(value, before[name]) for name, value in buffers.items())
    assert not torch.equal(trainer.run.buffers["model.body.1.running_mean"], before["model.body.1.running_mean"])
