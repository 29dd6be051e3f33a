"""Messages as bytes: unpacking gives the packed message, and other bytes are refused."""

import json
import struct
import zlib
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from torch.utils import _pytree as pytree

from flcog.client.messages import ClientReply, ClientTask, Download
from flcog.method import Optimisation
from flcog.wire.envelope import Envelope, Field, Manifest
from flcog.wire.packing import FORMAT, PREFIX, TYPES, PackingError, pack, unpack


def random_tensor(rng: np.random.Generator) -> torch.Tensor:
    dtype = list(TYPES.values())[rng.integers(len(TYPES))]
    shape = rng.integers(0, 4, rng.integers(0, 5)).tolist()
    size = int(np.prod(shape)) * torch.empty((), dtype=dtype).element_size()
    values = torch.from_numpy(rng.integers(0, 2 if dtype == torch.bool else 256, size).astype(np.uint8))
    tensor = values.view(dtype).reshape(shape) if size else torch.empty(shape, dtype=dtype)
    return tensor.permute(rng.permutation(tensor.ndim).tolist())


def random_tree(rng: np.random.Generator, depth: int, tensors: list[torch.Tensor]) -> Any:
    kind = rng.integers(0, 10 if depth else 6)
    if kind < 2:
        return tensors[rng.integers(len(tensors))]
    if kind < 6:
        leaves = [None, True, -3, 2**70, 0.1, -0.0, float("inf"), "text \ud800", torch.bfloat16, rng.integers(9).item()]
        return leaves[rng.integers(len(leaves))]
    parts = [random_tree(rng, depth - 1, tensors) for _ in range(rng.integers(0, 4))]
    if kind == 6:
        return parts
    if kind == 7:
        return tuple(parts)
    if kind == 8:
        return dict(zip(["a", 7, -1, ""], parts, strict=False))
    return Envelope({"w": tensors[0]}, {}, {"M": parts}, measured={"loss": tensors[-1]})


def alike(a: Any, b: Any) -> bool:
    if isinstance(a, torch.Tensor):
        bits = [t.contiguous().reshape(-1).view(torch.uint8) for t in (a, b)]
        return a.dtype == b.dtype and a.shape == b.shape and torch.equal(*bits)
    return type(a) is type(b) and repr(a) == repr(b)


@pytest.mark.parametrize("seed", range(40))
def test_what_comes_back_is_what_was_packed(seed: int) -> None:
    rng = np.random.default_rng(seed)
    tree = random_tree(rng, 4, [random_tensor(rng) for _ in range(3)])
    data = pack(tree)
    back = unpack(data)
    leaves, spec = pytree.tree_flatten(tree)
    other, same = pytree.tree_flatten(back)
    assert spec == same and all(map(alike, leaves, other)) and pack(back) == data
    kinds = [
        [[a is b for a in part] for b in part] for part in ([x for x in each if torch.is_tensor(x)] for each in (leaves, other))
    ]
    assert kinds[0] == kinds[1], "tensors that are one object stay one object"


def test_messages_of_a_round_come_back() -> None:
    w = torch.randn(2, 3)
    received = Download(3, 2**62, {"w": w}, {}, {"FedProx": {}}, [0.1], Optimisation(0.1, 0.9, 0.0))
    task = ClientTask(4, 5, 0.25, {"w": torch.tensor([[True], [False]])})
    envelope = Envelope({"w": w}, {}, {}, {"SCAFFOLD": {"delta": w}})
    manifest = Manifest({"model": 24}, {"model": 24}, {}, {}, Envelope(Field((3,), torch.float32), {}))
    reply = ClientReply([4], envelope, manifest, [0], [0])
    for message in (received, task, reply):
        assert type(unpack(pack(message))) is type(message)
    back = unpack(pack(reply))
    assert back.envelope.delta["w"] is back.envelope.sum["SCAFFOLD"]["delta"] and back.manifest == reply.manifest
    large = torch.zeros(1000)
    assert len(pack([large] * 9)) < 5000 < len(pack([large, large.clone()]))


def test_images_keep_their_order_in_memory_and_tensors_can_be_written_to() -> None:
    images = torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last)
    back = unpack(bytearray(pack(images)))
    assert back.stride() == images.stride() and torch.equal(back, images)
    back += 1
    assert torch.equal(unpack(pack(torch.ones(3).expand(2, 3))), torch.ones(2, 3))


class Unknown(NamedTuple):
    value: int


@pytest.mark.parametrize("value", [object(), {1.5: 2}, {3j}, Unknown(1), torch.zeros(2, dtype=torch.complex64), np.float64(1)])
def test_other_values_are_refused(value: Any) -> None:
    with pytest.raises(PackingError, match="message") as caught:
        pack({"part": [value]})
    assert "\n" not in str(caught.value)


def repacked(header: Any, values: bytes = b"") -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    rest = struct.pack("<Q", len(text)) + text + values
    return FORMAT + struct.pack("<I", zlib.crc32(rest)) + rest


def tensor_of(shape: Any, order: Any, dtype: str = "float32", values: bytes = b"") -> bytes:
    return repacked({"tree": {"tensor": 0}, "tensors": [[dtype, shape, order]]}, values)


DAMAGED = {
    "empty": b"",
    "of another format": b"PK" + bytes(40),
    "too short": pack(torch.ones(3))[: PREFIX.size],
    "no header": repacked(b"{"),
    "a header that is no object": repacked([1]),
    "a header without end": repacked(b"[" * 100_000),
    "a tensor larger than memory": tensor_of([2**40, 2**20], [0, 1]),
    "an axis of 2^63": tensor_of([2**63, 0], [0, 1]),
    "two axes of 2^62": tensor_of([2**62, 2**62, 0], [0, 1, 2]),
    "100,000 axes": tensor_of([1] * 100_000, [*range(100_000)], "int8", b"0"),
    "empty tensors without end": repacked({"tree": 0, "tensors": [["int8", [0], [0]]] * 5000}),
    "a negative length": tensor_of([-1], [0]),
    "a length that is a fraction": tensor_of([1.0], [0], values=bytes(4)),
    "axes twice": tensor_of([1, 1], [0, 0], values=bytes(4)),
    "an unknown type": tensor_of([1], [0], "object", bytes(8)),
    "a tensor cut short": tensor_of([2], [0], values=bytes(4)),
    "bytes that nothing names": repacked({"tree": None, "tensors": []}, bytes(4)),
    "a truth value of 2": tensor_of([1], [0], "bool", b"\x02"),
    "a tensor that is not there": repacked({"tree": {"tensor": 1}, "tensors": []}),
    "an unknown message": repacked({"tree": {"os.system": {"command": "true"}}, "tensors": []}),
    "a message of another version": repacked({"tree": {"Optimisation": {"speed": 1}}, "tensors": []}),
    "a tree of two kinds": repacked({"tree": {"tuple": [], "dict": []}, "tensors": []}),
}


@pytest.mark.parametrize("name", DAMAGED)
def test_bytes_that_are_no_message_are_refused(name: str) -> None:
    with pytest.raises(PackingError, match="message") as caught:
        unpack(DAMAGED[name])
    assert "\n" not in str(caught.value) and len(str(caught.value)) < 250


def test_a_flipped_bit_is_found() -> None:
    data = pack({"w": torch.arange(5), "name": "x"})
    for place in range(len(data)):
        damaged = bytearray(data)
        damaged[place] ^= 4
        with pytest.raises(PackingError):
            unpack(damaged)
