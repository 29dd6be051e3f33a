"""FedDecorr against its paper, and features that make its formula amplify rounding."""

from functools import partial

import pytest
import torch
from contracts.case import Case
from harness import ODD_BATCHES, RAGGED
from reference import feddecorr

from flcog.callbacks import FedDecorr
from flcog.callbacks.feddecorr import decorrelation

pytestmark = pytest.mark.filterwarnings("error")


CASES: dict[str, Case] = {
    "FedDecorr": Case(
        FedDecorr(beta=0.3),
        partial(feddecorr.run, beta=0.3),
        neutral=FedDecorr(beta=0.0),
        data=ODD_BATCHES,
        options=RAGGED,
    ),
}


def test_decorrelation_is_the_scaled_mean_squared_correlation() -> None:
    rows, width = 7, 4
    features = torch.randn(rows, width, dtype=torch.float64) @ torch.randn(width, width, dtype=torch.float64)
    off_diagonal = torch.corrcoef(features.T)[~torch.eye(width, dtype=torch.bool)]
    expected = (rows - 1) ** 2 / rows * off_diagonal.square().mean()
    torch.testing.assert_close(decorrelation(features), expected, rtol=1e-6, atol=0)
    padded = torch.cat([features, 100 * torch.randn(3, width, dtype=torch.float64)])
    mask = torch.tensor([1.0] * rows + [0.0] * 3)
    torch.testing.assert_close(decorrelation(padded, mask), decorrelation(features))


@pytest.mark.parametrize(
    "mask", [None, torch.tensor([1.0, 0.0, 0.0]), torch.zeros(3)], ids=["one row", "one that counts", "none"]
)
def test_decorrelation_of_a_single_row_is_zero_and_so_is_its_gradient(mask: torch.Tensor | None) -> None:
    features = torch.randn(1 if mask is None else 3, 4, requires_grad=True)
    loss = decorrelation(features, mask)
    (gradient,) = torch.autograd.grad(loss, features)
    assert loss == 0 and not gradient.any()


def test_feddecorr_has_no_slope_where_a_feature_does_not_vary() -> None:
    """The slope is largest at deviations of about 1e-4, the root of the authors' 1e-8. Below, it falls to 0 and is never NaN."""
    features = torch.randn(4, 8, generator=torch.Generator().manual_seed(0), dtype=torch.float64)

    def slope(deviation: float) -> float:
        near = features.clone()
        near[:, 0] = 0.5 + deviation * features[:, 0]
        return float(torch.func.grad(decorrelation)(near)[:, 0].abs().max())

    assert slope(0.0) == 0
    assert slope(1e-8) < slope(1.0) * 10
    assert slope(1e-4) > slope(1.0) * 1000
