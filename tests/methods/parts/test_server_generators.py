"""The networks that generate inputs on the server, and random views of these inputs."""

import pytest
import torch
import torch.nn.functional as F

from flcog.callbacks.parts.server_generators import input_generator, random_view

pytestmark = pytest.mark.filterwarnings("error")


def test_random_views_move_and_mirror() -> None:
    rng, images = torch.Generator().manual_seed(0), torch.arange(2 * 200 * 9.0).view(200, 2, 3, 3) + 1
    still = random_view(images, 0, False, rng)
    assert torch.equal(still, images)
    mirrored = random_view(images, 0, True, rng)
    flips = [torch.equal(view, image.flip(2)) for view, image in zip(mirrored, images, strict=True)]
    assert all(torch.equal(v, i.flip(2) if f else i) for v, i, f in zip(mirrored, images, flips, strict=True))
    assert 70 < sum(flips) < 130
    moved = random_view(images, 1, False, rng)
    seen = set()
    for view, image in zip(moved, images, strict=True):
        padded = F.pad(image, [1] * 4)
        (at,) = [(r, c) for r in range(3) for c in range(3) if torch.equal(view, padded[:, r : r + 3, c : c + 3])]
        seen.add(at)
    assert len(seen) == 9
    rows = torch.randn(3, 4)
    assert random_view(rows, 4, True, rng) is rows


@pytest.mark.parametrize("shape", [(6,), (1, 8, 8), (3, 32, 32), (1, 30, 27)])
def test_generated_inputs_have_the_right_shape_and_scale(shape: tuple[int, ...]) -> None:
    network = input_generator(shape, 5, 4, torch.Generator().manual_seed(0))
    with torch.no_grad():
        inputs = network(torch.randn(12, 5))
    assert inputs.shape == (12, *shape)
    torch.testing.assert_close(inputs.transpose(0, 1).flatten(1).mean(1), torch.zeros(shape[0]), atol=1e-4, rtol=0)
    torch.testing.assert_close(inputs.transpose(0, 1).flatten(1).std(1), torch.ones(shape[0]), atol=0.15, rtol=0)
