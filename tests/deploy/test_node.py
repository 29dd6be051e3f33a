"""A node's answers: bad input in one line, malformed messages, and states two rounds deep. None of this needs Flower."""

import pickle
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

from deploy.deployments import config
from flcog.deploy.node import VERSIONS, Node
from flcog.deploy.states import NodeStates
from flcog.deploy.supervision import Worker
from flcog.wire.packing import pack, unpack

FACTS = {**VERSIONS, "batch_size": 8, "drop_last": False}


def node(folder: Path, content: dict[str, Any], clients: tuple[int, ...] = (0, 3), of: int = 6) -> Node:
    """A node with the configuration's own data."""
    for name, part in (("config", content | {"data": None}), ("node", {"data": content["data"]})):
        (folder / f"{name}.yaml").write_text(yaml.safe_dump({key: value for key, value in part.items() if value is not None}))
    return Node(Worker("1", str(folder / "state"), str(folder), clients, of, str(folder / "node.yaml"), (1, "")))


def message(name: str = "begin", *arguments: Any, **head: Any) -> dict[str, bytes]:
    given = {"run": "a1", "accepted": {}, "round": 0, "done": 0, "facts": FACTS, "requests": [[name, len(arguments)]]}
    return {"head": pack(given | head)} | {f"0.{k}": pack(argument) for k, argument in enumerate(arguments)}


def softmax(**data: Any) -> dict[str, Any]:
    content = config()
    content["model"]["init_args"]["model"] = {"class_path": "flcog.models.SoftmaxRegression"}
    content["data"]["init_args"] |= data
    return content


@pytest.fixture
def _from_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("PL_GLOBAL_SEED", "PL_SEED_WORKERS"):
        monkeypatch.setenv(name, "0")  # seed_everything leaves them set


REFUSED = {
    "another torch": (
        {},
        {"facts": FACTS | {"torch": "1.0"}},
        "this node has torch .*, the server 1.0: install the same version",
    ),
    "another flcog": (
        {},
        {"facts": FACTS | {"flcog": "0.0"}},
        "this node has flcog .*, the server 0.0: install the same version",
    ),
    "another batch": (
        {},
        {"facts": FACTS | {"batch_size": 9}},
        "this node's data have batch_size=8, the server's 9: set the same",
    ),
    "too few clients": (
        {"num_clients": 4},
        {},
        "the node's data have 4 clients, and the node hosts 2 of 6: give data with num_clients=2",
    ),
}


@pytest.mark.usefixtures("_from_elsewhere")
@pytest.mark.parametrize("name", REFUSED)
def test_a_node_unlike_the_server_says_so_in_one_line(tmp_path: Path, name: str) -> None:
    data, head, says = REFUSED[name]
    kind, text = unpack(node(tmp_path, softmax(**data)).answer(message(**head)))
    assert kind == "error" and "\n" not in text
    with pytest.raises(ValueError, match=says):
        raise ValueError(text)


@pytest.mark.usefixtures("_from_elsewhere")
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
    kind, text = unpack(answering.answer(message()))
    assert kind == "error" and says in text and "\n" not in text and "Traceback" not in text


def test_a_node_without_its_file_says_so(tmp_path: Path) -> None:
    answering = node(tmp_path, softmax())
    (tmp_path / "node.yaml").unlink()
    kind, text = unpack(answering.answer(message()))
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
    kind, text = unpack(node(tmp_path, softmax()).answer(parts))
    assert kind in ("error", "behind") and (kind == "behind" or "\n" not in text)


@pytest.mark.usefixtures("_from_elsewhere")
def test_states_and_unknown_requests_stay_on_the_node(tmp_path: Path) -> None:
    answering = node(tmp_path, softmax())
    kind, call = unpack(answering.answer(message()))
    assert kind == "result" and call.sizes.nonzero().flatten().tolist() == [0, 3]
    for name in ("snapshot", "restore", "commit", "__class__"):
        kind, text = unpack(answering.answer(message(name, done=1)))
        assert kind == "error" and text.startswith("a node answers ")
    assert unpack(answering.answer(message("roll_call", done=2)))[0] == "behind"


@pytest.mark.usefixtures("_from_elsewhere")
def test_data_of_a_nodes_own_clients_get_their_numbers(tmp_path: Path) -> None:
    kind, call = unpack(node(tmp_path, softmax(num_clients=2), clients=(4, 1), of=6).answer(message()))
    own = unpack(node(tmp_path, softmax(num_clients=2), clients=(0, 1), of=2).answer(message()))[1]
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
