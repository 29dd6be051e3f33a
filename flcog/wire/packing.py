"""Messages as bytes: pack a tree of tensors and primitives, and unpack it, without pickle.

Layout: eight bytes that name the format, the CRC-32 of the rest as four bytes, the header's length as eight bytes, the header,
and the tensors' values. Integers are little-endian, and so are values on the machines of torch. The header is JSON: the tree,
and each tensor's type, shape and order of axes in memory. A tensor that appears twice in the tree is stored once.
"""

import itertools
import json
import math
import struct
import zlib
from collections.abc import Mapping
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor

from flcog.core.text import first_line

FORMAT = b"flcog\x00\x00\x01"
PREFIX = struct.Struct("<8sIQ")
TYPES = {
    str(dtype).removeprefix("torch."): dtype
    for dtype in (
        *(torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.float8_e4m3fn, torch.float8_e5m2),
        *(torch.int64, torch.int32, torch.int16, torch.int8, torch.uint64, torch.uint32, torch.uint16, torch.uint8, torch.bool),
    )
}
"""The types of tensors that can be packed, by name."""

MOST_AXES, MOST_EMPTY = 64, 1000
"""The most axes of a tensor, and the most empty tensors, which claim no bytes."""

MESSAGES: dict[str, type[Any]] = {}
"""The named tuples that can be packed, by name."""

Message = TypeVar("Message", bound=type[Any])


class PackingError(ValueError):
    """A value that cannot be packed, or bytes that are damaged or of another format."""


class Limits(NamedTuple):
    """The most bytes of a message that is unpacked. A header takes much more memory once it is read."""

    header: int
    values: int

    @classmethod
    def of(cls, data: bytes) -> "Limits":
        """The bytes of a packed message."""
        _, _, length = PREFIX.unpack_from(data)
        return cls(length, len(data) - PREFIX.size - length)


class _Layout(NamedTuple):
    """One tensor's place among the values.

    ``order`` are its axes from the outermost in memory to the innermost, which decides how fast convolutions read it.
    """

    dtype: torch.dtype
    shape: list[int]
    order: list[int]
    num_bytes: int


def message(kind: Message) -> Message:
    """A class decorator: allow a named tuple to be packed under the name of its class."""
    MESSAGES[kind.__name__] = kind
    return kind


def pack(tree: Any) -> bytes:
    """A tree as bytes.

    Args:
        tree: tensors, numbers, strings, None, ``torch.dtype``, and dicts (with strings or integers as keys), lists, tuples and
            :func:`message` named tuples of these. Tensors may lie on any device.

    >>> unpack(pack({"weights": torch.ones(2), 3: (True, None)}))
    {'weights': tensor([1., 1.]), 3: (True, None)}
    """
    tensors: dict[int, tuple[int, Tensor]] = {}
    described = _describe(tree, tensors)
    ordered = [(tensor, _order(tensor)) for _, tensor in tensors.values()]
    rows = [[str(tensor.dtype).removeprefix("torch."), list(tensor.shape), order] for tensor, order in ordered]
    header = json.dumps({"tree": described, "tensors": rows}, allow_nan=False, separators=(",", ":")).encode()
    parts: list[Any] = [struct.pack("<Q", len(header)), header, *(_values(tensor, order) for tensor, order in ordered)]
    crc = 0
    for part in parts:
        crc = zlib.crc32(part, crc)
    return b"".join([FORMAT, struct.pack("<I", crc), *parts])


def unpack(data: bytes | bytearray | memoryview, limits: Limits | None = None) -> Any:
    """The inverse of :func:`pack`. Tensors lie on the CPU. Damaged bytes, and more bytes than the limits, raise a :class:`PackingError`."""
    view = memoryview(data).cast("B")
    if len(view) < PREFIX.size or bytes(view[: len(FORMAT)]) != FORMAT:
        raise PackingError(f"these {len(view)} bytes are no message of flcog: they begin with {bytes(view[:8])!r}")
    _, crc, length = PREFIX.unpack_from(view)
    got = Limits(length, len(view) - PREFIX.size - length)
    if got.values < 0:
        raise PackingError(f"the message's header should have {length} bytes; the message ends after {len(view) - PREFIX.size}")
    if limits is not None and not (got.header <= limits.header and got.values <= limits.values):
        raise PackingError(
            f"the message has {got.header} and {got.values} bytes, and at most {limits.header} and {limits.values} are due"
        )
    if zlib.crc32(view[len(FORMAT) + 4 :]) != crc:
        raise PackingError("the message is damaged: its checksum does not match its content; send it again")
    try:
        header = json.loads(bytes(view[PREFIX.size : PREFIX.size + length]))
        tree, rows = header["tree"], header["tensors"]
        if len(rows) > got.values + MOST_EMPTY:
            raise ValueError(f"{len(rows)} tensors in {got.values} bytes, of which at most {MOST_EMPTY} may be empty")
        layouts = [_layout(*row) for row in rows]
        ends = list(itertools.accumulate((layout.num_bytes for layout in layouts), initial=0))
        if ends[-1] != got.values:
            raise ValueError(f"its tensors should have {ends[-1]} bytes; it has {got.values}")
        values = view[PREFIX.size + length :]
        tensors = [_tensor(layout, values[begin:end]) for layout, begin, end in zip(layouts, ends, ends[1:], strict=False)]
        return _rebuild(tree, tensors)
    except Exception as error:  # a sender may have written anything
        raise PackingError(f"the message cannot be read: {first_line(error)[:200]}") from error


def _describe(value: Any, tensors: dict[int, tuple[int, Tensor]]) -> Any:
    """The value in JSON. A value that JSON lacks becomes an object with one key, which names the kind of value."""
    if value is None or type(value) in (bool, int, str):
        return value
    if type(value) is float:
        return value if math.isfinite(value) else {"float": repr(value)}
    if isinstance(value, Tensor):
        if str(value.dtype).removeprefix("torch.") not in TYPES or value.layout != torch.strided:
            raise PackingError(f"a message's tensors are dense, of {', '.join(TYPES)}; got {value.dtype} ({value.layout})")
        return {"tensor": tensors.setdefault(id(value), (len(tensors), value))[0]}
    if isinstance(value, torch.dtype):
        return {"dtype": str(value).removeprefix("torch.")}
    if isinstance(value, Mapping):
        unlike = next((key for key in value if type(key) not in (str, int)), None)
        if unlike is not None:
            raise PackingError(f"a message's dicts have strings or integers as keys; got {unlike!r} ({type(unlike).__name__})")
        return {"dict": [[key, _describe(each, tensors)] for key, each in value.items()]}
    if type(value) is list:
        return [_describe(each, tensors) for each in value]
    if type(value) in (tuple, torch.Size):
        return {"tuple": [_describe(each, tensors) for each in value]}
    if MESSAGES.get(type(value).__name__) is type(value):
        return {type(value).__name__: {name: _describe(getattr(value, name), tensors) for name in value._fields}}
    raise PackingError(
        f"a message contains tensors, numbers, strings, None, dicts, lists and tuples, and {', '.join(sorted(MESSAGES))}; got "
        f"{type(value).__module__}.{type(value).__qualname__}"
    )


def _rebuild(described: Any, tensors: list[Tensor]) -> Any:
    if isinstance(described, list):
        return [_rebuild(each, tensors) for each in described]
    if not isinstance(described, dict):
        return described
    ((kind, content),) = described.items()
    if kind == "tensor" and 0 <= content < len(tensors):
        return tensors[content]
    if kind == "float":
        return {"nan": math.nan, "inf": math.inf, "-inf": -math.inf}[content]
    if kind == "dtype":
        return TYPES[content]
    if kind == "dict":
        return {key: _rebuild(each, tensors) for key, each in content}
    if kind == "tuple":
        return tuple(_rebuild(each, tensors) for each in content)
    if kind not in MESSAGES:
        raise ValueError(f"this version of flcog does not know the value {kind}")
    return MESSAGES[kind](**{name: _rebuild(each, tensors) for name, each in content.items()})


def _order(tensor: Tensor) -> list[int]:
    """The axes from the outermost in memory to the innermost; as they are, unless the tensor fills its memory in another order."""
    axes = list(range(tensor.ndim))
    if tensor.is_contiguous():
        return axes
    order = sorted(axes, key=lambda axis: (-tensor.stride()[axis], axis))
    return order if tensor.permute(order).is_contiguous() else axes


def _values(tensor: Tensor, order: list[int]) -> memoryview:
    if not tensor.numel():
        return memoryview(b"")
    array = tensor.detach().permute(order).contiguous().reshape(-1).cpu().view(torch.uint8).numpy()
    return memoryview(array.reshape(-1).data)


def _layout(name: str, shape: list[int], order: list[int]) -> _Layout:
    if name not in TYPES:
        raise ValueError(f"{name} is no type of tensor")
    few = len(shape) <= MOST_AXES and all(type(length) is int and length >= 0 for length in shape)
    if not few or math.prod(max(1, length) for length in shape) >= 2**60 or sorted(order) != list(range(len(shape))):
        raise ValueError(f"no tensor has the shape {str(shape)[:60]} with axes in the order {str(order)[:60]}")
    return _Layout(TYPES[name], shape, order, math.prod(shape) * TYPES[name].itemsize)


def _tensor(layout: _Layout, values: memoryview) -> Tensor:
    tensor = torch.empty([layout.shape[axis] for axis in layout.order], dtype=layout.dtype)
    content = torch.empty(0, dtype=torch.uint8)
    if layout.num_bytes:
        content = tensor.reshape(-1).view(torch.uint8)
        memoryview(content.numpy().data)[:] = values
    if layout.dtype == torch.bool and bool((content > 1).any()):
        raise ValueError("its truth values are neither 0 nor 1")
    return tensor.permute([layout.order.index(axis) for axis in range(len(layout.shape))])
