"""A node: it answers the server's requests about the clients that it hosts."""

import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

import flcog
from flcog.client.remote import CALLS, answer_of
from flcog.commands.refusals import refusal
from flcog.core.fabric import processes_of
from flcog.data import FederatedDataModule
from flcog.deploy.link import Parts
from flcog.deploy.numbering import hosted
from flcog.deploy.objects import make_objects
from flcog.deploy.states import NodeStates
from flcog.deploy.supervision import Worker
from flcog.hosting import HostedClients, host_clients
from flcog.settings import Settings
from flcog.wire.packing import PackingError, pack, unpack

SETTING_UP = ("begin", "exchange", "set_up")
"""Requests before round 1. A node that was restarted gets all of them again."""

ALLOWED = set(CALLS) - {"commit", "snapshot", "restore"}
"""Clients' states never leave their node: the server only names the rounds that it has accepted."""


class Behind(Exception):
    """The node was restarted, or has lost a request, and needs all requests before round 1 again."""


class Node:
    """Answers the server's requests.

    Args:
        worker: the node's clients, data and folders.
    """

    def __init__(self, worker: Worker) -> None:
        self._worker, self._states = worker, NodeStates(Path(worker.state))
        self._clients: HostedClients | None = None
        self._datamodule: FederatedDataModule | None = None
        self._settings: Settings | None = None
        self._done = 0
        """The number of requests before round 1 that were answered."""

    def answer(self, parts: Parts) -> bytes:
        """The packed answer to a message: the result of its last request, or an error in one line."""
        try:
            return pack(("result", self._result(parts)))
        except Behind:
            return pack(("behind", None))
        except Exception as error:
            traceback.print_exc()
            known = str(error) if isinstance(error, PackingError) else refusal(error)
            return pack(("error", known or f"{type(error).__name__}: {error} (the traceback is in {self._worker.log})"))

    def _result(self, parts: Parts) -> Any:
        head = _head(parts)
        if head["done"] not in (0, self._done):
            raise Behind
        self._states.turn_to(head["run"], head["accepted"], head["round"])
        result = None
        for i, (name, count) in enumerate(head["requests"]):
            arguments = [unpack(parts[f"{i}.{k}"]) for k in range(count)]
            if name == "begin":
                check_alike(self._build(head["facts"]), head["facts"])
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
        check_versions(facts)
        if self._datamodule is None:
            worker = self._worker
            objects = make_objects(Path(worker.app), [Path(worker.data)], "--trainer.logger", "false")
            trainer, model = objects.trainer, objects.model
            self._settings = settings = trainer.settings
            with settings.in_force():
                self._datamodule = data = hosted(objects.datamodule, worker.clients, worker.of)
                self._clients = host_clients(
                    settings, trainer.methods, model, data, processes_of(trainer.fabric), trainer.lightning
                )
            self._clients.states = self._states
        return self._datamodule


def _head(parts: Parts) -> dict[str, Any]:
    """The description of a message's requests."""
    head = unpack(parts.get("head", b""))
    wanted = {"run": str, "accepted": dict, "round": int, "done": int, "facts": dict, "requests": list}
    if not isinstance(head, dict) or any(not isinstance(head.get(name), kind) for name, kind in wanted.items()):
        raise PackingError(f"a message's head has {', '.join(wanted)}; got {str(head)[:80]}")
    if sum(count for _, count in head["requests"]) != len(parts) - 1:
        raise PackingError(f"the message has {len(parts) - 1} arguments; its head describes {head['requests']}")
    return head


def facts_of(datamodule: FederatedDataModule) -> dict[str, Any]:
    """Facts in which server and nodes must agree."""
    return {**VERSIONS, "batch_size": datamodule.batch_size, "drop_last": datamodule.drop_last}


VERSIONS = {"flcog": flcog.__version__, "torch": torch.__version__.partition("+")[0]}


def check_versions(facts: dict[str, Any]) -> None:
    """Refuse a server with other versions."""
    for name, version in VERSIONS.items():
        if facts.get(name) != version:
            raise ValueError(f"this node has {name} {version}, the server {facts.get(name)}: install the same version on both")


def check_alike(datamodule: FederatedDataModule, facts: dict[str, Any]) -> None:
    """Refuse a server that makes other batches."""
    for name, here in facts_of(datamodule).items():
        if facts.get(name) != here:
            raise ValueError(
                f"this node's data have {name}={here}, the server's {facts.get(name)}: set the same in both YAML files"
            )
