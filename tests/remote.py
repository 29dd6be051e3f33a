"""Clients in other processes, which get every task as bytes and have no data but their own: the test of the separation of both sides.

Each process is started once and serves one case after another. A case travels by its name; each side makes the modules and data of the
case itself, as two machines would from one configuration.
"""

import multiprocessing
import warnings
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from multiprocessing.connection import Connection
from types import SimpleNamespace
from typing import Any

import torch
from harness import RecordingTrainer, TinyData, make_trainer
from torch import Tensor

from flcog.client.messages import ClientReply, ClientTask, Received, RollCall, Scores, Split
from flcog.client.store import StatesInMemory
from flcog.core.types import Params, Slot
from flcog.data import FederatedDataModule
from flcog.hosting import HostedClients, host_clients
from flcog.method import Method
from flcog.wire.packing import pack, unpack
from flcog.wire.population import Population


def make_runtime(
    in_force: ExitStack, case: str, methods: str, held_out: dict[str, float], clients: Sequence[int]
) -> HostedClients:
    """The runtime of some clients of a case of the registry.

    Args:
        in_force: holds the precision of the case from now on.
        case: its name.
        methods: the name of a list of methods in ``contracts.test_remote.EXTRA``, which follow the case's own; empty for none.
        held_out: arguments of the tiny data; empty for the case's own data.
        clients: whom it hosts.
    """
    from contracts.registry import CASES
    from contracts.test_remote import EXTRA

    chosen = CASES[case]
    trainer = make_trainer(None, chosen.method, *EXTRA[methods], **chosen.options)
    in_force.close()
    in_force.enter_context(trainer.settings.in_force())
    data = TinyData(**held_out) if held_out else chosen.data()
    return host_clients(trainer.settings, trainer.methods, chosen.module(chosen.optimizer), data.only(clients))


def serve(connection: Connection) -> None:
    """Answer the server's requests: each is a packed pair of a function's name and its arguments, and the answer a packed result."""
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
                result = getattr(runtime, name)
                result = result(*arguments) if callable(result) else result
                result = list(result) if isinstance(result, Generator) else result
        except Exception as error:
            connection.send_bytes(pack(("error", f"{type(error).__name__}: {error}")))
        else:
            connection.send_bytes(pack(("result", result)))


class Host:
    """A process that hosts clients. All are forked from one that imports the modules, which it finds on the environment's PYTHONPATH."""

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

    def answer(self) -> Any:
        kind, result = unpack(self._connection.recv_bytes())
        assert kind == "result", result
        return result

    def close(self) -> None:
        self._process.kill()  # an orderly end takes torch seconds
        self._process.join()


class RemoteClients:
    """The clients of several hosts as the server reaches them."""

    def __init__(self, hosts: Sequence[Host]) -> None:
        self.hosts, self.store = hosts, StatesInMemory()
        self.executor = SimpleNamespace(name="remote", clients_at_once=1, compiled=False, choice=None)
        self._calls: list[RollCall] = []
        self._home: dict[int, int] = {}

    @property
    def here(self) -> None:
        return None

    @property
    def stateful(self) -> bool:
        return any(host.ask("stateful") for host in self.hosts)

    def _by_host(self, clients: Sequence[int]) -> list[tuple[Host, list[int]]]:
        return [(host, [client for client in clients if self._home[client] == k]) for k, host in enumerate(self.hosts)]

    def _all(self, name: str, *arguments: Any) -> list[Any]:
        return [host.ask(name, *arguments) for host in self.hosts]

    def begin(self) -> RollCall:
        self._calls = self._all("begin")
        self._home = {client: k for k, call in enumerate(self._calls) for client in call.sizes.nonzero().flatten().tolist()}
        return self.roll_call()

    def exchange(self, method: str, step: str, messages: Mapping[int, Any]) -> dict[int, Any]:
        parts = [
            host.ask("exchange", method, step, {client: messages[client] for client in mine})
            for host, mine in self._by_host(list(messages))
        ]
        return dict(sorted((client, answer) for part in parts for client, answer in part.items()))

    def roll_call(self) -> RollCall:
        self._calls = self._all("roll_call")
        first = self._calls[0]
        vectors = [
            None if getattr(first, name) is None else torch.stack([getattr(call, name) for call in self._calls]).sum(0)
            for name in ("sizes", "val", "test")
        ]
        return RollCall(*vectors, *first[3:])

    def set_up(self, population: Population, constants: Params) -> None:
        self._all("set_up", population, constants)

    def contact(self, received: Received, newcomers: Mapping[str, Sequence[int]]) -> dict[str, dict[int, Any]]:
        found: dict[str, dict[int, Any]] = {}
        for k, host in enumerate(self.hosts):
            mine = {name: [client for client in clients if self._home[client] == k] for name, clients in newcomers.items()}
            for name, messages in host.ask("contact", received, mine).items():
                found.setdefault(name, {}).update(messages)
        return found

    def train(self, received: Received, tasks: Sequence[ClientTask]) -> Generator[ClientReply, None, None]:
        for host, clients in self._by_host([task.client for task in tasks]):
            host.send("train", received, [task for task in tasks if task.client in clients])
        for host in self.hosts:
            yield from host.answer()

    def commit(self, clients: Sequence[int]) -> None:
        for host, mine in self._by_host(clients):
            host.ask("commit", mine)

    def evaluate(self, params: Params, buffers: Params, split: Split, figures: bool, classes: Tensor | None = None) -> Scores:
        parts: list[Scores] = self._all("evaluate", params, buffers, split, figures, classes)
        scores = torch.stack([part.clients for part in parts])
        counts = [call.val if split == "val" else call.test for call in self._calls]
        sizes = [0 if count is None else int(count.sum()) for count in counts]
        means = {name: sum(n * part.figures[name] for n, part in zip(sizes, parts, strict=True)) for name in parts[0].figures}
        return Scores(scores.nanmean(0), {name: value / sum(sizes) for name, value in means.items()})

    def losses(self, received: Received, clients: Sequence[int]) -> list[float]:
        found = {}
        for host, mine in self._by_host(clients):
            found.update(zip(mine, host.ask("losses", received, mine), strict=True))
        return [found[client] for client in clients]

    def personal_scores(
        self, received: Received, method: str, clients: Sequence[int], first: Params, split: Split
    ) -> list[float]:
        found = {}
        for host, mine in self._by_host(clients):
            found.update(zip(mine, host.ask("personal_scores", received, method, mine, first, split), strict=True))
        return [found[client] for client in clients]

    def personal_model(self, received: Received, method: str, client: int, first: Params) -> tuple[Params, Params]:
        model: tuple[Params, Params] = self.hosts[self._home[client]].ask("personal_model", received, method, client, first)
        return model

    def snapshot(self) -> dict[int, dict[str, Slot]]:
        return {client: state for part in self._all("snapshot") for client, state in part.items()}

    def restore(self, states: Mapping[int, dict[str, Slot]]) -> None:
        for host, mine in self._by_host(list(states)):  # hosts without such a client too, which may have states of others
            host.ask("restore", {client: states[client] for client in mine})


def prepared(
    hosts: Sequence[Host],
    name: str,
    methods: Sequence[Method],
    extra: str = "",
    data: Callable[[], FederatedDataModule] | None = None,
) -> RecordingTrainer:
    """A trainer of a case of the registry, whose clients live in the hosts: client k in host k modulo their number.

    Args:
        hosts: the processes.
        name: of the case.
        methods: of the server.
        extra: the name of the methods that follow the case's own at the clients.
        data: a partial of ``TinyData`` in the place of the case's data.
    """
    from contracts.registry import CASES

    case = CASES[name]
    trainer, count = make_trainer(None, *methods, **case.options), (data or case.data)().federation.num_clients
    held_out = data.keywords if isinstance(data, partial) else {}
    for k, host in enumerate(hosts):
        host.ask("make_runtime", name, extra, held_out, list(range(k, count, len(hosts))))
    trainer.connect(RemoteClients(hosts))
    trainer.prepare(case.module(case.optimizer), (data or case.data)())
    return trainer
