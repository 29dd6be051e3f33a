"""Malformed, forged and oversized replies: 20,000 mutations of the replies to every request end no run and use no memory."""

import copy
import json
import pickle
import random
import resource
import struct
import warnings
import zlib
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

pytest.importorskip("flwr")

from flwr.app import RecordDict

from deploy.deployments import CLIENTS, NODES, rows
from deploy.test_node import softmax
from deploy.test_server import Grid, train_app
from flcog.client.answers import BadAnswer, clean
from flcog.client.messages import ClientReply
from flcog.client.remote import RemoteClients
from flcog.deploy.application import write_app
from flcog.deploy.clients import FlowerNode
from flcog.deploy.post import ANSWER, TYPES, reply_to, to_record
from flcog.wire.packing import FORMAT, PREFIX, Limits, PackingError, pack, unpack

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("quickly")]

MUTATIONS = 20_000

METHODS = [
    "flcog.callbacks.SCAFFOLD",
    {"class_path": "flcog.callbacks.FedDisco", "init_args": {"target": "global"}},
    {"class_path": "flcog.callbacks.PowerOfChoice", "init_args": {"candidates": 6}},
    "flcog.callbacks.LowPrecision",
    "flcog.callbacks.Ditto",
]
"""They ask for an exchange, first messages, losses, encoded envelopes and the scores of clients' own models."""


def deployed(folder: Path, grid: type[Grid] = Grid, methods: Any = METHODS, fault: Any = None, **trainer: Any) -> Path:
    """Train an app in this process. Returns the folder of its runs."""
    content = softmax(client_val=0.2)
    content["trainer"] |= {"rounds": 3, "callbacks": methods, **trainer}
    write_app(folder / "app", content, CLIENTS, NODES, 1000)
    train_app(folder, grid(folder / "app", folder / "state", fault or (lambda *message: None)))
    return folder / "runs"


def packed(header: Any, values: bytes) -> bytes:
    """A message with a right checksum, whatever its header says."""
    text = json.dumps(header).encode()
    rest = struct.pack("<Q", len(text)) + text + values
    return FORMAT + struct.pack("<I", zlib.crc32(rest)) + rest


def deep(depth: int) -> Any:
    value: Any = 0
    for _ in range(depth):
        value = [value]
    return value


WEIRD: list[Any] = [
    *(None, True, -1, 2**70, 10**18, 1e308, "", "\x1b[2J\r\n\x00", "x" * 5000, [], {}, 0.5, [1, 2, 3]),
    *({"float": "nan"}, {"float": "inf"}, {"dict": []}, {"dict": [[[], 1]]}, {"tuple": []}, {"tensor": 10**6}, {"tensor": 0}),
    *({"tensor": -1}, {"dtype": "float32"}, {"Envelope": {}}, {"RollCall": {}}, {"Unknown": {}}, {"Scores": {"clients": 3}}),
    *({"ClientReply": {"clients": [], "envelope": None}}, deep(40), deep(200)),
]


def places(tree: Any) -> list[tuple[Any, Any]]:
    """Every container in a tree with every key."""
    keys = list(tree) if isinstance(tree, dict) else list(range(len(tree))) if isinstance(tree, list) else []
    return [(tree, key) for key in keys] + [place for key in keys for place in places(tree[key])]


def mutated(data: bytes, rng: random.Random) -> bytes:
    """A reply that somebody has changed."""
    _, _, length = PREFIX.unpack_from(data)
    header, values = json.loads(data[PREFIX.size : PREFIX.size + length]), data[PREFIX.size + length :]
    how = rng.randrange(9)
    if how == 0:
        place = rng.randrange(len(data))
        return data[:place] + bytes([data[place] ^ (1 << rng.randrange(8))]) + data[place + 1 :]
    if how == 1:
        return rng.choice([b"", data[: rng.randrange(len(data))], data + b"x", pickle.dumps(data[:9]), rng.randbytes(64)])
    if how == 2 and header["tensors"]:
        row = rng.choice(header["tensors"])
        row[rng.randrange(3)] = rng.choice(
            ["float64", "int8", "quint8", [50_000_000], [0], [-1], [1, *row[1]], [2**62, 2**62, 0], [], 7]
        )
        return packed(header, values)
    if how == 3 and header["tensors"]:  # another shape whose values are all there
        row = rng.choice(header["tensors"])
        row[1] = rng.choice([[1, *row[1]], [*row[1], 1], row[1][::-1]])
        row[2] = list(range(len(row[1])))
        return packed(header, values)
    if how == 4 and values:
        at = 8 * rng.randrange(1 + len(values) // 8)
        return packed(header, values[:at] + struct.pack("<q", rng.choice([-200, 10**18, 2**63 - 1, 0])) + values[at + 8 :])
    for _ in range(rng.choice([1, 1, 3])):
        container, key = rng.choice(places(header))
        if how == 5 and isinstance(container, list):
            rng.shuffle(container)
        elif how == 6:
            container.pop(key)
        elif how == 7 and isinstance(container, list):
            container.insert(key, json.loads(json.dumps(container[key])))
        else:
            container[key] = copy.deepcopy(rng.choice(WEIRD))
        if not places(header):
            break
    try:
        return packed(header, values)
    except RecursionError:
        return b""


def test_mutated_replies_are_refused_without_memory_and_end_no_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rng, refused, believed = random.Random(0), Counter[str](), Counter[str]()
    read, read_answer, now = FlowerNode._read, RemoteClients._read, SimpleNamespace(name="", form=None)
    each = 1 + MUTATIONS // 42  # this run has 42 replies

    def noting(self: Any, k: int, name: str = "", arguments: Any = ()) -> Any:
        now.name, now.form = name, self._belief.wanted(name, arguments, self._calls[k].clients if self._calls else ())
        return read_answer(self, k, name, arguments)

    def fuzzed(self: Any, reply: Any, token: str, limits: Limits | None) -> Any:
        good = reply.content[ANSWER]["answer"].data
        assert now.form is not None, f"the answer to {now.name} has no form"
        for _ in range(each):
            content = RecordDict({ANSWER: to_record({"answer": mutated(good, rng)})})
            try:
                kind, value = read(self, SimpleNamespace(has_error=lambda: False, content=content), token, limits)  # type: ignore[arg-type]
                now.form.of(value) if kind == "result" else None
                believed[now.name] += 1
            except (BadAnswer, PackingError):
                refused[now.name] += 1
        return read(self, reply, token, limits)

    monkeypatch.setattr(FlowerNode, "_read", fuzzed)
    monkeypatch.setattr(RemoteClients, "_read", noting)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    assert len(rows(deployed(tmp_path))) == 3
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 400_000  # in KB: torch, the data and the model
    assert {"begin", "exchange", "contact", "losses", "train", "evaluate"} <= refused.keys()
    assert sum(refused.values()) + sum(believed.values()) >= MUTATIONS
    assert all(believed[name] < 0.4 * refused[name] for name in refused), (refused, believed)


def test_a_reply_that_is_too_large_is_not_unpacked() -> None:
    large = pack(torch.zeros(50_000_000, dtype=torch.float64))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(PackingError, match=r"has .* and 400000000 bytes, and at most 100 and 1000 are due"):
        unpack(large, Limits(100, 1000))
    for depth in (900, 3000, 100_000):
        text = b'{"tree": ' + b"[" * depth + b"]" * depth + b', "tensors": []}'
        rest = struct.pack("<Q", len(text)) + text
        with pytest.raises(PackingError):
            unpack(FORMAT + struct.pack("<I", zlib.crc32(rest)) + rest)
    many = packed({"tree": 0, "tensors": [["int8", [0], [0]]] * 200_000}, b"")
    with pytest.raises(PackingError, match=r"bytes, and at most 65536 and 0 are due"):
        unpack(many, Limits(2**16, 0))
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 50_000


class Forging(Grid):
    """Node 2 changes its replies: ``change(name of the request, value)`` returns what it sends instead."""

    change: Any = None

    def answer(self, message: Any) -> Any:
        reply = super().answer(message)
        if message.metadata.dst_node_id != 2 or reply is None:
            return reply
        token, kind, value = unpack(reply.content[ANSWER]["answer"].data)
        name = next(name for name, kind in TYPES.items() if kind == message.metadata.message_type)
        changed = type(self).change(name, (token, kind, value))
        return reply if changed is None else reply_to(message, pack(changed), 0.0)


def forged(change: Any) -> type[Forging]:
    return type("Forged", (Forging,), {"change": staticmethod(change)})


def in_training(change: Any) -> Any:
    """Changes the replies to tasks."""
    return lambda name, answer: (answer[0], answer[1], [change(reply) for reply in answer[2]]) if name == "train" else None


def in_roll_call(change: Any) -> Any:
    return lambda name, answer: (answer[0], answer[1], change(answer[2])) if name == "begin" else None


def of_field(change: Any) -> Any:
    """Changes the weights of the envelopes."""

    def changed(reply: ClientReply) -> ClientReply:
        return reply._replace(envelope=reply.envelope._replace(delta=change(reply.envelope.delta)))

    return in_training(changed)


def with_sizes(value: int) -> Any:
    return in_roll_call(lambda call: call._replace(sizes=torch.where(call.sizes > 0, value, call.sizes)))


FORGED: dict[str, tuple[Any, str]] = {
    "another client": (
        in_training(lambda reply: reply._replace(clients=[0])),
        "it is for clients .0, 0., and clients .1, 4. were asked",
    ),
    "no client": (in_training(lambda reply: reply._replace(clients=[])), "it is for clients"),
    "one client twice": (lambda name, answer: (*answer[:2], answer[2] * 2) if name == "train" else None, "it is for clients"),
    "a broadcastable shape": (of_field(lambda delta: {name: value[:, :1] for name, value in delta.items()}), "was asked for"),
    "another type": (of_field(lambda delta: {name: value.double() for name, value in delta.items()}), "of torch.float64"),
    "another order": (of_field(lambda delta: dict(reversed(delta.items()))), "the envelope.*does not have the fields"),
    "a missing field": (of_field(lambda delta: dict([*delta.items()][:1])), "does not have the fields"),
    "another token": (lambda name, answer: ("0" * 64, *answer[1:]) if name == "train" else None, "it answers another request"),
    "an error with control characters": (
        lambda name, answer: (answer[0], "error", "\x1b[31mno\n\nGPU") if name == "train" else None,
        r"the node of clients 1, 4: \[31mno GPU$",
    ),
    "scores of other clients": (
        lambda name, answer: (
            (answer[0], answer[1], [each._replace(clients=torch.ones(CLIENTS).double()) for each in answer[2]])
            if name == "evaluate"
            else None
        ),
        "it has scores of clients that it does not host",
    ),
    "too many samples": (with_sizes(10**18), "sizes contain .1000000000000000000., and a client has at most 1,000 samples"),
    "negative samples": (with_sizes(-200), "sizes contain .-200."),
    "half a sample": (in_roll_call(lambda call: call._replace(sizes=call.sizes / 2)), "sizes are not 6 whole numbers"),
    "counts below 0": (in_roll_call(lambda call: call._replace(label_counts=-torch.ones(6, 10).long())), "label_counts"),
    "a class with a newline": (
        in_roll_call(lambda call: call._replace(class_names=["a\nb"] * 10)),
        "a name of a class is no short text",
    ),
}


@pytest.mark.parametrize("name", FORGED)
def test_a_forged_reply_is_refused_in_one_line_that_names_its_node(tmp_path: Path, name: str) -> None:
    change, says = FORGED[name]
    with pytest.raises(ValueError, match=says) as caught:
        deployed(tmp_path, forged(change), methods=["flcog.callbacks.SCAFFOLD"])
    assert "\n" not in str(caught.value) and ("node of clients 1, 4" in str(caught.value) or "node 2" in str(caught.value))


def test_a_node_whose_replies_are_bad_drops_out_and_its_bytes_are_not_believed(tmp_path: Path) -> None:
    """The other nodes go on. A node that reports other bytes than it sends does not change the ledger."""

    def lying(reply: ClientReply) -> ClientReply:
        sizes = dict.fromkeys(reply.manifest.sizes, 10**15)
        return reply._replace(manifest=reply.manifest._replace(sizes=sizes), masked_bytes=[7], masked_plain_bytes=[-7])

    plain, other = (
        deployed(folder, grid, methods=["flcog.callbacks.SCAFFOLD"])
        for folder, grid in ((tmp_path / "plain", Grid), (tmp_path / "lying", forged(in_training(lying))))
    )
    assert [row["comm/up_bytes"] for row in rows(plain)] == [row["comm/up_bytes"] for row in rows(other)]
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        bad = deployed(tmp_path / "bad", forged(FORGED["another type"][0]), ["flcog.callbacks.SCAFFOLD"], on_bad_update="drop")
    assert [float(row["clients/lost"]) for row in rows(bad)] == [2, 2, 2]
    assert [
        str(each.message)
        for each in caught
        if "the node of clients 1, 4 has sent a bad answer to the request train" in str(each.message)
    ]


def test_texts_of_nodes_are_short_lines() -> None:
    assert clean("a\x1b[2J\r\n\u202eb" + "c" * 9999) == "a [2J b" + "c" * 493
