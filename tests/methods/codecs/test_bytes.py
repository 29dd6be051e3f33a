"""Codecs make byte strings, and the ledger counts their lengths."""

from collections.abc import Sequence
from functools import partial
from typing import Any

import pytest
import torch
from harness import BatchNormMLP, Spoils, classifier, few_quickly, train
from torch import Tensor

from flcog.callbacks import SCAFFOLD, FedCOG, FedDisco, FedNova, LowPrecision, Quantize, RandomK, RotatedQuantize, SignSGD, TopK
from flcog.callbacks.codecs.bits import pack_bits, packed_bytes, unpack_bits
from flcog.callbacks.codecs.codec import Codec, Noise
from flcog.method import Context, Envelope, GlobalModel, Method
from flcog.server.aggregate import BadUpdate
from flcog.wire.envelope import Field, fields_of, map_fields, sizes_of
from methods.codecs.byte_strings import from_bytes, to_bytes

CODECS: Sequence[Codec] = (Quantize(bits=5, bucket=30), Quantize(bits=16, stochastic=False), LowPrecision())
ALL_CODECS: Sequence[Codec] = (
    *CODECS,
    RotatedQuantize(bits=3, bucket=64),
    TopK(fraction=0.1),
    TopK(fraction=0.5, values=Quantize(bits=4)),  # positions as a mask of bits, and levels of the values
    RandomK(fraction=0.2, values=Quantize(bits=3)),
    SignSGD(),
)
each = pytest.mark.parametrize("codec", CODECS, ids=repr)
each_of_all = pytest.mark.parametrize("codec", ALL_CODECS, ids=repr)


def test_numbers_of_any_length_are_packed_without_gaps() -> None:
    for bits in range(1, 25):
        for count in (1, 7, 8, 9, 31):
            codes = torch.randint(2**bits, (3, count))
            packed = torch.func.vmap(partial(pack_bits, bits=bits))(codes)
            assert packed.dtype == torch.uint8 and packed.shape == (3, packed_bytes(count, bits))
            assert count * bits / 8 <= packed_bytes(count, bits) < count * bits / 8 + 1
            assert torch.equal(torch.func.vmap(partial(unpack_bits, bits=bits, count=count))(packed), codes)


def envelope_of(dtype: torch.dtype = torch.float32) -> tuple[Envelope, GlobalModel]:
    rng = torch.Generator().manual_seed(0)
    weight, large = torch.randn(5, 40, generator=rng, dtype=dtype), torch.randn(200, generator=rng, dtype=dtype)
    buffers = {"mean": torch.randn(50, generator=rng, dtype=dtype), "count": torch.tensor(3)}
    received = {name: torch.zeros_like(value) for name, value in buffers.items()}
    message = {"c": large, "delta": weight, "ids": torch.arange(100), "bias": weight[0, :3].clone()}
    return Envelope({"w": weight, "b": large[:4].clone()}, buffers, {}, {"Method": message}), GlobalModel({}, received)


def sent(codec: Codec, envelope: Envelope, received: GlobalModel) -> Envelope:
    context = Context(received, {}, {}, {"key": torch.tensor(7)}, {}, {}, 0, 1, None, None)  # type: ignore[arg-type]
    return codec.send(envelope, context)[0]


@each_of_all
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_the_bytes_of_an_envelope_are_those_that_are_counted(codec: Codec, dtype: torch.dtype) -> None:
    envelope, received = envelope_of(dtype)
    encoded, strings, places = sent(codec, envelope, received), [], iter(range(100))

    def through_bytes(value: Tensor) -> Tensor:
        noise = Noise(torch.tensor(7), next(places) if codec.encodes(value) else 0)
        strings.append(to_bytes(codec, value, noise))
        return from_bytes(codec, strings[-1], Field(tuple(value.shape), value.dtype))

    back = map_fields(through_bytes, envelope)
    assert sum(map(len, strings)) == sum(sizes_of(encoded).values()) <= sum(sizes_of(envelope).values())
    decoded = codec.receive(encoded, fields_of(envelope), received)
    leaves = [torch.utils._pytree.tree_leaves(tree) for tree in (back, decoded)]
    for ours, theirs in zip(*leaves, strict=True):
        assert ours.dtype == theirs.dtype and torch.equal(ours, theirs)


@each_of_all
def test_whole_numbers_and_tiny_tensors_are_sent_as_they_are(codec: Codec) -> None:
    envelope, received = envelope_of()
    message = codec.receive(sent(codec, envelope, received), fields_of(envelope), received).sum["Method"]
    assert torch.equal(message["ids"], torch.arange(100))
    assert torch.equal(message["bias"], envelope.sum["Method"]["bias"])
    assert not torch.equal(message["c"], envelope.sum["Method"]["c"])


@each
@pytest.mark.parametrize("executor", few_quickly(["vmap", "loop"], 1))
@pytest.mark.parametrize(
    "method", few_quickly([SCAFFOLD(), FedDisco(), FedCOG(num_samples=4, steps=1), FedNova()]), ids=lambda m: m.name
)
def test_the_ledger_counts_the_byte_strings_of_all_senders(codec: Codec, method: Method, executor: str) -> None:
    module = partial(classifier, network=BatchNormMLP)
    options: dict[str, Any] = {"precision": "32-true", "rounds": 1, "executor": executor}
    plain, coded = (train(method, *methods, module=module(), **options) for methods in ((), (codec,)))

    def length(value: Tensor) -> int:
        return len(to_bytes(codec, value, Noise(torch.tensor(0), 0)))

    model = module().float().state_dict()
    expected = 5 * sum(map(length, model.values()))
    assert coded.ledger.up["model"] == expected < plain.ledger.up["model"]
    if method.name == "SCAFFOLD":
        assert coded.ledger.up["SCAFFOLD"] == 5 * sum(length(model[name]) for name, _ in module().named_parameters())
    else:
        assert coded.ledger.up[method.name] == plain.ledger.up[method.name]
    assert coded.ledger.total_down == plain.ledger.total_down
    assert coded.rows[0]["comm/up_plain_bytes"] == plain.rows[0]["comm/up_bytes"] - plain.ledger.up.get("FedDisco", 0)
    assert "comm/up_plain_bytes" not in plain.rows[0]


@each_of_all
def test_a_model_with_nan_is_reported_in_one_line(codec: Codec) -> None:
    with pytest.raises(BadUpdate, match="the update of client 3 in round 1 is NaN or infinite") as error:
        train(Spoils(), codec, rounds=1, clients_per_round=8)
    assert "\n" not in str(error.value)
