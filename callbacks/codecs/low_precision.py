"""LowPrecision: numbers of 16 bits."""

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from flcog.callbacks.codecs.codec import Codec, Noise
from flcog.core.types import Slot
from flcog.wire.envelope import Field

TYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}


@dataclass(frozen=True)
class LowPrecision(Codec):
    """Rounds everything that clients send to 16 bits, which halves the bytes of a run in float32.

    The server computes in the run's precision again::

        u_k -> round_16(u_k),    x <- x + sum_k p_k round_16(u_k)

    ``bf16`` keeps the range of float32 and 8 binary digits; ``fp16`` keeps 11 digits, and values above 65,504 become infinite, which the
    server reports as a bad update. Whole numbers, numbers of 16 bits or fewer, and tensors of fewer than 16 numbers are sent unchanged.

    Kalamkar et al., A Study of BFLOAT16 for Deep Learning Training, 2019, https://arxiv.org/abs/1905.12322.

    Args:
        type: ``bf16`` or ``fp16``.
    """

    type: Literal["bf16", "fp16"] = "bf16"

    def encode(self, values: Tensor, noise: Noise) -> Slot:
        return values.to(TYPES[self.type])

    def decode(self, encoded: Slot, field: Field) -> Tensor:
        return encoded
