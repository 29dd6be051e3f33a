"""Augmentations compared with torchvision's for the same offsets and factors, and the distributions of their draws."""

import numpy as np
import pytest
import torch
from torch import Tensor
from torchvision.transforms import functional as F

from flcog.data import Augment
from flcog.datamodules import Digits
from flcog.datamodules.augmentations import CropFlip, Rotate, augmentation, crop_and_flip, jitter_colours, rotate

NAMES = ("flip", "crop-flip", "crop-flip-rotate", "dermoscopy")


def images(*shape: int, dtype: torch.dtype = torch.uint8) -> Tensor:
    values = torch.randint(0, 256, shape, generator=torch.Generator().manual_seed(0))
    return values.to(torch.uint8) if dtype == torch.uint8 else (values / 255).to(dtype)


def some_keys(count: int) -> np.ndarray:
    return np.random.default_rng(1).integers(0, 2**64, count, dtype=np.uint64)


def by_name(name: str) -> Augment:
    augment = augmentation(name)  # type: ignore[arg-type]
    assert augment is not None
    return augment


@pytest.mark.parametrize("shape", [(20, 32, 32, 3), (20, 28, 28, 1), (20, 6, 9, 2)])
@pytest.mark.parametrize("padding", [0, 4])
@pytest.mark.parametrize("dtype", [torch.uint8, torch.float32])
def test_crop_and_flip_is_torchvision_s(shape: tuple[int, ...], padding: int, dtype: torch.dtype) -> None:
    inputs, rng = images(*shape, dtype=dtype), np.random.default_rng(2)
    tops, lefts = rng.integers(0, 2 * padding + 1, (2, len(inputs)))
    mirrored, upside_down = rng.random((2, len(inputs))) < 0.5
    outputs = crop_and_flip(inputs, padding, tops, lefts, mirrored, upside_down)
    for k, image in enumerate(inputs.permute(0, 3, 1, 2)):
        expected = F.crop(F.pad(image, [padding]), tops[k], lefts[k], *shape[1:3])
        expected = F.hflip(expected) if mirrored[k] else expected
        expected = F.vflip(expected) if upside_down[k] else expected
        assert torch.equal(outputs[k].permute(2, 0, 1), expected)


@pytest.mark.parametrize("shape", [(12, 32, 32, 3), (12, 15, 20, 1)])
def test_rotate_is_torchvision_s(shape: tuple[int, ...]) -> None:
    inputs, degrees = images(*shape), np.linspace(-40, 40, 12)
    outputs = rotate(inputs, degrees)
    expected = torch.stack([F.rotate(x, angle) for x, angle in zip(inputs.permute(0, 3, 1, 2), degrees.tolist(), strict=True)])
    # Both take the nearest pixel. For a point half-way between two pixels, rounding errors decide.
    assert (outputs.permute(0, 3, 1, 2) != expected).float().mean() < 0.002


def test_jitter_is_torchvision_s() -> None:
    inputs, rng = images(10, 16, 16, 3), np.random.default_rng(3)
    inputs[0], inputs[1] = 77, 0  # a grey and a black image have no hue
    brightness, contrast, hue = rng.uniform(0.7, 1.3, 10), rng.uniform(0.7, 1.3, 10), rng.uniform(-0.5, 0.5, 10)
    outputs = jitter_colours(inputs, brightness, contrast, hue)
    for k, image in enumerate(inputs.permute(0, 3, 1, 2).float() / 255):
        expected = F.adjust_hue(F.adjust_contrast(F.adjust_brightness(image, brightness[k]), contrast[k]), hue[k]) * 255
        torch.testing.assert_close(outputs[k].permute(2, 0, 1).float(), expected, atol=0.51, rtol=0)


@pytest.mark.parametrize("name", NAMES)
def test_an_image_and_its_key_fix_the_result(name: str) -> None:
    inputs, keys, augment = images(16, 32, 32, 3), some_keys(16), by_name(name)
    kept, outputs = inputs.clone(), augment(inputs, keys)
    assert torch.equal(inputs, kept)
    assert outputs.shape == inputs.shape and outputs.dtype == inputs.dtype
    order = np.random.default_rng(4).permutation(16)
    assert torch.equal(augment(inputs[order], keys[order]), outputs[order])
    for k in range(16):
        assert torch.equal(augment(inputs[k : k + 1], keys[k : k + 1])[0], outputs[k])
    assert not torch.equal(augment(inputs, keys + np.uint64(1)), outputs)


def test_crops_and_flips_are_uniform() -> None:
    # A bright pixel in the middle shows the place of each crop, and a brighter pixel on its right shows whether it was mirrored.
    count = 40_000
    inputs = torch.zeros(count, 20, 20, 1, dtype=torch.uint8)
    inputs[:, 10, 10], inputs[:, 10, 11] = 100, 200
    outputs = CropFlip(padding=4)(inputs, np.arange(count, dtype=np.uint64)).squeeze(-1)
    first, second = ((outputs == value).flatten(1).int().argmax(1) for value in (100, 200))
    mirrored = second < first
    rows, columns = first // 20, torch.where(mirrored, 19 - first % 20, first % 20)
    table = torch.stack([mirrored.long(), rows - 6, columns - 6])
    cells = torch.bincount(table[0] * 81 + table[1] * 9 + table[2], minlength=162).double()
    chi_squared = ((cells - count / 162).square() / (count / 162)).sum()
    assert len(cells) == 162 and chi_squared < 161 + 4 * (2 * 161) ** 0.5


def test_angles_are_uniform() -> None:
    # The pixel at the middle of the right edge moves vertically by half the width times the sine of the angle.
    inputs = torch.zeros(2000, 61, 61, 1)
    inputs[:, 30, 60] = 1
    outputs = Rotate(30.0)(inputs, np.arange(2000, dtype=np.uint64)).squeeze(-1)
    seen = outputs.flatten(1).amax(1) > 0
    heights = outputs.flatten(1).argmax(1)[seen] // 61
    angles = torch.rad2deg(torch.asin((30 - heights) / 30))
    assert seen.double().mean() > 0.5
    assert abs(angles.double().mean()) < 1.5 and 28 < angles.abs().max() <= 31
    assert abs((angles > 0).double().mean() - 0.5) < 0.05


def test_names() -> None:
    assert augmentation("none") is None
    with pytest.raises(ValueError, match=r"crop-flip.*got 'mixup'"):
        augmentation("mixup")  # type: ignore[arg-type]


def test_only_inputs_with_keys_are_augmented() -> None:
    class Cropped(Digits):
        def augment(self) -> Augment | None:
            return augmentation("crop-flip")

    federation, indices = Cropped().federation, torch.arange(8)
    plain, targets = federation.load(federation.train, indices, torch.device("cpu"))
    changed, same_targets = federation.load(federation.train, indices, torch.device("cpu"), keys=some_keys(8))
    assert torch.equal(targets, same_targets) and not torch.equal(plain, changed)
    raw = by_name("crop-flip")(federation.train.gather(indices), some_keys(8))
    assert torch.equal(changed, federation.preprocess(raw))
