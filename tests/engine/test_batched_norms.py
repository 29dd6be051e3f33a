"""Batch norms in mixed precision give the same results if batched over clients as for each client alone."""

import warnings
from typing import Any

import pytest
import torch
from harness import assert_close, needs_compiler, train
from torch import Tensor, nn
from torch.nn import functional

import flcog
from engine.test_patches import Pictures
from flcog.execute.layers import NormsInOneType


def draws(*shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape)))


def test_each_clients_norm_is_torchs_own() -> None:
    """torch's kernel takes bfloat16 inputs with float32 weights and statistics, and computes in float32."""
    inputs, weight, bias = draws(3, 8, 4, 5, 5).bfloat16(), draws(3, 4), draws(3, 4)

    def norm(inputs: Tensor, weight: Tensor, bias: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        mean, var = torch.zeros(4), torch.ones(4)
        return functional.batch_norm(inputs, mean, var, weight, bias, training=True), mean, var

    def batched(inputs: Tensor, weight: Tensor, bias: Tensor, mean: Tensor, var: Tensor) -> Tensor:
        return functional.batch_norm(inputs, mean, var, weight, bias, training=True)

    means, variances = torch.zeros(3, 4), torch.ones(3, 4)
    with NormsInOneType():
        outputs = torch.func.vmap(batched)(inputs, weight, bias, means, variances)
    assert outputs.dtype == torch.bfloat16
    for client in range(3):
        expected, mean, var = norm(inputs[client], weight[client], bias[client])
        torch.testing.assert_close(outputs[client], expected, rtol=2**-7, atol=2**-7)
        torch.testing.assert_close(means[client], mean, rtol=1e-6, atol=1e-6)
        torch.testing.assert_close(variances[client], var, rtol=1e-6, atol=1e-6)


def test_norms_of_one_type_are_left_alone() -> None:
    inputs, weight, bias = draws(8, 4, 5, 5), draws(4), draws(4)
    for arguments in ((inputs, None, None, weight, bias), (inputs, torch.zeros(4), torch.ones(4), None, None)):
        with NormsInOneType():
            ours = functional.batch_norm(*arguments, training=True)
        assert torch.equal(ours, functional.batch_norm(*arguments, training=True))


def pictures_with_norms() -> flcog.Classifier:
    torch.manual_seed(0)
    layers = nn.Conv2d(1, 4, 5, stride=2), nn.BatchNorm2d(4), nn.ReLU(), nn.AdaptiveAvgPool2d(2), nn.Flatten()
    return flcog.Classifier(nn.Sequential(*layers, nn.Linear(16, 3)), lambda params: torch.optim.SGD(params, lr=0.1))


@pytest.mark.parametrize("compiled", [False, pytest.param(True, marks=needs_compiler)], ids=["plain", "compiled"])
@pytest.mark.parametrize("executor", ["vmap", "vmap-patches"])
def test_a_run_in_mixed_precision_is_batched(executor: str, compiled: bool, programs: list[int]) -> None:
    options: dict[str, Any] = {"precision": "bf16-mixed", "rounds": 2, "local_steps": 3, "clients_per_round": 4}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        batched = train(
            module=pictures_with_norms(), data=Pictures(4, batch_size=6), executor=executor, compile=compiled, **options
        )
    alone = train(module=pictures_with_norms(), data=Pictures(4, batch_size=6), executor="loop", **options)
    assert batched.executor.name == executor and bool(batched.executor.compiled) == compiled
    assert_close(batched.params, alone.params, 0.02)
    assert_close(batched.buffers, alone.buffers, 0.02)
