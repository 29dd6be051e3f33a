"""Clients in other processes, which receive every task as bytes and have only their own data, to test that both sides are separate.

Each process is started once and serves one case after another. Only the name of a case is sent. The server and the clients each make
the modules and data of the case, as two machines would from one configuration.
"""

import multiprocessing
import warnings
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch
from harness import RecordingTrainer, TinyData, make_trainer

from flcog.client.remote import RemoteClients, answer_of
from flcog.data import FederatedDataModule
from flcog.method import Callback, Method
from flcog.run.hosting import HostedClients, host_clients
from flcog.wire.packing import Limits, pack, unpack


def make_runtime(
    in_force: ExitStack, case: str, methods: str, held_out: dict[str, float], clients: Sequence[int]
) -> HostedClients:
    """The runtime that hosts some clients of a case of the registry.

    Args:
        in_force: the stack that sets the precision of the case from now on.
        case: the name of the case.
        methods: the name of a list of methods in ``contracts.test_remote.EXTRA``, which follow the case's own; empty for none.
        held_out: arguments of the tiny data; empty for the case's own data.
        clients: the numbers of the hosted clients.
    """
    from contracts.registry import CASES
    from contracts.test_remote import EXTRA

    chosen = CASES[case]
    trainer = make_trainer(None, *chosen.beside, chosen.method, *EXTRA[methods], **chosen.options)
    in_force.close()
    in_force.enter_context(trainer.settings.in_force())
    data = TinyData(**held_out) if held_out else chosen.data()
    return host_clients(trainer.settings, trainer.methods, chosen.module(chosen.optimizer), data.only(clients))


def serve(connection: Connection) -> None:
    """Answer the server's requests. A request is a packed pair of a function's name and its arguments; the answer is a packed result."""
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    runtime: Any = None
    in_force = ExitStack()
    while True:
        name, arguments = unpack(connection.recv_bytes())
        try:
            if name == "ready":
                result: Any = True
            elif name == "make_runtime":
                runtime, result = make_runtime(in_force, *arguments), None
            else:
                result = answer_of(runtime, name, arguments)
        except Exception as error:
            connection.send_bytes(pack(("error", f"{type(error).__name__}: {error}")))
        else:
            connection.send_bytes(pack(("result", result)))


class Host:
    """A process that hosts clients.

    All hosts are forked from one process that has imported the modules, which it finds on the environment's PYTHONPATH.
    """

    def __init__(self) -> None:
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(["contracts.test_remote"])
        self._connection, theirs = context.Pipe()
        self._process = context.Process(target=serve, args=(theirs,), daemon=True)
        self._process.start()

    def ask(self, name: str, *arguments: Any) -> Any:
        self.send(name, *arguments)
        return self.answer()

    def send(self, name: str, *arguments: Any) -> None:
        self._connection.send_bytes(pack((name, arguments)))

    def read(self) -> tuple[str, Any]:
        answer: tuple[str, Any] = unpack(self._connection.recv_bytes())
        return answer

    def answer(self, limits: Limits | None = None) -> Any:
        kind, result = self.read()
        assert kind == "result", result
        return result if limits is None else unpack(pack(result), limits)

    def close(self) -> None:
        self._process.kill()  # torch would take seconds for an orderly exit
        self._process.join()


def prepared(
    hosts: Sequence[Host],
    name: str,
    methods: Sequence[Method],
    extra: str = "",
    data: Callable[[], FederatedDataModule] | None = None,
) -> RecordingTrainer:
    """A trainer for a case of the registry whose clients are in other processes: client k is in host k modulo the number of hosts.

    Args:
        hosts: the processes.
        name: the name of the case.
        methods: the methods of the server.
        extra: the name of the methods that follow the case's own at the clients.
        data: a partial of ``TinyData`` that replaces the case's data.
    """
    trainer, arguments = connected(hosts, None, name, methods, extra, data)
    trainer.prepare(*arguments)
    return trainer


def connected(
    hosts: Sequence[Host],
    root: Path | None,
    name: str,
    methods: Sequence[Callback],
    extra: str = "",
    data: Callable[[], FederatedDataModule] | None = None,
    **options: Any,
) -> tuple[RecordingTrainer, tuple[Any, FederatedDataModule]]:
    """The same trainer before its run, and the arguments for its ``fit``. Its runs have their directories under ``root``."""
    from contracts.registry import CASES

    case = CASES[name]
    trainer, count = (
        make_trainer(root, *case.beside, *methods, **(case.options | options)),
        (data or case.data)().federation.num_clients,
    )
    held_out = data.keywords if isinstance(data, partial) else {}
    for k, host in enumerate(hosts):
        host.send("make_runtime", name, extra, held_out, list(range(k, count, len(hosts))))
    answers = [host.read() for host in hosts]  # all answers, because an unread one would be taken for the next
    for kind, result in answers:
        assert kind == "result", result
    trainer.connect(RemoteClients(hosts))
    return trainer, (case.module(case.optimizer), (data or case.data)())
