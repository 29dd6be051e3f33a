"""Buffers of every type and kind: those that clients send, and those that only live while a client trains."""

from collections.abc import Sequence
from typing import Any

import pytest
import torch
from harness import NUM_CLASSES, NUM_FEATURES, assert_close, classifier, train
from torch import Tensor, nn

from flcog.callbacks import (
    ClipUpdate,
    DPFedAvg,
    EncodedBroadcast,
    FedBuff,
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
    assert torch.equal(run.buffers["model.left"], torch.tensor(200 - 2 * 4, dtype=torch.uint8))


@both_executors
def test_a_mask_of_truth_values_masks_as_one_of_numbers(executor: str) -> None:
    runs = [
        train(module=classifier(network=lambda kind=kind: Counting(kind)), executor=executor)
        for kind in (torch.bool, torch.float64)
    ]
    assert all(torch.equal(runs[1].params[name], value) for name, value in runs[0].params.items())


@both_executors
def test_differential_privacy_leaves_truth_values_as_they_were(executor: str) -> None:
    run = train(DPFedAvg(), module=classifier(network=Counting), executor=executor, rounds=1)
    assert torch.equal(run.buffers["model.trained"], torch.zeros(20, dtype=torch.bool))
    assert torch.equal(run.buffers["model.left"], torch.tensor(200, dtype=torch.uint8))


def mean_of(received: Tensor, values: Tensor) -> Tensor:
    """The server's buffer after clients of equal weight have sent these values."""
    changes = changes_of({"b": values}, {"b": received})
    return averaged({"b": received}, {"b": changes["b"].double().mean(0).float()})["b"]


def test_the_majority_of_truth_values_wins() -> None:
    clients = torch.tensor([[False, False, True, True], [False, False, True, True], [True, False, False, True]])
    for received in (torch.zeros(4, dtype=torch.bool), torch.ones(4, dtype=torch.bool)):
        assert mean_of(received, clients).tolist() == [False, False, True, True]


@pytest.mark.parametrize("dtype", [torch.uint8, torch.uint16, torch.uint32, torch.uint64, torch.int8, torch.int64])
def test_integers_move_both_ways(dtype: torch.dtype) -> None:
    assert int(mean_of(torch.tensor(5, dtype=dtype), torch.tensor([2, 9, 7], dtype=dtype))) == 6
    if dtype == torch.int8:
        assert int(mean_of(torch.tensor(100, dtype=dtype), torch.tensor([-100, -120], dtype=dtype))) == -110


def test_changes_from_an_older_model_stay_in_range() -> None:
    now = {"flag": torch.tensor(False), "low": torch.tensor(3, dtype=torch.uint8), "high": torch.tensor(250, dtype=torch.uint8)}
    moved = averaged(now, {"flag": torch.tensor(-1.0), "low": torch.tensor(-7.0), "high": torch.tensor(9.0)})
    assert {name: value.item() for name, value in moved.items()} == {"flag": False, "low": 0, "high": 255}


class Rotating(nn.Linear):
    """A linear network after a rotation of pairs of inputs, by complex numbers or by sines and cosines."""

    def __init__(self, is_complex: bool = True, persistent: bool = False) -> None:
        super().__init__(NUM_FEATURES, NUM_CLASSES)
        self.register_buffer("turns", torch.polar(torch.ones(3), torch.arange(3.0)), persistent=persistent)
        self.is_complex = is_complex

    def forward(self, x: Tensor) -> Tensor:
        first, second = x.unflatten(1, (3, 2)).unbind(2)
        if self.is_complex:
            return super().forward(torch.view_as_real(torch.complex(first, second) * self.turns).flatten(1))
        sine, cosine = torch.arange(3.0).sin(), torch.arange(3.0).cos()
        return super().forward(torch.stack([first * cosine - second * sine, first * sine + second * cosine], 2).flatten(1))


@pytest.mark.parametrize("options", EXECUTORS, ids=str)
@pytest.mark.parametrize("precision", ["32-true", "64-true"])
def test_temporary_complex_buffers_keep_their_values(precision: str, options: dict[str, Any]) -> None:
    network = Rotating()
    runs = [
        train(module=classifier(network=make), precision=precision, **options)
        for make in (lambda: network, lambda: Rotating(False))
    ]
    assert torch.equal(network.turns, Rotating().turns) and network.turns.dtype == torch.complex64
    assert_close(runs[0].params, runs[1].params, 1e-6)


def test_complex_tensors_that_clients_would_send_are_refused() -> None:
    with pytest.raises(
        ValueError, match=r"^Classifier: model.turns is torch.complex64, and .*, or register it with persistent=False$"
    ):
        train(module=classifier(network=lambda: Rotating(persistent=True)))
    network = nn.Linear(NUM_FEATURES, NUM_CLASSES, dtype=torch.complex64)
    with pytest.raises(
        ValueError, match=r"^Classifier: model.weight is torch.complex64, .* call torch.view_as_complex in forward$"
    ):
        train(module=classifier(network=lambda: network))
