"""From stored inputs to model inputs, and the mean and deviation of the rows of several clients."""

from collections.abc import Callable
from typing import Literal

import torch
from torch import Tensor

from flcog.core.trees import Tree, map_leaves


class Preprocess:
    """Turns stored inputs into model inputs: uint8 to [0, 1], per-channel normalisation, channels first (in channels-last memory).

    Args:
        mean, std: per channel, or one for all, on the [0, 1] scale; None leaves values as they are (after the uint8 scaling).
        fitted: whose rows give mean and std, which :meth:`take` sets: all clients' (``common``), or this machine's (``own``). None if mean
            and std are given.
    """

    def __init__(
        self,
        mean: tuple[float, ...] | None = None,
        std: tuple[float, ...] | None = None,
        fitted: Literal["common", "own"] | None = None,
    ) -> None:
        if (mean is None) != (std is None) or len(mean or ()) != len(std or ()) or not all(value > 0 for value in std or ()):
            raise ValueError(f"mean and std come together, one value per channel, and std is above 0; got mean={mean}, std={std}")
        self.mean, self.std, self.fitted = mean, std, fitted
        self._affine: dict[tuple[torch.device, bool], tuple[Tensor, Tensor]] = {}

    def take(self, mean: Tensor, std: Tensor) -> None:
        """Use this mean and standard deviation from now on."""
        self.mean, self.std, self._affine = tuple(mean.tolist()), tuple(std.tolist()), {}

    @property
    def fact(self) -> str:
        """The standardisation in one text, which is the same wherever it is the same."""
        values = ", ".join(f"{mean:.6g} and {std:.6g}" for mean, std in zip(self.mean or (), self.std or (), strict=True))
        return f"by the {self.fitted} mean" if self.fitted else f"by mean and deviation {values}"[:200] if values else "none"

    def __call__(self, inputs: Tree) -> Tree:
        return map_leaves(self._ready, inputs)

    def _ready(self, inputs: Tensor) -> Tensor:
        if not inputs.is_floating_point() and inputs.dtype != torch.uint8:
            return inputs  # token ids
        if self.mean is not None and len(self.mean) not in (1, inputs.shape[-1]):
            raise ValueError(
                f"mean and std have {len(self.mean)} values, and samples of shape {tuple(inputs.shape[1:])} have {inputs.shape[-1]} "
                "channels: give one value per channel, or one for all"
            )
        outputs = inputs.to(torch.get_default_dtype())
        if inputs.dtype == torch.uint8 or self.mean is not None:
            scale, shift = self._scale_and_shift(inputs)
            # In place on our own copy: one pass less over the batch. `inputs` itself is kept when it was float already.
            outputs = (outputs * scale if outputs is inputs else outputs.mul_(scale)).add_(shift)
        return outputs.permute(0, 3, 1, 2) if outputs.ndim == 4 else outputs

    def _scale_and_shift(self, inputs: Tensor) -> tuple[Tensor, Tensor]:
        key = (inputs.device, inputs.dtype == torch.uint8)
        if key not in self._affine:
            mean, std = torch.tensor(self.mean or (0.0,)), torch.tensor(self.std or (1.0,))
            unit = 255.0 if inputs.dtype == torch.uint8 else 1.0
            self._affine[key] = ((1 / (std * unit)).to(inputs.device), (-mean / std).to(inputs.device))
        return self._affine[key]


def moments(features: Tensor) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Mean and standard deviation of each column; a column that never changes keeps its scale."""
    std = features.double().std(0, correction=0)
    std[std == 0] = 1
    return tuple(features.double().mean(0).tolist()), tuple(std.tolist())


Sums = Callable[[Tensor | None], Tensor]
"""``sums(None)``: for each client, the number of its rows, then the sum of each column. ``sums(mean)``: the sums of the squared deviations
from this mean. Both are float64, [clients, columns]."""


def standardisation(sums: Sums) -> tuple[Tensor, Tensor]:
    """The mean and standard deviation of each column over the rows of all clients; a column that never changes keeps its scale.

    Clients tell sums and no rows. The same code computes a simulation and a deployment, so that both have the same numbers.

    >>> rows = torch.tensor([[[1.0], [3.0]], [[5.0], [7.0]]])
    >>> def sums(mean):
    ...     counts = torch.full((2, 1), 2.0)
    ...     return torch.cat([counts, rows.sum(1)], 1) if mean is None else (rows - mean).square().sum(1)
    >>> [value.tolist() for value in standardisation(sums)]
    [[4.0], [2.2360680103302]]
    """
    first = _added(sums(None))
    mean = first[1:] / first[0]
    std = (_added(sums(mean)) / first[0]).sqrt()
    std[std == 0] = 1
    return mean, std


def _added(parts: Tensor) -> Tensor:
    """The sum over clients, in the order of their numbers, which no number of threads changes."""
    return torch.from_numpy(parts.numpy().sum(0))
