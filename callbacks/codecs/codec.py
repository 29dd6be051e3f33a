"""The base of all codecs: the walk over an envelope's tensors, the random numbers of encoding, and the length of an encoded tensor."""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from functools import lru_cache
from itertools import count
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from flcog.callbacks.parts.noise import draw_key, uniform, words
from flcog.core.types import Params, Slot
from flcog.method import ClientView, Context, GlobalModel, Stage
from flcog.wire.envelope import Envelope, Field, map_fields, message_bytes

TINY = 16
"""Tensors of fewer numbers are sent unchanged: single numbers, such as FedNova's counts of steps, and the biases of small heads."""


class Noise(NamedTuple):
    """The random numbers for encoding one tensor, which depend on the client, the round and the place of the tensor alone.

    The depth is 0 for a codec, and 1 for the codec of its values.
    """

    key: Tensor
    place: int
    depth: int = 0

    def uniform(self, shape: tuple[int, ...]) -> Tensor:
        """Values in [0, 1)."""
        return uniform(self.key, self.place, shape, self.depth)

    def seed(self) -> Tensor:
        """One whole number, which can be sent so that the receiver repeats random choices."""
        return words(self.key, self.place, (), self.depth)

    def inner(self) -> "Noise":
        """The random numbers for the codec of the values."""
        return self._replace(depth=self.depth + 1)


@dataclass(frozen=True, kw_only=True)
class Codec(Stage, ABC, protocol=True):
    """Encodes each tensor of the envelope by itself: the change of the model, the change of the buffers, and all messages.

    Whole numbers, tensors of fewer than ``TINY`` numbers, and tensors that encoding would not make shorter, are sent unchanged.

    Args:
        error_feedback: whether each client adds the error of its last upload, the residual, to its next upload (Seide et al., 2014).
    """

    error_feedback: bool = False

    kind = "encode"

    @abstractmethod
    def encode(self, values: Tensor, noise: Noise) -> Slot:
        """A vector of floating-point numbers as a tree of tensors, whose bytes are sent. *Pure.*

        With error feedback the expected squared error must be smaller than the squared norm.
        """

    @abstractmethod
    def decode(self, encoded: Slot, field: Field) -> Tensor:
        """The vector that the receiver sees, in any floating-point type. *Pure.*

        Args:
            encoded: the result of ``encode``.
            field: the shape [n] and the type of the vector.
        """

    def encodes(self, value: Any) -> bool:
        """Whether a tensor, or the :class:`Field` of a tensor, is encoded."""
        if not isinstance(value, Tensor | Field) or not value.dtype.is_floating_point:
            return False
        size = torch.Size(value.shape).numel()
        return size >= TINY and encoded_bytes(self, size, value.dtype) < size * value.dtype.itemsize

    def draw(self, rng: torch.Generator, client: ClientView) -> Slot:
        return {"key": draw_key(rng)}

    @property
    def votes(self) -> bool:
        """Whether clients vote on each number of the model's change, which therefore all clients must send."""
        return False

    @property
    def keeps_residual(self) -> bool:
        return self.error_feedback

    def send(self, envelope: Envelope, ctx: Context) -> tuple[Envelope, Slot]:
        places, residual = count(), dict(ctx.state)

        def encoded(value: Tensor, name: str) -> Any:
            if not self.encodes(value):
                return value
            value = value + residual[name] if name in residual else value
            result = self.encode(value.reshape(-1), Noise(ctx.draws["key"], next(places)))
            if self.error_feedback:
                residual[name] = value - self._decoded(result, Field(tuple(value.shape), value.dtype))
            return result

        changes = envelope._replace(buffers=self._moved(envelope.buffers, envelope.buffers, ctx.received, -1))
        names = pytree.tree_map_with_path(lambda path, _: pytree.keystr(path), changes)
        return map_fields(encoded, changes, names), residual

    def _decoded(self, encoded: Slot, field: Field) -> Tensor:
        flat = Field((torch.Size(field.shape).numel(),), field.dtype)
        return self.decode(encoded, flat).to(field.dtype).view(field.shape)

    def receive(self, envelope: Envelope, fields: Any, received: GlobalModel) -> Envelope:
        done: dict[tuple[int, ...], Tensor] = {}

        def decoded(field: Field, value: Any) -> Any:
            if not self.encodes(field):
                return value
            parts = tuple(map(id, pytree.tree_leaves(value)))
            if parts not in done:  # a tensor that appears twice is one tensor again
                done[parts] = self._decoded(value, field)
            return done[parts]

        places, spec = pytree.tree_flatten(fields, is_leaf=lambda part: isinstance(part, Field))
        values = spec.flatten_up_to(envelope._replace(measured=fields.measured))
        found = pytree.tree_unflatten(list(map(decoded, places, values)), spec)
        return found._replace(buffers=self._moved(found.buffers, fields.buffers, received, 1), measured=envelope.measured)

    def _moved(self, buffers: Params, fields: Any, received: GlobalModel, sign: int) -> Params:
        """The buffers, with changes in the place of encoded buffers (sign -1), or the reverse (sign 1)."""
        return {
            name: value.add(received.buffers[name], alpha=sign) if self.encodes(fields[name]) else value
            for name, value in buffers.items()
        }


@lru_cache(maxsize=1024)
def encoded_bytes(codec: Codec, size: int, dtype: torch.dtype) -> int:
    """The length of the encoded form of a vector.

    >>> from flcog.callbacks import Quantize
    >>> encoded_bytes(Quantize(bits=4), 100, torch.float32)
    54
    """
    key = torch.empty((), dtype=torch.int64, device="meta")
    encoded = codec.encode(torch.empty(size, dtype=dtype, device="meta"), Noise(key, 0))
    return sum(map(message_bytes, pytree.tree_leaves(encoded)))
