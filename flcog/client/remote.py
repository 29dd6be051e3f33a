"""Clients in other processes: the server's side and the hosts' side of every message. The transport of messages is the user's."""

from collections.abc import Generator, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from flcog.client.executor import Choice
from flcog.client.messages import ClientReply, ClientTask, Received, RollCall, Scores, Split
from flcog.client.store import ClientStore, StatesInMemory
from flcog.core.types import Params, Slot
from flcog.wire.population import Population

CALLS = (
    *("begin", "exchange", "roll_call", "set_up", "stateful", "contact", "train", "commit", "evaluate", "losses"),
    *("personal_scores", "personal_model", "snapshot", "restore"),
)
"""The requests that a server sends to hosts."""


class Host(Protocol):
    """A process that hosts clients, as the server reaches it. ``flcog.wire.packing`` turns requests and answers into bytes."""

    def send(self, name: str, *arguments: Any) -> None:
        """Send a request, without waiting for its answer."""

    def answer(self) -> Any:
        """Wait for the answer to the earliest request without one. An error at the host is raised here."""


def answer_of(clients: Any, name: str, arguments: Sequence[Any]) -> Any:
    """A host's answer to a request.

    Args:
        clients: the result of :func:`flcog.hosting.host_clients`.
        name, arguments: of the request.
    """
    if name not in CALLS:
        raise ValueError(f"a host answers {', '.join(CALLS)}; got {name}")
    found = getattr(clients, name)
    result = found(*arguments) if callable(found) else found
    return list(result) if isinstance(result, Generator) else result


class RemoteExecutor(NamedTuple):
    """Stands for the hosts' own executors in a run's description."""

    name: str = "remote"
    clients_at_once: int = 1
    compiled: bool = False
    choice: Choice | None = None


class RemoteClients:
    """The clients of several hosts, for ``FederatedTrainer.connect``.

    Args:
        hosts: the processes.
    """

    here = None

    def __init__(self, hosts: Sequence[Host]) -> None:
        self.hosts, self.executor = hosts, RemoteExecutor()
        self.store: ClientStore = StatesInMemory()
        self._calls: list[RollCall] = []
        self._home: dict[int, int] = {}

    def begin(self) -> RollCall:
        self._calls = self._all("begin")
        self._home = {client: k for k, call in enumerate(self._calls) for client in call.sizes.nonzero().flatten().tolist()}
        return self.roll_call()

    def roll_call(self) -> RollCall:
        self._calls = self._all("roll_call")
        first = self._calls[0]
        sizes, val, test = (
            None if getattr(first, name) is None else torch.stack([getattr(call, name) for call in self._calls]).sum(0)
            for name in ("sizes", "val", "test")
        )
        assert sizes is not None
        return RollCall(sizes, val, test, *first[3:])

    def exchange(self, method: str, step: str, messages: Mapping[int, Any]) -> dict[int, Any]:
        parts = self._each("exchange", messages, lambda mine: (method, step, {client: messages[client] for client in mine}))
        return dict(sorted((client, answer) for part in parts for client, answer in part.items()))

    def set_up(self, population: Population, constants: Params) -> None:
        self._all("set_up", population, constants)

    @property
    def stateful(self) -> bool:
        return any(self._all("stateful"))

    def contact(self, received: Received, newcomers: Mapping[str, Sequence[int]]) -> dict[str, dict[int, Any]]:
        found: dict[str, dict[int, Any]] = {}
        everybody = {client for clients in newcomers.values() for client in clients}

        def arguments(mine: Sequence[int]) -> tuple[Any, ...]:
            return received, {name: [client for client in clients if client in mine] for name, clients in newcomers.items()}

        for part in self._each("contact", everybody, arguments):
            for name, messages in part.items():
                found.setdefault(name, {}).update(messages)
        return found

    def train(self, received: Received, tasks: Sequence[ClientTask]) -> Generator[ClientReply, None, None]:
        by_client = {task.client: task for task in tasks}
        for part in self._each("train", by_client, lambda mine: (received, [by_client[client] for client in mine])):
            yield from part

    def commit(self, clients: Sequence[int]) -> None:
        list(self._each("commit", clients, lambda mine: (mine,)))

    def evaluate(self, params: Params, buffers: Params, split: Split, figures: bool, classes: Tensor | None = None) -> Scores:
        parts: list[Scores] = self._all("evaluate", params, buffers, split, figures, classes)
        counts = [call.val if split == "val" else call.test for call in self._calls]
        sizes = [0 if count is None else int(count.sum()) for count in counts]
        totals = {name: sum(n * part.figures[name] for n, part in zip(sizes, parts, strict=True)) for name in parts[0].figures}
        scores = torch.stack([part.clients for part in parts]).nanmean(0)
        return Scores(scores, {name: total / sum(sizes) for name, total in totals.items()})

    def losses(self, received: Received, clients: Sequence[int]) -> list[float]:
        return self._numbers("losses", clients, lambda mine: (received, mine))

    def personal_scores(
        self, received: Received, method: str, clients: Sequence[int], first: Params, split: Split
    ) -> list[float]:
        return self._numbers("personal_scores", clients, lambda mine: (received, method, mine, first, split))

    def personal_model(self, received: Received, method: str, client: int, first: Params) -> tuple[Params, Params]:
        host = self.hosts[self._home[client]]
        host.send("personal_model", received, method, client, first)
        model: tuple[Params, Params] = host.answer()
        return model

    def snapshot(self) -> dict[int, dict[str, Slot]]:
        return {client: states for part in self._all("snapshot") for client, states in part.items()}

    def restore(self, states: Mapping[int, dict[str, Slot]]) -> None:
        list(self._each("restore", states, lambda mine: ({client: states[client] for client in mine},)))

    def _all(self, name: str, *arguments: Any) -> list[Any]:
        """The answers of all hosts to the same request."""
        for host in self.hosts:
            host.send(name, *arguments)
        answers, errors = [], []
        for host in self.hosts:  # an answer that nobody reads would be taken for that to the next request
            try:
                answers.append(host.answer())
            except Exception as error:
                errors.append(error)
        if errors:
            raise errors[0]
        return answers

    def _each(self, name: str, clients: Iterable[int], arguments: Any) -> Generator[Any, None, None]:
        """The answers of all hosts to a request about the clients that each hosts, with ``arguments(its clients)``."""
        for k, host in enumerate(self.hosts):
            host.send(name, *arguments(self._of(k, clients)))
        for host in self.hosts:
            yield host.answer()

    def _numbers(self, name: str, clients: Sequence[int], arguments: Any) -> list[float]:
        """A number for each client, from the answers of all hosts."""
        found: dict[int, float] = {}
        for k, numbers in enumerate(list(self._each(name, clients, arguments))):
            found.update(zip(self._of(k, clients), numbers, strict=True))
        return [found[client] for client in clients]

    def _of(self, k: int, clients: Iterable[int]) -> list[int]:
        return [client for client in clients if self._home[client] == k]
