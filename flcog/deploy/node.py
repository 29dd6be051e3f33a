"""A node: it answers the server's requests about the clients that it hosts. ``flcog node`` runs one beside its SuperNode."""

import copy
import dataclasses
import traceback
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import torch

import flcog
from flcog.client.remote import CALLS, answer_of
from flcog.commands.errors import refusal
from flcog.core.commands import parser_of
from flcog.core.extras import require
from flcog.core.fabric import processes_of
from flcog.core.files import replacing
from flcog.core.types import Slot
from flcog.data import FederatedDataModule, Partition
from flcog.deploy.application import FLOWER, PACKAGE
from flcog.deploy.objects import make_objects
from flcog.run.hosting import HostedClients, host_clients
from flcog.settings import Settings
from flcog.wire.packing import PackingError, pack, unpack

SETTING_UP = ("begin", "standardise", "exchange", "set_up")
"""Requests before round 1. A node that was restarted gets all of them again."""

ALLOWED = set(CALLS) - {"commit", "snapshot", "restore"}
"""Clients' states never leave their node: the server only names the rounds that it has accepted."""

VERSIONS = {"flcog": flcog.__version__, "torch": torch.__version__.partition("+")[0]}

Parts = Mapping[str, bytes]
"""The parts of a message by name: each is a packed value."""


def node(arguments: list[str]) -> None:
    """Host clients of a deployment beside a SuperNode on this machine, with this machine's own copy of the app.

    flcog node app --data node.yaml --clients 0 3 --state state --secret secret
    """
    parser = parser_of("node", node)
    parser.add_argument("app", type=Path, help="this machine's copy of the app's folder, which flcog deploy has written")
    parser.add_argument(
        "--data", type=Path, required=True, help="the YAML file with this node's data, and trainer options of its own"
    )
    parser.add_argument("--clients", type=int, nargs="+", required=True, help="the numbers of the clients that this node hosts")
    parser.add_argument("--state", type=Path, required=True, help="the folder of the clients' states")
    parser.add_argument(
        "--secret", type=Path, required=True, help="the file that the SuperNode has as --superexec-auth-secret-file"
    )
    parser.add_argument("--share-label-counts", action="store_true", help="let the server know each client's label counts")
    parser.add_argument("--supernode", default="127.0.0.1:9094", help="the SuperNode's --host and --port (%(default)s)")
    options = parser.parse_args(arguments)
    require(*FLOWER)
    from flcog.deploy.tasks import Runtime, answer_messages

    files = options.app.resolve() / PACKAGE, tuple(options.clients), options.data.resolve(), options.state.resolve()
    place = Place(*files, options.share_label_counts)
    answer_messages(Runtime(options.supernode, options.secret.read_bytes()), options.app.resolve(), Node(place).answer)


@dataclasses.dataclass(frozen=True)
class Place:
    """A node's clients and files."""

    app: Path
    clients: tuple[int, ...]
    data: Path
    state: Path
    shares_labels: bool = False


class Behind(Exception):
    """The node was restarted, or has lost a request, and needs all requests before round 1 again."""


class Node:
    """Answers the server's requests."""

    def __init__(self, place: Place) -> None:
        self.place, self._states = place, NodeStates(place.state)
        self._clients: HostedClients | None = None
        self._datamodule: FederatedDataModule | None = None
        self._settings: Settings | None = None
        self._done = 0
        """The number of requests before round 1 that were answered."""

    def answer(self, parts: Parts) -> bytes:
        """The packed answer to a message: its token, and the result of its last request or an error in one line."""
        token = ""
        try:
            head = _head(parts)
            token = head["token"]
            return pack((token, "result", self._result(head, parts)))
        except Behind:
            return pack((token, "behind", None))
        except Exception as error:
            with suppress(OSError):  # the disk with the node's output may be full
                traceback.print_exc()
            known = str(error) if isinstance(error, PackingError) else refusal(error)
            return pack((token, "error", known or f"{type(error).__name__}: {error} (the node's output has the traceback)"))

    def _result(self, head: Mapping[str, Any], parts: Parts) -> Any:
        if head["done"] not in (0, self._done):
            raise Behind
        self._states.turn_to(head["run"], head["accepted"], head["round"])
        result = None
        for i, (name, count) in enumerate(head["requests"]):
            arguments = [unpack(parts[f"{i}.{k}"]) for k in range(count)]
            if name == "begin":
                here = facts_of(self._build(head["facts"]), head["facts"]["clients"])
                check_alike(head["facts"], here, "set the same in both YAML files")
                self._done = 0
            elif self._clients is None:
                raise Behind
            result = self._call(name, arguments)
            self._done += name in SETTING_UP
        return result

    def _call(self, name: str, arguments: Sequence[Any]) -> Any:
        if name not in ALLOWED:
            raise ValueError(f"a node answers {', '.join(sorted(ALLOWED))}; got {name!r}")
        assert self._clients is not None and self._settings is not None
        with self._settings.in_force():
            result = answer_of(self._clients, name, arguments)
        if name == "train":
            trained = [client for reply in result for client in reply.clients]
            self._clients.commit(trained)  # on the node's disk, under the number of this round
            self._states.carry_over(trained)
        return result

    def _build(self, facts: dict[str, Any]) -> FederatedDataModule:
        """Make the node's clients, once."""
        check_alike(facts, VERSIONS, "install the same version on both")
        if self._datamodule is None:
            objects = make_objects(self.place.app, [self.place.data], "--trainer.logger", "false")
            trainer, model = objects.trainer, objects.model
            self._settings = settings = trainer.settings
            with settings.in_force():
                self._datamodule = data = hosted(objects.datamodule, self.place.clients, facts["clients"])
                self._clients = host_clients(
                    settings, trainer.methods, model, data, processes_of(trainer.fabric), trainer.lightning
                )
            self._clients.states, self._clients.shares_labels = self._states, self.place.shares_labels
        return self._datamodule


class NodeStates:
    """The states of a node's clients, two rounds deep: after the last round that the server accepted, and after the round in hand.

    The server names the last accepted round of each client with each request. So a lost reply, a restarted node and a server that
    resumes from its checkpoint all continue from the same state.

    Each run has a folder of its own in ``folder``.
    """

    def __init__(self, folder: Path) -> None:
        self._parent, self._folder = folder, folder
        self.owner: dict[int, int] = {}
        self._accepted: Mapping[int, int] = {}
        self._round, self._written = 0, set[int]()

    def turn_to(self, run: str, accepted: Mapping[int, int], round: int) -> None:
        """Prepare for a request.

        ``accepted`` is the last accepted round of each client that has one, counted from 0, and ``round`` the round in hand.
        """
        if not run.isalnum():  # it becomes the name of a folder
            raise ValueError(f"a run's name has letters and digits alone; got {run[:80]!r}")
        self._folder, self._accepted, self._round, self._written = self._parent / run, accepted, round, set[int]()

    @property
    def clients(self) -> list[int]:
        return sorted(self._accepted)

    def get(self, client: int) -> dict[str, Slot]:
        if client not in self._accepted:
            return {}
        path = self._path(client, self._accepted[client])
        try:
            states: dict[str, Slot] = unpack(path.read_bytes())
        except FileNotFoundError:
            raise ValueError(
                f"the state of client {client} after round {self._accepted[client] + 1} is not in {path.parent}: start the node with the "
                "state folder of that round, or start the run again from round 1"
            ) from None
        except PackingError as error:
            raise ValueError(
                f"{path} is damaged ({error}): restore it from a backup, or start the run again from round 1"
            ) from None
        return states

    def fetch(self, clients: Sequence[int]) -> None:
        """Do nothing, because :meth:`get` reads single files."""

    def put(self, client: int, states: dict[str, Slot]) -> None:
        """Keep a client's state after the round in hand, and remove states that no later request can need."""
        kept = {self._path(client, round) for round in (self._round, self._accepted.get(client, self._round))}
        with replacing(self._path(client, self._round), permissions=0o600) as file:
            file.write(pack(states))
        self._written.add(client)
        for path in self._folder.glob(f"client-{client}-round-*.bin"):
            if path not in kept:
                path.unlink()

    def carry_over(self, clients: Sequence[int]) -> None:
        """Keep the states of clients that have trained in this round without a new state."""
        for client in clients:
            if client not in self._written:
                self.put(client, self.get(client))

    def _path(self, client: int, round: int) -> Path:
        return self._folder / f"client-{client}-round-{round + 1}.bin"


def _head(parts: Parts) -> dict[str, Any]:
    """The description of a message's requests."""
    head = unpack(parts.get("head", b""))
    wanted = {"token": str, "run": str, "accepted": dict, "round": int, "done": int, "facts": dict, "requests": list}
    if not isinstance(head, dict) or any(not isinstance(head.get(name), kind) for name, kind in wanted.items()):
        raise PackingError(f"a message's head has {', '.join(wanted)}; got {str(head)[:80]}")
    if sum(count for _, count in head["requests"]) != len(parts) - 1:
        raise PackingError(f"the message has {len(parts) - 1} arguments; its head describes {head['requests']}")
    return head


def facts_of(datamodule: FederatedDataModule, clients: int) -> dict[str, Any]:
    """Facts in which server and nodes must agree, and the number of all clients."""
    return {**VERSIONS, "batch_size": datamodule.batch_size, "drop_last": datamodule.drop_last, "clients": clients}


def check_alike(facts: Mapping[str, Any], here: Mapping[str, Any], fix: str) -> None:
    """Refuse a server with other facts."""
    for name, mine in here.items():
        if facts.get(name) != mine:
            raise ValueError(f"this node has {name}={mine}, the server {facts.get(name)}: {fix}")


def hosted(datamodule: FederatedDataModule, clients: Sequence[int], of: int) -> FederatedDataModule:
    """The data of a node.

    If the data module has the data of all ``of`` clients, the node takes its own. Otherwise it has as many clients as the node hosts,
    and they receive these numbers in order.
    """
    found = datamodule.federation.num_clients
    if wrong := [client for client in clients if not 0 <= client < of]:
        raise ValueError(
            f"the federation's clients have the numbers 0 to {of - 1}; this node's clients={wrong[0]}: correct its number"
        )
    if found == of:
        return datamodule.only(clients)
    if found != len(clients):
        raise ValueError(
            f"the node's data have {found} clients, and the node hosts {len(clients)} of {of}: give data with num_clients={len(clients)}"
        )
    own, federation = copy.copy(datamodule), datamodule.federation
    numbered = dataclasses.replace(
        federation,
        partition=_numbered(federation.partition, clients, of),
        client_val=federation.client_val and _numbered(federation.client_val, clients, of),
        client_test=federation.client_test and _numbered(federation.client_test, clients, of),
        whole=None,
    )
    own._federation = numbered.only(clients)
    return own


def shares(clients: int, nodes: int) -> list[Sequence[int]]:
    """The clients of each node: client k lives on node k modulo their number."""
    if nodes > clients:
        raise ValueError(f"--try {nodes} starts {nodes} nodes, and the federation has {clients} clients: give at most {clients}")
    return [range(node, clients, nodes) for node in range(nodes)]


def _numbered(partition: Partition, clients: Sequence[int], of: int) -> Partition:
    """The partition with its clients at these numbers, and no samples for all others."""
    parts = {number: partition.client(k) for k, number in enumerate(clients)}
    nothing = np.zeros(0, np.int64)
    return Partition.from_clients([parts.get(number, nothing) for number in range(of)])
