"""A node's answers to bad and malformed messages, and the clients' states of two rounds that it keeps. These tests run without Flower."""

import pickle
from dataclasses import replace
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from torch.utils import _pytree as pytree

from deploy.deployments import config
from flcog.client.messages import ClientReply
from flcog.client.remote import RemoteClients
from flcog.deploy.node import VERSIONS, Node, NodeStates, Place
from flcog.deploy.objects import make_objects
from flcog.wire.packing import Limits, pack, unpack

FACTS = {**VERSIONS, "batch_size": 8, "drop_last": False, "clients": 6}


def node(folder: Path, content: dict[str, Any], clients: tuple[int, ...] = (0, 3)) -> Node:
    """A node with the configuration's own data."""
    for name, part in (("config", content | {"data": None}), ("node", {"data": content["data"]})):
        (folder / f"{name}.yaml").write_text(yaml.safe_dump({key: value for key, value in part.items() if value is not None}))
    return Node(Place(folder, clients, folder / "node.yaml", folder / "state"))


def message(name: str = "begin", *arguments: Any, **head: Any) -> dict[str, bytes]:
    given = {
        "token": "t",
        "run": "a1",
        "accepted": {},
        "round": 0,
        "done": 0,
        "facts": FACTS,
        "requests": [[name, len(arguments)]],
    }
    return {"head": pack(given | head)} | {f"0.{k}": pack(argument) for k, argument in enumerate(arguments)}


def told(answer: bytes) -> tuple[str, Any]:
    """The kind and the value of an answer."""
    token, kind, value = unpack(answer)
    assert token in ("t", "")
    return kind, value


def softmax(**data: Any) -> dict[str, Any]:
    content = config()
    content["model"]["init_args"]["model"] = {"class_path": "flcog.models.SoftmaxRegression"}
    content["data"]["init_args"] |= data
    return content


REFUSED = {
    "another torch": (
        {},
        {"facts": FACTS | {"torch": "1.0"}},
        "this node has torch=.*, the server 1.0: install the same version",
    ),
    "another flcog": (
        {},
        {"facts": FACTS | {"flcog": "0.0"}},
        "this node has flcog=.*, the server 0.0: install the same version",
    ),
    "another batch": (
        {},
        {"facts": FACTS | {"batch_size": 9}},
        "this node has batch_size=8, the server 9: set the same",
    ),
    "too few clients": (
        {"num_clients": 4},
        {},
        "the node's data have 4 clients, and the node hosts 2 of 6: give data with num_clients=2",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_node_unlike_the_server_says_so_in_one_line(tmp_path: Path, name: str) -> None:
    data, head, says = REFUSED[name]
    kind, text = told(node(tmp_path, softmax(**data)).answer(message(**head)))
    assert kind == "error" and "\n" not in text
    with pytest.raises(ValueError, match=says):
        raise ValueError(text)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda content: content["trainer"].update(callbacks=["own_methods.Secret"]), "own_methods"),
        (lambda content: content["data"].update(class_path="hospital.Scans"), "hospital"),
        (lambda content: content.pop("data"), "data"),
    ],
    ids=["a method that it lacks", "a data module that it lacks", "no data"],
)
def test_a_node_that_lacks_something_names_it_in_one_line(tmp_path: Path, change: Any, says: str) -> None:
    content = softmax()
    answering = node(tmp_path, content)
    change(content)
    content.setdefault("data", None)
    answering = node(tmp_path, content)
    kind, text = told(answering.answer(message()))
    assert kind == "error" and says in text and "\n" not in text and "Traceback" not in text


def test_a_node_without_its_file_says_so(tmp_path: Path) -> None:
    answering = node(tmp_path, softmax())
    (tmp_path / "node.yaml").unlink()
    kind, text = told(answering.answer(message()))
    assert kind == "error" and text.startswith(f"there is no file {tmp_path / 'node.yaml'}")


class Bomb:
    def __reduce__(self) -> Any:
        return pytest.fail, ("it was unpickled",)


@pytest.mark.parametrize(
    "parts",
    [
        {},
        {"head": b""},
        {"head": pickle.dumps(Bomb())},
        {"head": pack(["no head"])},
        message() | {"extra": b""},
        message() | {"head": message()["head"][:-3]},
        message("losses", 3) | {"0.0": pickle.dumps(Bomb())},
        message("store"),
        message(run="../../etc"),
    ],
)
def test_malformed_messages_are_refused_without_unpickling(
    tmp_path: Path, parts: dict[str, bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("load", "loads", "Unpickler"):
        monkeypatch.setattr(pickle, name, lambda *_: pytest.fail("it was unpickled"))
    kind, text = told(node(tmp_path, softmax()).answer(parts))
    assert kind in ("error", "behind") and (kind == "behind" or "\n" not in text)


class Direct:
    """A node's host without a network, which keeps every message."""

    def __init__(self, node: Node) -> None:
        self.node, self.sent, self.answers = node, list[dict[str, bytes]](), list[bytes]()
        self._read = 0

    def send(self, name: str, *arguments: Any) -> None:
        setting_up = [unpack(each["head"])["requests"][0][0] for each in self.sent].count
        self.sent.append(message(name, *arguments, done=sum(map(setting_up, ("begin", "set_up")))))
        self.answers.append(self.node.answer(self.sent[-1]))

    def answer(self, limits: Limits | None = None) -> Any:
        self._read += 1
        kind, result = told(self.answers[self._read - 1])
        assert kind == "result", result
        return result

    @property
    def uploads(self) -> list[torch.Tensor]:
        """The update that each client sent in its only round."""
        lists = [result for _, result in map(told, self.answers) if isinstance(result, list)]
        replies = [reply for each in lists for reply in each if isinstance(reply, ClientReply)]
        return [row for reply in replies for row in torch.cat([v.flatten(1) for v in reply.envelope.delta.values()], 1)]


class DirectClients(RemoteClients):
    """The clients of ``Direct`` nodes. Their states stay on the nodes."""

    def commit(self, clients: Any) -> None:
        pass

    def snapshot(self) -> dict[int, Any]:
        return {}


PRIVATE = {
    "DPFedAvg": {"noise_at": "clients", "noise_multiplier": 1000.0},
    "DPSGD": {"noise_multiplier": 1000.0},
}


@pytest.mark.parametrize("method", PRIVATE)
@pytest.mark.slow
def test_nodes_draw_private_noise_that_the_server_cannot_compute(tmp_path: Path, method: str) -> None:
    """The noise is a thousand times as large as the update, so that uploads with independent noise are uncorrelated."""
    content = softmax()
    content["trainer"] |= {"rounds": 1, "callbacks": [{"class_path": f"flcog.callbacks.{method}", "init_args": PRIVATE[method]}]}
    hosts = []
    for clients in ((0, 2, 4), (1, 3, 5)):
        (tmp_path / str(clients[0])).mkdir()
        hosts.append(Direct(node(tmp_path / str(clients[0]), content, clients)))
    objects = make_objects(tmp_path / "0", [tmp_path / "0" / "node.yaml"], "--trainer.default_root_dir", str(tmp_path))
    objects.trainer.connect(DirectClients(hosts))
    objects.trainer.fit(objects.model, objects.datamodule)
    for host in hosts:
        replayed = Direct(Node(replace(host.node.place, state=tmp_path / "replayed")))
        replayed.answers = [replayed.node.answer(each) for each in host.sent]
        # The server's messages do not determine the answers, so the server cannot compute the noise.
        assert all(abs(correlation(a, b)) < 0.06 for a, b in zip(host.uploads, replayed.uploads, strict=True))
        numbers = [value for value in pytree.tree_leaves([unpack(each) for each in host.answers]) if not is_floating(value)]
        assert max(int(torch.as_tensor(value).max()) for value in numbers) < 2**20  # counts of samples and bytes, and no key
    uploads = [upload for host in hosts for upload in host.uploads]
    assert len(uploads) == 6
    assert all(abs(correlation(a, b)) < 0.06 for a, b in combinations(uploads, 2))


def correlation(a: torch.Tensor, b: torch.Tensor) -> float:
    """The correlation of two uploads. For independent normal numbers and the 7,850 parameters here, its standard deviation is 0.01."""
    return float(torch.corrcoef(torch.stack([a, b]))[0, 1])


def is_floating(value: Any) -> bool:
    return isinstance(value, str | float) or value is None or (isinstance(value, torch.Tensor) and value.is_floating_point())


PUBLIC = {
    "DPFedAvg": {"repeatable": True},
    "DPSGD": {"repeatable": True},
    "Fedssyn": {"generator": {"class_path": "flcog.callbacks.BetaVAE", "init_args": {"privacy": {"secret": False}}}},
}


@pytest.mark.parametrize("method", PUBLIC)
def test_noise_that_follows_the_seed_is_refused(tmp_path: Path, method: str) -> None:
    content = softmax()
    content["trainer"]["callbacks"] = [{"class_path": f"flcog.callbacks.{method}", "init_args": PUBLIC[method]}]
    kind, text = told(node(tmp_path, content).answer(message()))
    change = "repeatable to false" if method != "Fedssyn" else "generator.privacy.secret to true"
    says = "everybody who knows the run's seed could remove this noise, and the server does"
    assert (kind, text) == ("error", f"{method}: {says}: set {change}")


def test_states_and_unknown_requests_stay_on_the_node(tmp_path: Path) -> None:
    answering = node(tmp_path, softmax())
    kind, call = told(answering.answer(message()))
    assert kind == "result" and call.sizes.nonzero().flatten().tolist() == [0, 3]
    for name in ("snapshot", "restore", "commit", "__class__"):
        kind, text = told(answering.answer(message(name, done=1)))
        assert kind == "error" and text.startswith("a node answers ")
    assert told(answering.answer(message("evaluate", [("snapshot", 0)], done=1)))[0] == "error"
    assert told(answering.answer(message("roll_call", done=2)))[0] == "behind"


def test_data_of_a_nodes_own_clients_get_their_numbers(tmp_path: Path) -> None:
    kind, call = told(node(tmp_path, softmax(num_clients=2), clients=(4, 1)).answer(message()))
    own = told(node(tmp_path, softmax(num_clients=2), clients=(0, 1)).answer(message(facts=FACTS | {"clients": 2})))[1]
    assert (
        kind == "result" and call.sizes[[4, 1]].tolist() == own.sizes.tolist() and int(call.sizes.sum()) == int(own.sizes.sum())
    )


def state(value: float) -> dict[str, Any]:
    return {"Method": {"kept": torch.tensor(value)}}


def test_states_are_two_rounds_deep(tmp_path: Path) -> None:
    states = NodeStates(tmp_path)
    states.turn_to("a1", {}, 0)
    states.put(3, state(1.0))
    states.turn_to("a1", {}, 0)  # the reply was lost: the same round is asked again
    assert states.get(3) == {}
    states.put(3, state(2.0))
    for round in (1, 2):
        states.turn_to("a1", {3: round - 1}, round)
        assert states.get(3)["Method"]["kept"] == round + 1
        states.put(3, state(round + 2.0))
    states.turn_to("a1", {3: 1}, 2)  # the server resumes from the checkpoint before this round
    assert states.get(3)["Method"]["kept"] == 3
    assert len(list((tmp_path / "a1").iterdir())) == 2
    states.turn_to("a1", {3: 0}, 1)
    with pytest.raises(
        ValueError, match=r"the state of client 3 after round 1 is not in .*: start the node with the state folder"
    ):
        states.get(3)


def test_clients_without_a_new_state_keep_theirs(tmp_path: Path) -> None:
    states = NodeStates(tmp_path)
    states.turn_to("a1", {}, 0)
    states.put(3, state(1.0))
    states.turn_to("a1", {3: 0}, 1)
    states.carry_over([3, 5])
    states.turn_to("a1", {3: 1, 5: 1}, 2)
    assert states.get(3)["Method"]["kept"] == 1 and states.get(5) == {}


def test_a_node_leaves_torchs_precision_as_it_was(tmp_path: Path) -> None:
    content, before = softmax(), torch.get_default_dtype()
    content["trainer"]["precision"] = "64-true"
    hosts = node(tmp_path, content)
    assert told(hosts.answer(message()))[0] == "result" and torch.get_default_dtype() == before
