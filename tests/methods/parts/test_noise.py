"""Random numbers from keys have the right distributions; other keys, steps and streams give independent numbers."""

import pytest
import torch

from flcog.callbacks.parts.noise import normal, uniform

pytestmark = pytest.mark.filterwarnings("error")


def test_noise_is_what_it_claims_to_be() -> None:
    torch.set_default_dtype(torch.float64)
    key = torch.tensor(123)
    sample = uniform(key, 0, (200, 500))
    assert sample.min() >= 0 and sample.max() < 1
    assert abs(float(sample.mean()) - 0.5) < 4 / 12**0.5 / 1e5**0.5 and abs(float(sample.var()) * 12 - 1) < 0.02
    histogram = torch.histc(sample, 100, 0, 1)
    assert float(((histogram - 1000).square() / 1000).sum()) < 99 + 5 * (2 * 99) ** 0.5
    gauss = normal(key, 0, (100_000,))
    moments = [float(gauss.pow(p).mean()) for p in (1, 2, 3, 4)]
    assert moments == pytest.approx([0, 1, 0, 3], abs=0.1)
    others = [uniform(key + 1, 0, (100_000,)), uniform(key, 1, (100_000,)), uniform(key, 0, (100_000,), 1)]
    for other in [*others, sample.flatten().roll(1)]:
        assert abs(float(torch.corrcoef(torch.stack([sample.flatten(), other]))[0, 1])) < 0.015
    batched = torch.func.vmap(lambda key, step: uniform(key, step, (4,)))(torch.tensor([1, 2]), torch.tensor([3, 4]))
    assert torch.equal(batched, torch.stack([uniform(torch.tensor(1), 3, (4,)), uniform(torch.tensor(2), 4, (4,))]))
