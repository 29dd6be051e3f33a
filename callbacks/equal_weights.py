"""EqualWeights: all clients of a round have the same weight."""

from dataclasses import dataclass

import torch
from torch import Tensor

from flcog.method import Cohort, Method


@dataclass(frozen=True)
class EqualWeights(Method):
    """Replaces the aggregation weights: every client of the cohort S counts equally, whatever its number of samples.

    ::

        p_k = 1 / |S|

    The analyses of SCAFFOLD and many others assume this; Karimireddy et al., 2020, https://arxiv.org/abs/1910.06378.

    Example:
        >>> EqualWeights().weights(torch.tensor([0.7, 0.3]), [], None)
        tensor([1., 1.])
    """

    def weights(self, weights: Tensor, messages: object, cohort: Cohort) -> Tensor:
        return torch.ones_like(weights)
