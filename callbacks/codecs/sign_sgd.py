"""SignSGD: one bit for each number."""

from dataclasses import dataclass

import torch
from torch import Tensor

from flcog.callbacks.codecs.bits import pack_bits, unpack_bits
from flcog.callbacks.codecs.codec import Codec, Noise
from flcog.core.precision import number_dtype
from flcog.core.types import Slot
from flcog.wire.envelope import Field


@dataclass(frozen=True)
class SignSGD(Codec):
    """Sends the sign of each number, and the mean magnitude of each tensor.

    The receiver sees, for a tensor v of d numbers::

        v_i -> sign(v_i) ||v||_1 / d

    The error is biased: list it with ``error_feedback``, so that each client adds it to its next change.

    Bernstein et al., signSGD: Compressed Optimisation for Non-Convex Problems, ICML 2018, https://arxiv.org/abs/1802.04434; Karimireddy et
    al., Error Feedback Fixes SignSGD and other Gradient Compression Schemes, ICML 2019, https://arxiv.org/abs/1901.09847 (the scale).

    Example:
        >>> SignSGD(error_feedback=True).kind
        'encode'
    """

    def encode(self, values: Tensor, noise: Noise) -> Slot:
        scale = values.abs().mean(dtype=number_dtype(values.dtype))
        return {"scale": scale, "signs": pack_bits((values >= 0).long(), 1)}

    def decode(self, encoded: Slot, field: Field) -> Tensor:
        signs = unpack_bits(encoded["signs"], 1, field.shape[0])
        return torch.where(signs == 1, encoded["scale"], -encoded["scale"])
