"""Convolutions that are computed as products of patches and weights equal torch's own, alone and in a run."""

import itertools
from typing import Any

import pytest
import torch
from harness import assert_close, train
from torch import Tensor
from torch.nn import functional
from torch.utils._python_dispatch import TorchDispatchMode

import flcog
from flcog.data import Samples, Splits
from flcog.execute.layers import ConvolutionsAsPatches, _Patches

SETTINGS = [
    {"stride": stride, "padding": padding, "dilation": dilation}
    for stride, padding, dilation in itertools.product((1, 2), (0, 1), (1, 2))
]


@pytest.mark.filterwarnings("ignore:Using padding='same'")
@pytest.mark.parametrize(
    "settings",
    [*SETTINGS, {"stride": (2, 1), "padding": (0, 2)}, {"padding": "same"}, {"padding": "valid"}, {"groups": 2}],
    ids=str,
)
@pytest.mark.parametrize("bias", [True, False])
def test_they_are_torchs_convolutions(settings: dict[str, Any], bias: bool) -> None:
    rng = torch.Generator().manual_seed(0)
    shapes = [(4, 6, 4 // settings.get("groups", 1), 3, 2), (4, 3, 4, 7, 9), (4, 6)]
    weight, images, biases = (torch.randn(shape, generator=rng, dtype=torch.float64) for shape in shapes)

    def loss(weight: Tensor, images: Tensor, shift: Tensor) -> Tensor:
        return functional.conv2d(images, weight, shift if bias else None, **settings).sin().sum()

    gradients = torch.func.vmap(torch.func.grad(loss, argnums=(0, 1, 2)))
    theirs = gradients(weight, images, biases)
    with ConvolutionsAsPatches():
        ours = gradients(weight, images, biases)
    for one, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-10, atol=1e-10)


def test_in_one_dimension_too() -> None:
    rng = torch.Generator().manual_seed(0)
    words, weight = torch.randn(3, 4, 11, generator=rng), torch.randn(6, 4, 3, generator=rng)
    for settings in ({}, {"stride": 2, "padding": (1,), "dilation": 2}):
        with ConvolutionsAsPatches():
            ours = functional.conv1d(words, weight, **settings)
        torch.testing.assert_close(ours, functional.conv1d(words, weight, **settings))


class Seen(TorchDispatchMode):
    """Records the names of operations."""

    def __init__(self) -> None:
        super().__init__()
        self.names: set[str] = set()

    def __torch_dispatch__(self, op: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.names.add(op.name())
        return op(*args, **(kwargs or {}))


@pytest.mark.parametrize("dilation", [(1, 1), (1, 2)])
@pytest.mark.parametrize(("padding", "stride"), [((0, 0), (1, 1)), ((1, 2), (2, 1))])
def test_patches_are_torchs_to_the_bit(dilation: Any, padding: Any, stride: Any) -> None:
    """First and second derivatives are equal too. They are computed without ``im2col``, which a GPU runs for one image after another."""
    rng = torch.Generator().manual_seed(0)
    images, layout = torch.randn(4, 3, 2, 9, 8, generator=rng), ((3, 2), dilation, padding, stride)

    def results(unfold: Any) -> Any:
        def loss(images: Tensor) -> tuple[Tensor, Tensor]:
            patches = unfold(images, *layout)
            return patches.pow(3).sum(), patches

        def again(images: Tensor) -> Tensor:
            return torch.func.grad(loss, has_aux=True)(images)[0].sin().sum()

        with Seen() as seen:
            first = torch.func.vmap(torch.func.grad(loss, has_aux=True))(images)
        return [*first, torch.func.vmap(torch.func.grad(again))(images)], seen.names

    (ours, used), (theirs, _) = results(_Patches.apply), results(functional.unfold)
    assert all(map(torch.equal, ours, theirs))
    assert "aten::im2col" not in used and "aten::col2im" in used


class Pictures(flcog.FederatedDataModule):
    num_classes = 3

    def load(self) -> Splits:
        rng = torch.Generator().manual_seed(0)
        pictures = torch.randint(0, 256, (48, 28, 28, 1), generator=rng, dtype=torch.uint8)
        return Splits(Samples(pictures, torch.arange(48) % 3))


def test_a_run_is_that_of_the_loop() -> None:
    data = Pictures(4, batch_size=5)
    options: dict[str, Any] = {"clients_per_round": 1.0, "rounds": 1, "local_steps": 2}

    def module() -> flcog.Classifier:
        torch.manual_seed(0)
        return flcog.Classifier(flcog.models.SimpleCNN(1, 3))

    loop = train(module=module(), data=data, **options)
    patches = train(module=module(), data=data, executor="vmap-patches", **options)
    assert patches.executor.name == "vmap-patches"
    assert_close(patches.params, loop.params, 1e-9)
