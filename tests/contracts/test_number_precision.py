"""Counts, shares and losses are as exact in a bfloat16 run as in any other: only the model and tensors of its size are rounded."""

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial

import pytest
import torch
from harness import TinyData, classifier, distance, train
from torch import Tensor

from contracts.case import Case
from contracts.registry import CASES
from flcog.callbacks import FedCOG, FedDisco, FedGen, FedNova, Stragglers
from flcog.callbacks.parts.noise import normal, uniform
from flcog.method import ClientView, Cohort, Context, Messages, Method, Optimisation, Params, Slot, Upload
from flcog.metrics import multilabel_scores

EXECUTORS = pytest.mark.parametrize("executor", ["loop", "vmap"])


@contextmanager
def default_dtype(dtype: torch.dtype) -> Iterator[None]:
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


@dataclass(frozen=True)
class Seen(Method):
    """Listed last, it records the final weights, and the means of two numbers that every client sends."""

    cohorts: list[Cohort] = field(default_factory=list)
    means: list[Tensor] = field(default_factory=list)

    def weights(self, weights: Tensor, messages: object, cohort: Cohort) -> Tensor:
        self.cohorts.append(copy.copy(cohort))
        return weights

    def finish_client(self, delta: Params, params: Params, ctx: Context) -> Upload:
        sent = torch.as_tensor(ctx.data.num_samples, dtype=torch.float32)
        return Upload(delta, ctx.state, mean={"size": sent, "weight": torch.as_tensor(ctx.data.weight, dtype=torch.float32)})

    def server_step(self, server: Slot, params: Params, delta: Params, messages: Messages, cohort: Cohort) -> tuple[Params, Slot]:
        self.means.append(torch.stack([messages.mean["size"], messages.mean["weight"]]).double())
        return delta, server


WEIGHING = {name: case for name, case in CASES.items() if case.method.overrides("weights")}


@pytest.mark.parametrize("case", WEIGHING.values(), ids=WEIGHING.keys())
def test_weights_and_messages_are_those_of_a_float64_run(case: Case) -> None:
    seen, messages = {}, {}
    for precision in ("64-true", "bf16-true"):
        seen[precision] = Seen()
        trainer = train(case.method, seen[precision], data=case.data(), rounds=1, local_steps=1, precision=precision)
        messages[precision] = trainer.run.server.messages
    cohort, exact = (seen[precision].cohorts[0] for precision in ("bf16-true", "64-true"))
    assert cohort.weights.dtype == cohort.num_samples.dtype == torch.float64
    assert torch.equal(cohort.weights, exact.weights)
    assert messages["bf16-true"] == messages["64-true"]


@pytest.mark.parametrize("precision", ["32-true", "bf16-true"])
@pytest.mark.parametrize("disco", [FedDisco(a=0.0, b=0.0), FedDisco(a=0.0, b=0.0, metric="l1", target="global")], ids=repr)
def test_feddisco_without_its_terms_is_fedavg_to_the_last_bit(disco: FedDisco, precision: str) -> None:
    runs = [train(*methods, precision=precision, rounds=2, local_steps=2) for methods in ((), (disco,))]
    assert distance(runs[0].params, runs[1].params) == 0


@EXECUTORS
def test_means_of_messages_are_weighed_exactly(executor: str) -> None:
    seen = Seen()
    train(seen, precision="bf16-true", executor=executor, rounds=1, local_steps=1)
    cohort = seen.cohorts[0]
    expected = torch.stack([(cohort.weights * value).sum() for value in (cohort.num_samples, cohort.weights)])
    torch.testing.assert_close(seen.means[0], expected, rtol=1e-6, atol=0)


@EXECUTORS
@pytest.mark.parametrize("momentum", [0.0, 0.9])
@pytest.mark.slow
def test_steps_beyond_256_are_counted(executor: str, momentum: float, monkeypatch: pytest.MonkeyPatch) -> None:
    sent = []
    step = FedNova.server_step

    def spy(method: FedNova, server: Slot, params: Params, delta: Params, messages: Messages, cohort: Cohort) -> object:
        sent.append(float(messages.mean["steps"]))
        return step(method, server, params, delta, messages, cohort)

    monkeypatch.setattr(FedNova, "server_step", spy)
    module = classifier(partial(torch.optim.SGD, lr=1e-4, momentum=momentum))
    methods = (Stragglers(min_steps=301, max_steps=301), FedNova())
    train(*methods, module=module, precision="bf16-true", executor=executor, rounds=1, clients_per_round=2)
    assert sent == [pytest.approx(Optimisation(1e-4, momentum, 0.0).effective_steps(301), rel=1e-6)]


@EXECUTORS
@pytest.mark.slow
def test_the_loss_of_many_steps_is_their_mean(executor: str) -> None:
    """In bfloat16, a sum of losses would stop growing after 256 steps."""
    options = {"executor": executor, "rounds": 1, "local_steps": 384, "clients_per_round": 2}
    half, single = (
        train(module=classifier(partial(torch.optim.SGD, lr=1e-9)), precision=precision, **options).rows[0]["train/loss"]
        for precision in ("bf16-true", "32-true")
    )
    assert half == pytest.approx(single, rel=0.01)


def test_drawn_values_stay_below_one() -> None:
    """In bfloat16, one value in 500 would round up to 1, and its logarithm would make the noise infinite."""
    with default_dtype(torch.bfloat16):
        values, noise = uniform(torch.tensor(3), 0, (5000,)), normal(torch.tensor(3), 0, (5000,))
    assert values.max() < 1
    assert torch.isfinite(noise).all()
    assert torch.equal(values, uniform(torch.tensor(3), 0, (5000,)))


@EXECUTORS
def test_fedgen_draws_labels_that_exist(executor: str) -> None:
    fedgen = FedGen(batch_size=400, noise_dim=3, hidden=5, server_steps=1)
    trainer = train(fedgen, precision="bf16-true", executor=executor, rounds=2, local_steps=2, clients_per_round=2)
    assert all(torch.isfinite(value).all() for value in trainer.run.params.values())


def test_what_clients_draw_is_rounded_to_float32_at_most() -> None:
    view = ClientView.of(TinyData().federation, 3, 1)
    with default_dtype(torch.bfloat16):
        share = FedCOG(num_samples=4, lambda_kd="balance", start_round=0).draw(torch.Generator(), view)["w"]
        guidance = FedGen(decay=0.9).draw(torch.Generator(), view)
    counts = view.label_counts
    missing = (counts.max() - counts).sum()
    assert float(share) == pytest.approx(float(missing / (counts.sum() + missing)), rel=1e-6)
    assert float(guidance["scale"]) == pytest.approx(0.9, rel=1e-6)
    assert guidance["counts"].dtype == torch.float32


def test_scores_of_labels_do_not_depend_on_the_runs_precision() -> None:
    draws = torch.Generator().manual_seed(0)
    outputs = torch.randn(1000, 3, generator=draws)
    targets = (torch.randn(1000, 3, generator=draws) + outputs > 1).float()
    expected = multilabel_scores(outputs, targets)
    with default_dtype(torch.bfloat16):
        scores = multilabel_scores(outputs, targets)
    assert {name: float(value) for name, value in scores.items()} == {name: float(value) for name, value in expected.items()}
