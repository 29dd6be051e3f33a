"""SignSGD: one bit for each number."""

from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from flcog.callbacks.codecs.bits import pack_bits, unpack_bits
from flcog.callbacks.codecs.codec import Codec, Noise
from flcog.core.precision import number_dtype
from flcog.core.types import Params, Slot
from flcog.method import Cohort, GlobalModel, Messages
from flcog.wire.envelope import Envelope, Field

TIE = 1e-6
"""A smaller difference between the shares of votes is a tie, because shares are rounded."""


@dataclass(frozen=True)
class SignSGD(Codec):
    """Sends the sign of each number, and the mean magnitude of each tensor.

    The server takes the weighted mean of the clients' tensors, or lets them vote on the signs of the model's change::

        mean:      v -> sum_k p_k s_k sign(v_k),                          s_k = ||v_k||_1 / d
        majority:  v -> (sum_k p_k s_k) sign(sum_k p_k sign(v_k))

    Each client has as many votes as its aggregation weight; list ``EqualWeights`` for one vote each. A robust rule replaces the weighted
    means of the votes and of the scales. Buffers and messages are averaged in both forms. A sign is one bit, so 0 counts as positive; a
    tensor of zeros has no vote, and an exact tie changes nothing. The error is biased: list the codec with ``error_feedback``, so that
    each client adds it to its next change.

    Bernstein et al., signSGD: Compressed Optimisation for Non-Convex Problems, ICML 2018, https://arxiv.org/abs/1802.04434; Karimireddy et
    al., Error Feedback Fixes SignSGD and other Gradient Compression Schemes, ICML 2019, https://arxiv.org/abs/1901.09847 (the scale).

    Args:
        combine: ``mean``, or ``majority`` for a vote.
    """

    combine: Literal["mean", "majority"] = "mean"

    @property
    def votes(self) -> bool:
        """Whether the clients vote."""
        return self.combine == "majority"

    def encode(self, values: Tensor, noise: Noise) -> Slot:
        scale = values.abs().mean(dtype=number_dtype(values.dtype))
        return {"scale": scale, "signs": pack_bits((values >= 0).long(), 1)}

    def decode(self, encoded: Slot, field: Field) -> Tensor:
        signs = unpack_bits(encoded["signs"], 1, field.shape[0])
        return torch.where(signs == 1, encoded["scale"], -encoded["scale"])

    def receive(self, envelope: Envelope, fields: Any, received: GlobalModel) -> Envelope:
        decoded = super().receive(envelope, fields, received)
        if not self.votes:
            return decoded
        encoded: Any = envelope.delta
        names = [name for name in decoded.delta if self.encodes(fields.delta[name])]
        ballot = {
            "votes": {name: decoded.delta[name].sign() for name in names},
            "scale": {name: encoded[name]["scale"] for name in names},
        }
        return decoded._replace(mean={**decoded.mean, self.name: ballot}, sum={**decoded.sum, self.name: {}})

    def server_step(self, server: Slot, params: Params, delta: Params, messages: Messages, cohort: Cohort) -> tuple[Params, Slot]:
        votes, scale = messages.mean.get("votes", {}), messages.mean.get("scale", {})
        clear = {name: torch.where(value.abs() > TIE, value, 0).sign() for name, value in votes.items()}
        return delta | {name: sign * scale[name].to(sign.dtype) for name, sign in clear.items()}, server
