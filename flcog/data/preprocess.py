"""From stored inputs to model inputs."""

import torch
from torch import Tensor

from flcog.core.trees import Tree, map_leaves


class Preprocess:
    """Turns stored inputs into model inputs: uint8 to [0, 1], per-channel normalisation, channels first (in channels-last memory).

    Args:
        mean, std: per channel, or one for all, on the [0, 1] scale; None leaves values as they are (after the uint8 scaling).
    """

    def __init__(self, mean: tuple[float, ...] | None = None, std: tuple[float, ...] | None = None) -> None:
        if (mean is None) != (std is None) or (mean is not None and std is not None and len(mean) != len(std)):
            raise ValueError(f"mean and std come together, one value per channel; got mean={mean}, std={std}")
        if std is not None and not all(value > 0 for value in std):
            raise ValueError(f"std must be positive; got {std}")
        self.mean, self.std = mean, std
        self._affine: dict[tuple[torch.device, bool], tuple[Tensor, Tensor]] = {}

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
