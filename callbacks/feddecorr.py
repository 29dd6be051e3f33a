"""FedDecorr: a penalty on correlated features, against the collapse of their dimensions."""

from dataclasses import dataclass

import torch
from torch import Tensor

from flcog.core.checks import option
from flcog.core.types import Batch, Params
from flcog.functional.apply import Apply
from flcog.method import Context, Method


def decorrelation(features: Tensor, mask: Tensor | None = None) -> Tensor:
    """The correlation of the columns of ``features`` [B, d] over the rows of the mask; 0 for a single row or column.

    >>> decorrelation(torch.tensor([[1.0, 1.0], [-1.0, -1.0]]))
    tensor(0.5000)
    """
    weights = torch.ones_like(features[:, :1]) if mask is None else mask.to(features.dtype).unsqueeze(1)
    rows, width = weights.sum().clamp(min=1), features.shape[1]
    centred = (features - (features * weights).sum(0) / rows) * weights
    variance = centred.square().sum(0) / (rows - 1).clamp(min=1)
    standard = centred / (variance + 1e-8).sqrt()
    products = (standard.T @ standard).square()
    return (products.sum() - products.diagonal().sum()) / max(1, width * (width - 1)) / rows


@dataclass(frozen=True)
class FedDecorr(Method):
    """Adds to every local loss the correlations between a batch's features, so that unequal clients do not lose dimensions.

    With Z the batch's features [N, d], each column centred and divided by its standard deviation::

        F_k(y) + beta * 1 / (N d (d - 1)) * sum_{i != j} (Z^T Z)_ij^2

    This is the scale of the authors' code, for which they tuned beta: (N - 1)^2 / N times the mean squared correlation, so about
    N times the mean. Batches of one row have no correlations and add 0.

    Deviations are sqrt(variance + 1e-8), as in that code. The formula is unstable for a feature that hardly varies in a batch (by
    1e-4 or less: a dead unit, a vanishing scale of BatchNorm). Such a feature has slopes thousands of times larger than other
    features and curvatures of 1e7, so that local steps of SGD amplify rounding errors (from 1e-15 to 2e-6 in eight steps of a
    tiny network). Runs that differ in rounding then diverge from each other, also with the authors' formula in plain torch.

    Shi et al., Towards Understanding and Mitigating Dimensional Collapse in Heterogeneous Federated Learning, ICLR 2023,
    https://arxiv.org/abs/2210.00226; https://github.com/bytedance/FedDecorr.

    Args:
        beta: strength of the term, >= 0; 0 is FedAvg. The paper takes 0.1 for CIFAR-10 and TinyImageNet, 0.05 for CIFAR-100.
    """

    beta: float = option(0.1, ">= 0")

    def loss(self, apply: Apply, params: Params, batch: Batch, task_loss: Tensor, ctx: Context) -> Tensor:
        return self.beta * decorrelation(apply.features(params, batch.inputs), batch.mask)
