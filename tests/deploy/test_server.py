"""The server against nodes in this process, over a stand-in for Flower's Grid that loses, damages and refuses messages."""

import csv
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import lightning as L
import numpy as np
import pytest
import yaml

pytest.importorskip("flwr")

from flwr.app import ArrayRecord, Error, Message, RecordDict
from flwr.common.constant import ErrorCode
from flwr.proto.message_pb2 import PullObjectResponse
from flwr.proto.node_pb2 import Node as Address
from flwr.supercore.inflatable.inflatable_protobuf_utils import make_pull_object_fn_protobuf
from flwr.supercore.inflatable.inflatable_utils import pull_objects

from deploy.deployments import CLIENTS, NODES, history, rows
from deploy.test_node import softmax
from flcog.deploy.application import PACKAGE, write_app
from flcog.deploy.command import deploy
from flcog.deploy.node import Node, shares
from flcog.deploy.objects import make_objects
from flcog.deploy.post import ANSWER, TYPES, Post
from flcog.deploy.server import failure_of, train
from flcog.deploy.tasks import Client
from flcog.deploy.trial import Here, nodes_of

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("quickly")]

Fault = Callable[[int, str, int, Node], Any]
"""Decides the fate of a message, from its node's index, its type, the number of earlier messages of this type to the node, and the node."""


class Grid(Here):
    """Delivers messages to nodes at once.

    Args:
        app: the app's folder.
        state: the folder of the nodes' states.
        fault: returns None to deliver a message, or another reply to send instead. It returns False to lose the message, "unknown" to
            refuse it, "reply lost" to lose the reply, and "restart" to restart the node before it answers.
        clients, nodes: the number of clients and of nodes.
    """

    def __init__(self, app: Path, state: Path, fault: Fault, clients: int = CLIENTS, nodes: int = NODES) -> None:
        super().__init__(nodes_of(app, state, shares(clients, nodes)))
        self.fault, self.refused = fault, ""
        self.seen: dict[tuple[int, str], int] = {}

    def _push(self, message: Message) -> str:
        reply = super()._push(message)
        return "" if self.refused == message.metadata.message_id else reply

    def answer(self, message: Message) -> Any:
        k, kind = message.metadata.dst_node_id - 1, message.metadata.message_type
        before = self.seen.get((k, kind), 0)
        self.seen[k, kind] = before + 1
        fault = self.fault(k, kind, before, self.nodes[k])
        if isinstance(fault, Error | RecordDict):
            return Message(fault, reply_to=message)
        if fault is False or fault == "unknown":
            self.refused = message.metadata.message_id if fault else ""
            return None
        if fault == "restart":
            self.nodes[k] = Node(self.nodes[k].place)
        reply = super().answer(message)
        return None if fault == "reply lost" else reply


def deployed(
    folder: Path,
    fault: Fault,
    rounds: int = 3,
    data: dict[str, Any] | None = None,
    callbacks: Sequence[str] = (),
    **options: Any,
) -> Path:
    """Train the app in this process. Returns the folder of its runs."""
    content = softmax(**(data or {}))
    methods = ["flcog.callbacks.SCAFFOLD", "flcog.callbacks.FedDisco"]
    content["trainer"] |= {"rounds": rounds, "callbacks": [*methods, *callbacks]}
    write_app(folder / "app", content, CLIENTS, NODES, 1000)
    train_app(folder, Grid(folder / "app", folder / "state", fault), **options)
    return folder / "runs"


def train_app(folder: Path, grid: Any, **options: Any) -> None:
    """Train the app in ``folder/app``."""
    defaults = {"poll": 0.01, "timeout": 0.5, "nodes": len(grid.nodes), "clients": CLIENTS, "min_clients": 1, "ckpt_path": ""}
    train(folder / "app" / PACKAGE, grid, {**defaults, "max_client_samples": 1000, "root": str(folder / "runs"), **options})


def test_a_round_asks_the_nodes_of_its_clients_alone(tmp_path: Path) -> None:
    content = softmax(num_clients=12)
    content["trainer"] |= {"rounds": 4, "clients_per_round": 2, "callbacks": ["flcog.callbacks.SCAFFOLD"]}
    write_app(tmp_path / "app", content, 12, 12, 1000)
    grid = Grid(tmp_path / "app", tmp_path / "state", lambda *message: None, 12, 12)
    train_app(tmp_path, grid, clients=12)
    count = {kind: sum(number for (_, each), number in grid.seen.items() if each == kind) for _, kind in grid.seen}
    assert count == {TYPES["begin"]: 12, TYPES["train"]: 4 * 2}


def simulation(folder: Path) -> list[dict[str, str]]:
    """The history of the same run without Flower."""
    package = folder / "app" / PACKAGE
    objects = make_objects(package, [package / "server.yaml"], "--trainer.default_root_dir", str(folder / "here"))
    objects.trainer.fit(objects.model, objects.datamodule)
    return history(folder / "here")


FAULTS: dict[str, Fault] = {
    "none": lambda k, kind, before, node: None,
    "a task that fails": lambda k, kind, before, node: Error(6, "died") if (k, kind, before) == (1, "train", 1) else None,
    "a node that restarts": lambda k, kind, before, node: "restart" if (k, kind, before) == (2, "train", 1) else None,
    "a node that restarts twice": lambda k, kind, before, node: "restart" if (k, before) == (0, 1) and "train" in kind else None,
}


@pytest.mark.parametrize("name", FAULTS)
def test_numbers_are_those_of_a_simulation(tmp_path: Path, name: str) -> None:
    assert history(deployed(tmp_path, FAULTS[name])) == simulation(tmp_path)


@pytest.mark.parametrize("method", ["FedAMP", "FedPAC"])
def test_a_node_receives_what_is_its_clients_alone(tmp_path: Path, method: str) -> None:
    assert history(deployed(tmp_path, FAULTS["none"], callbacks=[f"flcog.callbacks.{method}"])) == simulation(tmp_path)


@pytest.mark.parametrize("sharing", [NODES, NODES - 1])
def test_label_counts_stay_at_the_nodes_unless_all_share_them(tmp_path: Path, sharing: int) -> None:
    write_app(tmp_path / "app", softmax(), CLIENTS, NODES, 1000)
    grid = Grid(tmp_path / "app", tmp_path / "state", FAULTS["none"])
    grid.nodes = [Node(replace(node.place, shares_labels=k < sharing)) for k, node in enumerate(grid.nodes)]
    train_app(tmp_path, grid)
    simulation(tmp_path)
    there, here = (
        [{name: value for name, value in row.items() if name.startswith("labels/")} for row in read(tmp_path / root)]
        for root in ("runs", "here")
    )
    assert there == (here if sharing == NODES else [{}] * CLIENTS) and all(here)


def read(root: Path) -> list[dict[str, str]]:
    (path,) = root.glob("*/clients.csv")
    return list(csv.DictReader(path.read_text().splitlines()))


class Smaller(L.Callback):
    """Divides all gradients by 10."""

    def on_before_optimizer_step(self, trainer: Any, pl_module: Any, optimizer: Any) -> None:
        for parameter in pl_module.parameters():
            parameter.grad /= 10


def test_callbacks_of_lightning_act_on_the_nodes(tmp_path: Path) -> None:
    plain = history(deployed(tmp_path / "plain", FAULTS["none"]))
    smaller = history(deployed(tmp_path / "smaller", FAULTS["none"], callbacks=["deploy.test_server.Smaller"]))
    assert smaller == simulation(tmp_path / "smaller") != plain


@pytest.mark.parametrize("how", [False, "reply lost"])
def test_a_silent_node_drops_out_of_the_round(tmp_path: Path, how: Any) -> None:
    """If its task or its reply is lost, the node continues from its state after the last accepted round."""

    def fault(k: int, kind: str, before: int, node: Node) -> Any:
        return how if (k, kind, before) == (1, "train", 1) else None

    found = rows(deployed(tmp_path, fault))
    assert [row.get("clients/lost") or "0" for row in found] == ["0", "2", "0"]
    assert [float(row["clients/participating"]) for row in found] == [6, 4, 6]
    (tmp_path / "other").mkdir()
    other = rows(deployed(tmp_path / "other", lambda *given: False if given[:3] == (1, "train", 1) else None))
    assert [row["train/loss"] for row in found] == [row["train/loss"] for row in other]


UNAVAILABLE = Error(ErrorCode.NODE_UNAVAILABLE, "Node Unavailable")


@pytest.mark.parametrize("how", [UNAVAILABLE, "unknown"], ids=["killed", "ended"])
def test_a_node_that_stays_away_drops_out(tmp_path: Path, how: Any) -> None:
    """The SuperLink answers for a node without a heartbeat, at once, and refuses messages to a node that has left."""

    def fault(k: int, kind: str, before: int, node: Node) -> Any:
        away = k == 1 and (kind.startswith("evaluate") or (kind == "train" and before >= 1))
        if away and before > 100:
            raise RuntimeError(f"{before} messages have gone to a node that is away")
        return how if away else None

    found = rows(deployed(tmp_path, fault, data={"client_val": 0.2}))
    assert [float(row["clients/participating"]) for row in found] == [6, 4, 4]
    assert all(float(row["val/accuracy"]) > 0 for row in found)


def test_a_round_has_one_message_for_all_evaluations_and_none_for_a_missing_node(tmp_path: Path) -> None:
    """The evaluations are those of all validation samples, and of the clients' scores on both parts."""
    asked = list[tuple[int, str]]()

    def fault(k: int, kind: str, before: int, node: Node) -> Any:
        asked.append((k, kind))
        return False if (k, kind, before) == (1, "train", 1) else None

    deployed(tmp_path, fault, data={"client_val": 0.2, "client_test": 0.2})
    assert asked.count((1, "train")) == asked.count((0, "train")) == 3
    assert asked.count((0, "evaluate")) == 3 and asked.count((1, "evaluate")) == 2


def test_a_message_that_is_too_large_ends_the_run_in_one_line() -> None:
    post = Post(SimpleNamespace(push_messages=lambda messages: []), 0.01, 0.5)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="a message of 3 bytes is too large for the SuperLink: look into its log"):
        post.push(1, TYPES["begin"], {"head": b"abc"}, "1")


def test_a_newcomer_without_a_first_message_drops_out(tmp_path: Path) -> None:
    found = rows(
        deployed(tmp_path, lambda k, kind, before, node: False if (k, kind, before) == (0, "train.contact", 0) else None)
    )
    assert [float(row["clients/participating"]) for row in found] == [4, 6, 6] and float(found[0]["clients/lost"]) == 2


def test_a_server_resumes_with_the_states_on_the_nodes(tmp_path: Path) -> None:
    runs = deployed(tmp_path, FAULTS["none"], rounds=2)
    config = tmp_path / "app" / PACKAGE / "config.yaml"
    config.write_text(config.read_text().replace("rounds: 2", "rounds: 3"))
    train_app(tmp_path, Grid(tmp_path / "app", tmp_path / "state", FAULTS["none"]), ckpt_path="last")
    assert history(runs) == simulation(tmp_path)


GARBAGE = RecordDict({ANSWER: ArrayRecord()})

REFUSED: dict[str, tuple[Fault, dict[str, Any], str]] = {
    "too few replies": (
        lambda k, kind, before, node: False if kind == "train" and k else None,
        {"min_clients": 3},
        "2 of 6 clients have replied in round 1, and min_clients is 3: start the missing nodes, and continue",
    ),
    "a damaged reply": (
        lambda k, kind, before, node: GARBAGE if kind == "train" else None,
        {},
        "the node of clients 0, 3 has sent a bad answer to the request train: these 0 bytes are no message of flcog",
    ),
    "no flcog": (
        lambda k, kind, before, node: Error(1, "no module flcog") if k == 1 else None,
        {},
        "node 2 does not run this app: no module flcog",
    ),
    "too few nodes": (FAULTS["none"], {"nodes": 4}, "3 of 4 nodes are connected after 0.5 s: start the others, or set nodes"),
    "a client without a node": (
        FAULTS["none"],
        {"clients": 7},
        "the node's data have 6 clients, and the node hosts 2 of 7: give data",
    ),
    "a node that leaves before round 1": (
        lambda k, kind, before, node: "unknown" if k == 2 else None,
        {},
        "node 3 has not answered the request begin within 0.5 s .the SuperLink does not know it any more.: start the node",
    ),
    "a silent node before round 1": (
        lambda k, kind, before, node: False if k == 2 else None,
        {},
        "node 3 has not answered the request begin within 0.5 s: start the node, or raise timeout",
    ),
}


def test_a_failure_is_told_in_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_app(tmp_path / "app", softmax(), CLIENTS, NODES, 1000)
    grid: Any = Grid(tmp_path / "app", tmp_path / "state", FAULTS["none"])
    options = {"poll": 0.01, "timeout": 0.1, "nodes": 4, "clients": CLIENTS, "min_clients": 1, "root": ""}
    for bound, says in (
        ({}, "max_client_samples must be a whole number of at least 1; got 0"),
        (
            {"max_client_samples": 1000},
            "3 of 4 nodes are connected after 0.1 s",
        ),
    ):
        failure = failure_of(tmp_path / "app" / PACKAGE, grid, options | bound)
        assert says in failure and "Traceback" not in capsys.readouterr().err


@pytest.mark.parametrize("name", REFUSED)
def test_faults_end_the_run_in_one_line(tmp_path: Path, name: str) -> None:
    fault, options, says = REFUSED[name]
    with pytest.raises((ValueError, OSError), match=says) as caught:
        deployed(tmp_path, fault, **options)
    assert "\n" not in str(caught.value)


def test_a_trial_reads_relative_paths_from_the_users_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    inputs, targets = np.random.default_rng(0).normal(size=(40, 6)).astype("float32"), np.arange(40) % 3
    np.savez(tmp_path / "mine.npz", train_inputs=inputs, train_targets=targets, test_inputs=inputs, test_targets=targets)
    network = {"class_path": "flcog.models.SoftmaxRegression", "init_args": {"in_features": 6, "num_classes": 3}}
    content = softmax()
    content["model"]["init_args"]["model"] = network
    content["data"] = {"class_path": "flcog.datamodules.ArrayData", "init_args": {"path": "mine.npz", "num_clients": 2}}
    (tmp_path / "mine.yaml").write_text(yaml.safe_dump(content))
    monkeypatch.chdir(tmp_path)
    deploy(["-c", "mine.yaml", "--try", "2", "--out", "app"])
    assert history(tmp_path / "runs") == simulation(tmp_path)


class Announced(Client):
    """A SuperNode that has announced a message without its content."""

    patience = 0.5

    def _unary_unary(self, **_: Any) -> Any:
        return PullObjectResponse(object_found=True)


def test_a_message_whose_content_never_comes_counts_as_lost() -> None:
    client = Announced.from_server_address("localhost:1", True, None, [])
    with pytest.raises(TimeoutError, match=r"nothing of it arrived for 0\.5 s"):
        pull_objects(["a", "b"], make_pull_object_fn_protobuf(client.PullObject, Address(node_id=1), 1))
