"""Methods as a user would write them, compared with their papers in plain torch under every executor."""

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from harness import RAGGED, SGD, BatchNormMLP, TinyData, assert_close, classifier, problem_of, train
from reference.common import Problem, State, average, shares
from reference.common import train as train_client
from torch import Tensor

import flcog
from flcog import Aggregator, Batch, Context, Gradient, GradientFunction, Method, ParameterMask, Params, Slot, Upload
from flcog.functional.apply import masked_mean

pytestmark = pytest.mark.filterwarnings("error")

EXECUTORS: dict[str, dict[str, Any]] = {
    "loop": {"executor": "loop", "chunk_size": 1},
    "threads": {"executor": "loop", "chunk_size": 2},
    "vmap": {"executor": "vmap"},
}
everywhere = pytest.mark.parametrize("options", EXECUTORS.values(), ids=EXECUTORS.keys())


@dataclass(frozen=True)
class FedLC(Method):
    """Zhang et al., Federated Learning with Label Distribution Skew via Logits Calibration, 2022, https://arxiv.org/abs/2209.00189."""

    tau: float = 0.5
    tasks = ("classification",)

    def draw(self, rng: torch.Generator, client: flcog.ClientView) -> Slot:
        return {"counts": client.label_counts.to(torch.get_default_dtype())}

    def loss(self, apply: flcog.Apply, params: Params, batch: Batch, task_loss: Tensor, ctx: Context) -> Tensor:
        margins = self.tau * ctx.draws["counts"].clamp(min=1e-8) ** -0.25
        losses = F.cross_entropy(apply(params, batch.inputs) - margins, batch.targets, reduction="none")
        return masked_mean(losses, batch.mask) - task_loss


def fedlc(problem: Problem, tau: float) -> State:
    model = copy.deepcopy(problem.model)
    for clients in problem.rounds:
        locals_ = []
        for client in clients:
            counts = torch.bincount(client.labels, minlength=3).double().clamp(min=1e-8)
            own = copy.copy(problem)
            own.loss = lambda outputs, targets, n=counts: F.cross_entropy(outputs - tau * n**-0.25, targets)
            locals_.append(train_client(own, model, client))
        model.load_state_dict(average(locals_, shares(clients)))
    return model.state_dict()


@everywhere
def test_fedlc(options: dict[str, Any]) -> None:
    trainer = train(FedLC(), **options, **RAGGED)
    assert_close(trainer.state, fedlc(problem_of(trainer, classifier(), SGD), FedLC().tau))


@dataclass(frozen=True)
class Kept(Method):
    """Returns the model's own tensors, its buffers and views of them as state and as inputs, in the hooks that may return tensors."""

    def start(self, apply: flcog.Apply, params: Params, ctx: Context) -> tuple[Params, Slot]:
        return params, {"buffers": ctx.buffers, "params": params}

    def wrap_gradient(self, gradient: GradientFunction, ctx: Context) -> GradientFunction:
        def call(params: Params, batch: Batch) -> Gradient:
            steps = list(ctx.state.get("steps", [])) if ctx.state else []
            return gradient(params, batch)._replace(state={"steps": [*steps, {n: v[:1] for n, v in params.items()}]})

        return call

    def finish_client(self, delta: Params, params: Params, ctx: Context) -> Upload:
        first = {name: value[:1] for name, value in ctx.received.params.items()}
        off = sum((ctx.state["steps"][0][name] - value).abs().sum() for name, value in first.items())
        moved = sum(
            (ctx.inputs["buffers"][name].double() - value.double()).abs().sum() for name, value in ctx.received.buffers.items()
        )
        return Upload(delta, {}, mean={"off": off, "moved": moved})

    def server_step(self, server: Slot, params: Params, delta: Params, messages: Any, cohort: Any) -> tuple[Params, Slot]:
        assert float(messages.mean["off"]) == 0 and float(messages.mean["moved"]) == 0
        return delta, server


@everywhere
def test_returned_tensors_stay_as_they_were(options: dict[str, Any]) -> None:
    train(Kept(), module=classifier(network=BatchNormMLP), **options)


@dataclass(frozen=True)
class Median(Aggregator):
    """The median of all clients' changes, value by value."""

    def init(self, like: Any) -> list[Any]:
        return []

    def add(self, state: list[Any], values: Any, weights: Tensor) -> list[Any]:
        return [*state, values]

    def merge(self, states: Sequence[list[Any]]) -> list[Any]:
        return [values for state in states for values in state]

    def finish(self, state: list[Any]) -> Any:
        return torch.utils._pytree.tree_map(lambda *values: torch.cat(values).median(0).values, *state)


@everywhere
def test_an_aggregator_replaces_the_mean(options: dict[str, Any]) -> None:
    trainer = train(Median(), rounds=1, clients_per_round=5, **options)
    problem = problem_of(trainer, classifier(), SGD)
    ends = [train_client(problem, problem.model, client).state_dict() for client in problem.rounds[0]]
    assert_close(trainer.state, {n: torch.stack([end[n] for end in ends]).median(0).values for n in ends[0]})


def test_a_mask_alone_starts_each_round_from_the_global_value() -> None:
    """As the docstring of ``ParameterMask`` says, a trained value is lost if it is neither sent nor kept in the client's state."""

    @dataclass(frozen=True)
    class Masked(ParameterMask):
        def mask(self, params: Params, client: int) -> Params:
            return {name: torch.tensor(False) for name in params if "head" in name}

        def finish_client(self, delta: Params, params: Params, ctx: Context) -> Upload:
            trained = sum(value.abs().sum() for name, value in delta.items() if "head" in name)
            return Upload(delta, ctx.state, mean={"trained": trained})

        def server_step(self, server: Slot, params: Params, delta: Params, messages: Any, cohort: Any) -> tuple[Params, Slot]:
            assert float(messages.mean["trained"]) > 0
            return delta, server

    trainer = train(Masked(), data=TinyData())
    initial = classifier().double().state_dict()
    assert all(torch.equal(value, initial[name]) == ("head" in name) for name, value in trainer.params.items())


@dataclass(frozen=True)
class CountsRounds(Method):
    """Keeps Python numbers in a client's state and draws one; a client's change counts 1.5 times as much in each later round."""

    def init_client(self, params: Params, buffers: Params, client: flcog.ClientView) -> Slot:
        return {"rounds": 0, "factor": 1.0}

    def draw(self, rng: torch.Generator, client: flcog.ClientView) -> Slot:
        return {"half": 0.5}

    def finish_client(self, delta: Params, params: Params, ctx: Context) -> Upload:
        factor = 1 + ctx.draws["half"] * ctx.state["rounds"]
        return Upload(
            {name: value * factor for name, value in delta.items()}, {"rounds": ctx.state["rounds"] + 1, "factor": factor}
        )


@everywhere
def test_python_numbers_in_states_and_draws(options: dict[str, Any]) -> None:
    trainer = train(CountsRounds(), rounds=3, **options)
    states = [kept["CountsRounds"] for kept in trainer.run.clients.by_client.values()]
    assert {float(state["rounds"]) for state in states} == {1, 2, 3}
    assert all(float(state["factor"]) == 1 + 0.5 * (float(state["rounds"]) - 1) for state in states)


@everywhere
def test_a_state_needs_init_client(options: dict[str, Any]) -> None:
    class Forgets(Method):
        def finish_client(self, delta: Params, params: Params, ctx: Context) -> Upload:
            return Upload(delta, {"last": delta})

    with pytest.raises(ValueError, match=r"Forgets: finish_client returns a state, .* let init_client return the first state"):
        train(Forgets(), rounds=1, **options)
