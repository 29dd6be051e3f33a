"""LowPrecision: clients send numbers of 16 bits."""

from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from flcog.core.checks import one_of
from flcog.core.types import Slot
from flcog.method import Context, Stage
from flcog.method.stage import Kind
from flcog.wire.envelope import Envelope, map_fields

TYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}


@dataclass(frozen=True)
class LowPrecision(Stage):
    """Rounds everything that clients send to 16 bits, which halves the bytes of a run in float32.

    The server computes in the run's precision again::

        u_k -> round_16(u_k),    x <- x + sum_k p_k round_16(u_k)

    ``bf16`` keeps the range of float32 and 8 binary digits; ``fp16`` keeps 11 digits, and values above 65,504 become infinite, which the
    server reports as a bad update. Whole numbers, and numbers of 16 bits or fewer, are sent unchanged.

    Kalamkar et al., A Study of BFLOAT16 for Deep Learning Training, 2019, https://arxiv.org/abs/1905.12322.

    Args:
        type: ``bf16`` or ``fp16``.

    Example:
        >>> LowPrecision("fp16").kind
        'encode'
    """

    type: Literal["bf16", "fp16"] = "bf16"

    kind: ClassVar[Kind] = "encode"

    def __post_init__(self) -> None:
        super().__post_init__()
        one_of(self, tuple(TYPES), "type")

    def send(self, envelope: Envelope, ctx: Context) -> tuple[Envelope, Slot]:
        return map_fields(lambda value: value.to(TYPES[self.type]) if _is_wide(value) else value, envelope), ctx.state

    def receive(self, envelope: Envelope, fields: Any) -> Envelope:
        return map_fields(lambda value, field: value.to(field.dtype), envelope, fields)


def _is_wide(value: object) -> bool:
    """Whether it is a floating-point tensor of more than 16 bits."""
    return isinstance(value, Tensor) and value.is_floating_point() and value.element_size() > 2
