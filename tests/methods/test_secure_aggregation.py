"""SecureAggregation: the server's view, drop-outs, late uploads, ranges, and equality with plain sums."""

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from contracts.case import Case
from engine.test_lost_replies import Tolerant, lose, prepared
from harness import RAGGED, BatchNormMLP, Spoils, TinyData, assert_close, classifier, distance, few_quickly, train
from reference import secure_aggregation
from scipy.stats import chisquare
from torch import Tensor

from flcog.callbacks import SCAFFOLD, Deadline, FedDisco, FedNova, SecureAggregation
from flcog.callbacks.secure_aggregation import pair_masks, reveal, stream
from flcog.client.messages import ClientReply
from flcog.method import Method, RoundKeys
from flcog.server.aggregate import BadUpdate

# With twelve binary digits rounding is visible, and values of two executors that differ in the last bit round to the same number.
COARSE = SecureAggregation(bits=32, fraction_bits=12)
case = partial(
    Case, COARSE, partial(secure_aggregation.run, fraction_bits=12), neutral=SecureAggregation(fraction_bits=48), random=True
)
CASES: dict[str, Case] = {
    "SecureAggregation": case(),
    "SecureAggregation with statistics": case(module=partial(classifier, network=BatchNormMLP)),
}


def is_uniform(words: Tensor) -> bool:
    """Whether all values of a byte are equally frequent, in each of a word's bytes."""
    octets = words.numpy().view(np.uint8).reshape(-1, words.element_size())
    return all(chisquare(np.bincount(column, minlength=256)).pvalue > 1e-4 for column in octets.T)


@pytest.mark.parametrize("bits", [32, 64])
def test_every_proper_subset_of_messages_is_uniform_and_their_sum_is_not(bits: int) -> None:
    rule, keys = SecureAggregation(bits=bits), RoundKeys("5ec3e7", [3, 5, 8])
    values = torch.linspace(-2, 2, 3 * 20_000, dtype=torch.float64).view(3, -1)
    words = torch.stack([rule.seal(values[k], client, keys) for k, client in enumerate(keys.clients)])
    subsets = [[0], [1], [2], [0, 1], [0, 2], [1, 2], [0, 1, 2]]
    # The clients' own masks hide even the sum of all messages until they are revealed.
    assert all(is_uniform(words[rows].sum(0, dtype=words.dtype)) for rows in subsets)
    found = rule.finish(words.sum(0, dtype=words.dtype), keys.clients, keys)
    assert float((found - values.sum(0)).abs().max()) <= 3 * 2.0 ** -(bits // 2 + 1)
    assert not is_uniform((found * 2.0 ** (bits // 2)).to(words.dtype))


def test_a_late_upload_stays_unreadable() -> None:
    rule, keys = SecureAggregation(), RoundKeys("5ec3e7", [1, 2, 4, 7])
    values = torch.ones(4, 20_000, dtype=torch.float64)
    words = {client: rule.seal(values[k], client, keys) for k, client in enumerate(keys.clients)}
    arrived = [1, 4, 7]
    found = rule.finish(words[1] + words[4] + words[7], arrived, keys)
    assert torch.equal(found, torch.full_like(found, 3.0))
    own, pairs = reveal(keys, arrived)
    assert set(own) == {1, 4, 7} and set(pairs) == {(1, 2), (4, 2), (7, 2)}
    # After removal of all revealed masks, client 2's own mask still hides its message.
    late = words[2] - pair_masks(keys.secret, 2, arrived, 20_000, 64)
    assert is_uniform(late)
    other = rule.seal(torch.zeros_like(values[1]), 2, keys._replace(clients=[2]))
    assert len((late - other).unique()) == 1  # the control: without its own mask, the message would be readable


def test_masks_are_words_of_shake_256_and_cancel() -> None:
    # The first bytes of SHAKE-256 of the empty message, from FIPS 202's examples.
    assert stream(b"", 2, 64).numpy().tobytes().hex() == "46b9dd2b0ba88d13233b3feb743eeb24"
    masks = [pair_masks("5ec3e7", k, range(4), 1000, 32) for k in range(4)]
    assert is_uniform(torch.cat(masks[:3]))
    assert not sum(masks).any()  # type: ignore[union-attr]


def test_the_server_receives_words_and_nothing_else() -> None:
    seen: list[ClientReply] = []

    def keep(round: int, reply: ClientReply) -> Sequence[ClientReply]:
        seen.append(reply)
        return [reply]

    rule = SecureAggregation(bits=32)
    trainer = prepared(keep, rule, SCAFFOLD(), FedDisco(), rounds=2)
    rows = [trainer.train_round() for _ in range(2)]
    numbers = 2 * sum(value.numel() for value in trainer.params.values()) + 3
    assert len(seen) == 16
    for reply in seen:
        envelope = reply.envelope
        assert not envelope.delta and not envelope.buffers and not envelope.mean
        assert list(envelope.sum) == ["SecureAggregation"] and envelope.measured["refused"].tolist() == [0.0]
        assert envelope.sum["SecureAggregation"].shape == (1, numbers)
    words = torch.cat([reply.envelope.sum["SecureAggregation"].flatten() for reply in seen])
    assert is_uniform(words) and len(words.unique()) > 0.99 * len(words)
    assert rows[0]["comm/up_bytes"] == 8 * 4 * (numbers + 1)  # + 1 for FedDisco's first-contact messages
    assert {"train/loss", "drift/norm", "clients/participating"} <= set(rows[0])


@pytest.mark.parametrize(
    "methods", few_quickly([[SCAFFOLD(), FedNova()], [], [FedDisco(a=0.3)]], 1), ids=lambda ms: "+".join(m.name for m in ms)
)
@pytest.mark.parametrize("executor", ["loop", "vmap"])
def test_sums_are_the_plain_ones(methods: Sequence[Method], executor: str) -> None:
    options: dict[str, Any] = {"executor": executor, "data": TinyData(), **RAGGED}
    plain, sealed = (train(*methods, *extra, **options) for extra in ((), (SecureAggregation(),)))
    assert_close(sealed.state, plain.state, 1e-7)
    columns = ("train/loss", "drift/norm", "clients/participating")
    for row, other in zip(sealed.rows, plain.rows, strict=True):
        assert [row[name] for name in columns] == pytest.approx([other[name] for name in columns], rel=1e-7)


@pytest.mark.parametrize("chunk", [None, 3])
def test_lost_replies(chunk: int | None) -> None:
    options: dict[str, Any] = {"executor": "vmap", "chunk_size": chunk, "rounds": 3}
    plain, sealed = (prepared(lose, Tolerant(), SCAFFOLD(), *extra, **options) for extra in ((), (SecureAggregation(),)))
    for _ in range(3):
        one, other = plain.train_round(), sealed.train_round()
        assert other["clients/lost"] == one["clients/lost"] > 0
    assert_close(sealed.state, plain.state, 1e-7)


def test_late_clients() -> None:
    plain, sealed = (train(Deadline(seconds=5.0), *extra, **RAGGED) for extra in ((), (SecureAggregation(),)))
    assert [row["clients/late"] for row in sealed.rows] == [row["clients/late"] for row in plain.rows] != [0, 0, 0]
    assert_close(sealed.state, plain.state, 1e-7)
    with pytest.warns(UserWarning, match="no client's update counts"):
        trainer = train(Deadline(seconds=0.5), SecureAggregation(), rounds=1)
    assert distance(trainer.state, classifier().double().model.state_dict()) == 0


@pytest.mark.parametrize("executor", ["loop", "vmap"])
def test_dropped_clients_repeat_the_round_with_new_keys(executor: str) -> None:
    options: dict[str, Any] = {"clients_per_round": 8, "on_bad_update": "drop", "executor": executor}
    plain, sealed = (train(Spoils(), *extra, **options) for extra in ((), (SecureAggregation(),)))
    assert sealed.rows[-1]["clients/dropped"] == 1
    assert_close(sealed.state, plain.state, 1e-7)


def test_numbers_out_of_range_are_reported() -> None:
    with pytest.raises(BadUpdate, match=r"client \d has the number nan in round 1, and each of 8 clients can send") as caught:
        train(Spoils(), SecureAggregation(), clients_per_round=8, rounds=1)
    assert "\n" not in str(caught.value)
    says = r"client \d has the number 0\.\d+ in round 1, and each of 5 clients can send numbers up to 0.2: lower fraction_bits"
    with pytest.raises(BadUpdate, match=says):
        train(SecureAggregation(bits=32, fraction_bits=30), rounds=1)


def test_limits_leave_room_for_the_sum() -> None:
    for bits, clients in ((32, 3), (32, 40), (64, 7)):
        rule, keys = SecureAggregation(bits=bits), RoundKeys("5ec3e7", list(range(clients)))
        value = torch.tensor([-rule.limit(clients)], dtype=torch.float64)
        words = [rule.seal(value, client, keys) for client in range(clients)]
        found = rule.finish(sum(words[1:], words[0]), keys.clients, keys)
        assert float(found) == pytest.approx(float(clients * value), rel=1e-4)


@pytest.mark.slow
def test_sums_are_the_plain_ones_for_every_method() -> None:
    from contracts.registry import CASES as ALL  # which imports this file
    from contracts.registry import run
    from contracts.test_composition import EXCLUSIVE

    for name, each in ALL.items():
        private = each.method.name == "DPFedAvg"  # it refuses sums that the server cannot bound
        if (
            private
            or each.method.name == "SecureAggregation"
            or any({"SecureAggregation", each.method.name} == {*pair} for pair in EXCLUSIVE)
        ):
            continue
        plain, sealed = (run(each, each.method, *extra, rounds=2) for extra in ((), (SecureAggregation(fraction_bits=40),)))
        assert distance(sealed.state, plain.state) < 1e-6, name
