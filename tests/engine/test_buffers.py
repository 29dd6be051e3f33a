"""Buffers of every type: shared ones, which clients send, and temporary ones, which begin anew for every client."""

import copy
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from harness import NUM_CLASSES, NUM_FEATURES, SGD, assert_close, classifier, fit, problem_of, train
from reference import fedavg
from torch import Tensor, nn

import flcog
from flcog.callbacks import (
    ClipUpdate,
    Ditto,
    EncodedBroadcast,
    FedBuff,
    FedSAM,
    Krum,
    Quantize,
    SecureAggregation,
    SignFlip,
    SystemModel,
)
from flcog.method import Method
from flcog.server.round import averaged
from flcog.wire.envelope import changes_of

EXECUTORS: list[dict[str, Any]] = [
    {"executor": "loop", "chunk_size": 1},
    {"executor": "loop", "chunk_size": 3},
    {"executor": "vmap"},
]

both_executors = pytest.mark.parametrize("executor", ["loop", "vmap"])


class Counting(nn.Linear):
    """A linear network with a mask of its inputs, a mark that it has trained, and a count of its passes from 200 down.

    Args:
        mask: the type of the mask.
    """

    def __init__(self, mask: torch.dtype = torch.bool) -> None:
        super().__init__(NUM_FEATURES, NUM_CLASSES)
        self.register_buffer("mask", (torch.arange(NUM_FEATURES) != 1).to(mask))
        self.register_buffer("trained", torch.zeros(20, dtype=torch.bool))
        self.register_buffer("left", torch.tensor(200, dtype=torch.uint8))

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            self.trained.fill_(True)
            self.left.sub_(1)
        return super().forward(x * self.mask)


BESIDE: dict[str, Sequence[Method]] = {
    "FedAvg": [],
    "ClipUpdate": [ClipUpdate(norm=1e-3)],
    "SecureAggregation": [SecureAggregation()],
    "Quantize": [Quantize(bits=8)],
    "EncodedBroadcast": [EncodedBroadcast()],
    "Krum": [Krum(f=1)],
    "SignFlip": [SignFlip(count=1)],
    "FedBuff": [SystemModel(), FedBuff(buffer=2)],
}


@both_executors
@pytest.mark.parametrize("methods", BESIDE.values(), ids=BESIDE)
def test_clients_send_truth_values_and_short_integers(executor: str, methods: Sequence[Method]) -> None:
    run = train(*methods, module=classifier(network=Counting), executor=executor, rounds=2)
    assert run.executor.name == executor
    assert torch.equal(run.buffers["model.mask"], torch.arange(NUM_FEATURES) != 1)
    assert torch.equal(run.buffers["model.trained"], torch.ones(20, dtype=torch.bool))
    rounds = 1 if any(isinstance(method, FedBuff) for method in methods) else 2  # the second arrivals began in round 1, too
    assert torch.equal(run.buffers["model.left"], torch.tensor(200 - rounds * 4, dtype=torch.uint8))


def mean_of(received: Tensor, values: Tensor) -> Tensor:
    """The server's buffer after clients of equal weight have sent these values."""
    changes = changes_of({"b": values}, {"b": received})
    return averaged({"b": received}, {"b": changes["b"].double().mean(0).float()})["b"]


@pytest.mark.parametrize("dtype", [torch.uint8, torch.uint16, torch.uint32, torch.uint64, torch.int8, torch.int64])
def test_integers_move_both_ways(dtype: torch.dtype) -> None:
    assert int(mean_of(torch.tensor(5, dtype=dtype), torch.tensor([2, 9, 7], dtype=dtype))) == 6
    if dtype == torch.int8:
        assert int(mean_of(torch.tensor(100, dtype=dtype), torch.tensor([-100, -120], dtype=dtype))) == -110


def test_variances_do_not_become_negative() -> None:
    now = {"norm.running_mean": torch.tensor(0.5), "norm.running_var": torch.tensor([0.5, 0.5])}
    moved = averaged(now, {"norm.running_mean": torch.tensor(-0.75), "norm.running_var": torch.tensor([-0.75, -0.25])})
    assert moved["norm.running_mean"] == -0.25 and moved["norm.running_var"].tolist() == [0.0, 0.25]


class Slowing(nn.Linear):
    """A network whose outputs shrink with each training pass of a client, which a temporary buffer counts.

    Args:
        size: of the buffer, whose numbers are equal.
        how: the forward pass changes the buffer.
    """

    def __init__(self, size: int = 1, how: str = "in place") -> None:
        super().__init__(NUM_FEATURES, NUM_CLASSES)
        self.how = how
        self.register_buffer("passes", torch.zeros(size), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        if self.training and self.how == "in place":
            self.passes += 1
        elif self.training and self.how == "data":
            self.passes.data += 1
        elif self.training:
            self.passes = self.passes + 1
        return super().forward(x) / (1 + self.passes[0])


@pytest.mark.parametrize("options", EXECUTORS, ids=str)
@pytest.mark.parametrize("size", [1, 2**19], ids=["small", "large"])
def test_temporary_buffers_begin_anew_for_every_client(size: int, options: dict[str, Any]) -> None:
    module = classifier(network=lambda: Slowing(size))
    reference = copy.deepcopy(module)
    run = train(module=module, rounds=2, **options)
    assert_close(run.state, fedavg.run(problem_of(run, reference, SGD)), 1e-10)
    run.run.engine.hand_over(run.run.server)
    assert not module.model.passes.any(), "the user's module has the values of its constructor"


@pytest.mark.parametrize("how", ["data", "assigned"])
def test_no_change_of_a_temporary_buffer_reaches_the_next_client(how: str) -> None:
    one, several = (train(module=classifier(network=lambda: Slowing(1, how)), chunk_size=count) for count in (1, 3))
    assert all(torch.equal(one.params[name], value) for name, value in several.params.items())
    assert_close(one.params, train(module=classifier(network=Slowing)).params, 1e-12)


class Centred(nn.Linear):
    """A linear network of inputs minus their running mean, which each training pass changes in place or assigns anew."""

    def __init__(self, assigns: bool, persistent: bool = True) -> None:
        torch.manual_seed(0)
        super().__init__(NUM_FEATURES, NUM_CLASSES)
        self.assigns = assigns
        self.register_buffer("mean", torch.zeros(NUM_FEATURES), persistent=persistent)
        self.register_buffer("passes", torch.tensor(0), persistent=persistent)

    def forward(self, x: Tensor) -> Tensor:
        centred = x - self.mean
        if self.training:
            mean = 0.9 * self.mean + 0.1 * x.mean(0)
            if self.assigns:
                self.mean, self.passes = mean, self.passes + 1.0
            else:
                self.mean.copy_(mean)
                self.passes.add_(1)
        return super().forward(centred)


class Hooked(flcog.Classifier):
    """A hook of the faithful step."""

    def on_train_batch_end(self, outputs: object, batch: object, batch_idx: int) -> None:
        pass


class Manual(flcog.Classifier):
    """Takes its steps itself."""

    automatic_optimization = False

    def training_step(self, batch: Any, batch_idx: int) -> None:
        optimizer = self.optimizers()
        optimizer.zero_grad()
        self.manual_backward(nn.functional.cross_entropy(self(batch[0]), batch[1]))
        optimizer.step()


ASSIGNED: dict[str, tuple[type[flcog.Classifier], Sequence[Method], dict[str, Any]]] = {
    "loop": (flcog.Classifier, [], {"executor": "loop", "chunk_size": 1}),
    "threads": (flcog.Classifier, [], {"executor": "loop", "chunk_size": 3}),
    "vmap": (flcog.Classifier, [], {"executor": "vmap"}),
    "loop and FedSAM": (flcog.Classifier, [FedSAM()], {"executor": "loop"}),
    "vmap and FedSAM": (flcog.Classifier, [FedSAM()], {"executor": "vmap"}),
    "vmap and Ditto": (flcog.Classifier, [Ditto()], {"executor": "vmap"}),
    "hooks": (Hooked, [], {}),
    "hooks and FedSAM": (Hooked, [FedSAM()], {}),
    "manual optimisation": (Manual, [], {}),
}


@pytest.mark.parametrize("persistent", [True, False], ids=["shared", "temporary"])
@pytest.mark.parametrize(("module", "methods", "options"), ASSIGNED.values(), ids=ASSIGNED)
def test_buffers_assigned_anew_are_those_changed_in_place(
    module: type[flcog.Classifier], methods: Sequence[Method], options: dict[str, Any], persistent: bool
) -> None:
    placed, assigned = (
        train(*copy.deepcopy(methods), module=module(Centred(assigns, persistent), optimizer=SGD), rounds=2, **options)
        for assigns in (False, True)
    )
    assert placed.executor.name == options.get("executor", "lightning")
    assert_close(assigned.state, placed.state, 1e-12)
    assert not persistent or (placed.buffers["model.mean"].any() and placed.buffers["model.passes"] > 4)


def test_a_table_that_forward_makes_longer_is_made_again() -> None:
    class Tabled(nn.Linear):
        def __init__(self) -> None:
            super().__init__(NUM_FEATURES, NUM_CLASSES)
            self.register_buffer("table", torch.ones(1), persistent=False)

        def forward(self, x: Tensor) -> Tensor:
            if len(self.table) < x.shape[1]:
                self.table = torch.arange(x.shape[1])
            return super().forward(x * self.table)

    runs = [train(module=classifier(network=Tabled), **options) for options in EXECUTORS]
    assert_close(runs[1].params, runs[0].params, 1e-12)
    assert_close(runs[2].params, runs[0].params, 1e-10)


def test_a_resumed_run_begins_with_the_same_temporary_buffers(tmp_path: Path) -> None:
    whole, part = (fit(tmp_path / str(k), module=classifier(network=Slowing), rounds=k, chunk_size=1) for k in (2, 1))
    resumed = fit(tmp_path / "1", module=classifier(network=Slowing), rounds=2, chunk_size=1, ckpt_path=str(part.run_dir))
    assert all(torch.equal(resumed.params[name], value) for name, value in whole.params.items())
