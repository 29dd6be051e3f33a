"""Counts, shares and losses are as exact in a bfloat16 run as in any other: only the model and tensors of its size are rounded."""

import copy
from dataclasses import dataclass, field
from functools import partial

import pytest
import torch
from harness import classifier, train
from torch import Tensor

from contracts.case import Case
from contracts.registry import CASES
from flcog.callbacks.parts.noise import normal, uniform
from flcog.core.precision import default_dtype
from flcog.method import Cohort, Context, Messages, Method, Params, Slot, Upload

EXECUTORS = pytest.mark.parametrize("executor", ["loop", "vmap"])


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


@EXECUTORS
def test_means_of_messages_are_weighed_exactly(executor: str) -> None:
    seen = Seen()
    train(seen, precision="bf16-true", executor=executor, rounds=1, local_steps=1)
    cohort = seen.cohorts[0]
    expected = torch.stack([(cohort.weights * value).sum() for value in (cohort.num_samples, cohort.weights)])
    torch.testing.assert_close(seen.means[0], expected, rtol=1e-6, atol=0)


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
