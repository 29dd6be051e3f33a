"""EncodedBroadcast: the bytes of the broadcast, the server's error feedback, and clients that have missed rounds."""

from collections.abc import Iterable, Sequence
from functools import partial
from math import inf
from typing import Any

import pytest
import torch
from contracts.case import Case
from contracts.test_user_methods import Median
from engine.test_what_is_sent import selected
from harness import BatchNormMLP, RecordingTrainer, adapted, classifier, few_quickly, train
from reference import codecs, encoded_broadcast
from torch import Tensor

from flcog.callbacks import (
    SCAFFOLD,
    Deadline,
    EncodedBroadcast,
    FedBuff,
    FlexLoRA,
    LowPrecision,
    Quantize,
    RandomK,
    RotatedQuantize,
    SignSGD,
    SystemModel,
    TopK,
)
from flcog.callbacks.codecs.codec import Codec, Noise
from flcog.method import Broadcast, Method
from methods.codecs.byte_strings import to_bytes

FRACTION = 0.3


def top_k(v: codecs.Vector, u: None) -> codecs.Vector:
    return codecs.top_k(v, u, round(FRACTION * len(v)))


CASES: dict[str, Case] = {
    "EncodedBroadcast": Case(
        EncodedBroadcast(TopK(fraction=FRACTION)),
        partial(encoded_broadcast.run, compress=top_k, feedback=False),
        neutral=EncodedBroadcast(TopK(fraction=1.0)),
    ),
    "EncodedBroadcast with error feedback": Case(
        EncodedBroadcast(SignSGD(error_feedback=True)),
        partial(encoded_broadcast.run, compress=codecs.sign_sgd, feedback=True),
        module=partial(classifier, network=BatchNormMLP),
    ),
}

CODECS: Sequence[Codec] = (
    Quantize(bits=4, error_feedback=True),
    RotatedQuantize(bits=3),
    TopK(fraction=0.1, values=Quantize(bits=4)),
    RandomK(fraction=0.2, error_feedback=True),
    SignSGD(),
    LowPrecision(),
)


def length(codec: Codec, value: Tensor) -> int:
    return len(to_bytes(codec, value, Noise(torch.tensor(0), 0)))


def downloads(trainer: RecordingTrainer, codec: Codec, values: Iterable[Tensor]) -> list[dict[int, int]]:
    """The bytes that each client downloads in each round: the byte strings of missed rounds, or the tensors, if those are shorter."""
    tensors = list(values)
    whole, message = sum(value.nbytes for value in tensors), sum(length(codec, value) for value in tensors)
    found, last = [], dict[int, int]()
    for round in range(len(trainer.rows)):
        sizes = {}
        for client in selected(trainer, round):
            missed = [whole if number == 0 else message for number in range(last.get(client, -1) + 1, round + 1)]
            sizes[client] = min(whole, sum(missed)) if client in last else whole
            last[client] = round
        found.append(sizes)
    return found


@pytest.mark.parametrize("codec", few_quickly(CODECS, 3), ids=lambda codec: codec.name)
def test_the_ledger_counts_the_byte_strings_of_missed_rounds_or_the_whole_model(codec: Codec) -> None:
    module, rounds = partial(classifier, network=BatchNormMLP), 6
    trainer = train(SCAFFOLD(), EncodedBroadcast(codec), module=module(), rounds=rounds, clients_per_round=3, precision="32-true")
    tensors = {"model": trainer.state.values(), "SCAFFOLD": trainer.servers["SCAFFOLD"]["c"].values()}
    for sender, values in tensors.items():
        expected = sum(sum(sizes.values()) for sizes in downloads(trainer, codec, values))
        assert trainer.ledger.down[sender] == expected < 3 * rounds * sum(value.nbytes for value in values)
    assert sum(row["comm/down_bytes"] for row in trainer.rows) == trainer.ledger.total_down
    plain = train(SCAFFOLD(), module=module(), rounds=rounds, clients_per_round=3, precision="32-true")
    assert [row["comm/down_plain_bytes"] for row in trainer.rows] == [row["comm/down_bytes"] for row in plain.rows]
    assert trainer.ledger.total_up == plain.ledger.total_up and "comm/down_plain_bytes" not in plain.rows[0]


@pytest.mark.filterwarnings("ignore:round .. no client's update counts")
@pytest.mark.parametrize("methods", [(), (Deadline(seconds=1.0),), (FedBuff(buffer=2),)], ids=repr)
def test_each_client_takes_the_time_of_its_own_download(methods: tuple[Method, ...]) -> None:
    codec, clock = TopK(fraction=0.1, error_feedback=True), SystemModel(seconds_per_step=0, download=200.0, upload=None)
    trainer = train(EncodedBroadcast(codec), clock, *methods, rounds=8, clients_per_round=2, precision="32-true")
    rounds = [[size / 200 for size in sizes.values()] for sizes in downloads(trainer, codec, trainer.state.values())]
    assert any(min(seconds) < 1 < max(seconds) for seconds in rounds), "a new client and one that has taken part before"
    before, seconds_at_most = 0.0, 1.0 if methods and isinstance(methods[0], Deadline) else inf
    for row, seconds in zip(trainer.rows, rounds, strict=True):
        end, late = min(max(seconds), seconds_at_most), sum(each > seconds_at_most for each in seconds)
        assert row["time/simulated"] - before == pytest.approx(end, rel=1e-9) and row.get("clients/late", 0) == late
        waits = [end - each for each in seconds if each <= end]
        assert row["time/waiting"] == pytest.approx(sum(waits) / max(1, len(waits)), abs=1e-9)
        before = row["time/simulated"]


@pytest.mark.parametrize("executor", ["loop", "vmap"])
def test_clients_see_the_decoded_model_statistics_and_states(executor: str) -> None:
    trainer = train(SCAFFOLD(), EncodedBroadcast(SignSGD()), module=classifier(network=BatchNormMLP), rounds=2, executor=executor)
    known = trainer.servers["EncodedBroadcast"]["known"]
    program = trainer.recorder.assignments[-1].program
    received = {
        "model[0]": program.received.params,
        "model[1]": program.received.buffers,
        "SCAFFOLD['c']": program.broadcasts[0]["c"],
    }
    for prefix, tensors in received.items():
        for name, value in tensors.items():
            assert (f"{prefix}['{name}']" in known) == (value.numel() >= 16 and value.is_floating_point())
            if f"{prefix}['{name}']" in known:
                assert torch.equal(known[f"{prefix}['{name}']"], value)


def distance_from_the_optimum(codec: Codec) -> float:
    """The largest distance from the optimum after gradient descent on 1/2 ||x - b||^2 with an encoded broadcast.

    The gradients of the first ten coordinates have a large error of alternating sign; only the other ninety are measured.
    """
    method, optimum, state = EncodedBroadcast(codec), torch.ones(100, dtype=torch.float64), dict[str, Any]()
    x, error = torch.zeros(100, dtype=torch.float64), torch.zeros(100, dtype=torch.float64)
    error[:10] = 5.0
    for round in range(400):
        rng = torch.Generator().manual_seed(round)
        sent = method.send_down(state, Broadcast({"x": x}, {}, {}), [0], 1, rng)
        y, state = sent.broadcast.params["x"], sent.state
        x = (x if method.server_keeps_its_model else y) - 0.1 * (y - optimum + error * (-1) ** round)
    return float((x - optimum)[10:].abs().max())


@pytest.mark.slow
def test_with_error_feedback_the_optimum_is_found() -> None:
    plain, fed_back = (distance_from_the_optimum(TopK(fraction=0.1, error_feedback=on)) for on in (False, True))
    assert fed_back < 0.4 and plain > 0.8
    for codec in (SignSGD(error_feedback=True), Quantize(bits=4, error_feedback=True)):
        assert distance_from_the_optimum(codec) < 0.1, codec


def test_it_joins_a_codec_for_uploads_and_an_aggregator() -> None:
    trainer = train(EncodedBroadcast(LowPrecision(error_feedback=True)), TopK(fraction=0.2), Median(), rounds=2)
    assert {"comm/up_plain_bytes", "comm/down_plain_bytes"} <= trainer.rows[-1].keys()


def test_bytes_without_the_codec_leave_out_masked_entries() -> None:
    plain, coded = (train(FlexLoRA(ranks=[1, 2]), *methods, module=adapted(), rounds=1) for methods in ((), (LowPrecision(),)))
    assert coded.rows[0]["comm/up_plain_bytes"] == plain.rows[0]["comm/up_bytes"] > coded.rows[0]["comm/up_bytes"]


@pytest.mark.parametrize("codec", [RandomK(fraction=0.1), Quantize(bits=2)], ids=lambda codec: codec.name)
def test_errors_of_states_vanish_without_error_feedback(codec: Codec) -> None:
    """The clients' copy of a state approaches it, though the codec's own errors would grow from message to message."""
    method, server, rng = EncodedBroadcast(codec), {}, torch.Generator().manual_seed(0)
    for state in (torch.zeros(200), *[torch.linspace(-1, 1, 200)] * 80):
        sent = method.send_down(server, Broadcast({"w": torch.zeros(20)}, {}, {"SCAFFOLD": {"c": state}}), [0], 1, rng)
        server = sent.state
    assert float((sent.broadcast.server["SCAFFOLD"]["c"] - state).norm()) < 0.05 * float(state.norm())
