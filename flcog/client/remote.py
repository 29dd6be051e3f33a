"""Clients in other processes: the server's side and the hosts' side of every message. The transport of messages is the user's."""

import functools
import itertools
import math
import operator
import warnings
from collections.abc import Generator, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from flcog.client.answers import MOST_SAMPLES, BadAnswer, Belief, HostError, Like, clean
from flcog.client.messages import JOINS, POOLED, ClientReply, ClientTask, Download, Question, RollCall, Scores
from flcog.client.runtime import ClientRuntime
from flcog.client.store import ClientStore, StatesInMemory
from flcog.core.text import clipped
from flcog.core.types import Params, Slot
from flcog.method.client_view import Population
from flcog.wire.packing import Limits, PackingError

CALLS = (
    *("begin", "standardise", "exchange", "roll_call", "set_up", "stateful", "contact", "train", "commit", "evaluate", "losses"),
    *("personal_model", "snapshot", "restore"),
)
"""The requests that a server sends to hosts."""


class NoAnswer(TimeoutError):
    """A host has not answered a request in time."""


class Host(Protocol):
    """A process that hosts clients, as the server reaches it. ``flcog.wire.packing`` turns requests and answers into bytes."""

    def send(self, name: str, *arguments: Any) -> None:
        """Send a request, without waiting for its answer."""

    def answer(self, limits: Limits | None) -> Any:
        """Wait for the answer to the earliest request without one, and unpack it within these limits. An error at the host is raised here.

        If this raises :class:`NoAnswer`, the host's clients drop out of a round, or of an evaluation. ``trainer.on_bad_update`` decides
        whether they also do after a :class:`flcog.client.answers.BadAnswer` or a ``PackingError``.
        """


def answer_of(clients: Any, name: str, arguments: Sequence[Any]) -> Any:
    """A host's answer to a request.

    ``evaluate`` asks several questions, each with its number of arguments, which follow one after another. As arguments of one request,
    equal ones such as the model travel once, if the transport stores equal bytes once.
    """
    if name not in CALLS:
        raise ValueError(f"a host answers {', '.join(CALLS)}; got {name}")
    if name == "evaluate":
        questions, *values = arguments
        given = iter(values)
        return list(clients.ask([Question(asked, tuple(itertools.islice(given, count))) for asked, count in questions]))
    found = getattr(clients, name)
    result = found(*arguments) if callable(found) else found
    return list(result) if isinstance(result, Generator) else result


class RemoteExecutor(NamedTuple):
    """Stands for the hosts' own executors in a run's description."""

    name: str = "remote"
    clients_at_once: int = 1
    compiled: bool = False


def called(kind: str, number: int, clients: Sequence[int]) -> str:
    """The name of a host in messages: by its clients, or by its number before it has told them."""
    numbers = ", ".join(map(str, clients[:5])) + ", ..." * (len(clients) > 5)
    return f"the {kind} of client{'s' * (len(clients) > 1)} {numbers}" if clients else f"{kind} {number}"


def check_facts(known: Iterable[tuple[str, Mapping[str, Any]]]) -> None:
    """Refuse data that differ in a fact."""
    first: dict[str, tuple[str, Any]] = {}
    for owner, facts in known:
        for fact, here in facts.items():
            other, there = first.setdefault(fact, (owner, here))
            if here != there:
                raise ValueError(
                    f"the data of {other} have {fact}={clipped(str(there))}, and those of {owner} {fact}={clipped(str(here))}: give both "
                    "the same"
                )


class RemoteClients:
    """The clients of several hosts, for ``FederatedTrainer.connect``."""

    here = None
    may_be_lost = False
    kind, division = "host", "give each host its own clients, such as data.only([0, 2, 4])"
    """For messages: what a host is called, and how users divide the clients among hosts."""
    num_clients = 0
    """The number of clients that must have a host, if the data do not tell it."""
    max_client_samples = MOST_SAMPLES
    """The most samples of a client that the server believes."""

    def __init__(self, hosts: Sequence[Host]) -> None:
        self.hosts, self.executor = hosts, RemoteExecutor()
        self.store: ClientStore = StatesInMemory()
        self._calls: list[RollCall] = []
        self._home: dict[int, int] = {}
        self._unread = [0] * len(hosts)
        """The number of each host's answers that nobody has read."""

    def begin(self, own: ClientRuntime, drop: bool) -> RollCall:
        """Begin a new run, without states and with the data before any exchange.

        ``own`` is the server's own runtime, and tells the form of all answers. ``drop``: whether a round goes on without clients
        whose answer is bad.
        """
        self._belief, self._calls = Belief(own, self.num_clients, self.max_client_samples, drop), []
        self._take(self._all("begin"))
        check_facts((self._name(k), call.facts) for k, call in enumerate(self._calls))
        return self.roll_call()

    def _name(self, k: int) -> str:
        return called(self.kind, k, self._calls[k].clients if self._calls else ())

    def _take(self, calls: list[RollCall]) -> None:
        """Take over the hosts' roll calls, if each client has one host."""
        hosts: dict[int, list[int]] = {client: [] for client in range(self.num_clients or len(calls[0].sizes))}
        for k, call in enumerate(calls):
            for client in call.clients:
                hosts.setdefault(client, []).append(k)
        for client, found in hosts.items():
            if len(found) != 1:
                fault = f"{len(found)} {self.kind}s host" if found else f"no connected {self.kind} hosts"
                raise ValueError(f"{fault} client {client}: {self.division}")
        self._calls, self._exchanged, self._belief.num_clients = calls, False, len(calls[0].sizes)
        self._home = {client: k for client, (k,) in hosts.items()}

    def roll_call(self) -> RollCall:
        """The clients and the sizes of their data, after the exchanges so far."""
        if self._exchanged:
            self._calls, self._exchanged = self._all("roll_call"), False
        first = self._calls[0]
        sizes, val, test = (
            None if getattr(first, name) is None else torch.stack([getattr(call, name) for call in self._calls]).sum(0)
            for name in ("sizes", "val", "test")
        )
        assert sizes is not None
        names = next((call.class_names for call in self._calls if call.class_names), None)
        counts = [call.label_counts for call in self._calls if call.label_counts is not None]
        of_all = torch.stack(counts).sum(0) if len(counts) == len(self._calls) else None
        return first._replace(sizes=sizes, val=val, test=test, class_names=names, label_counts=of_all)

    def standardise(self, mean: Tensor | None, std: Tensor | None) -> dict[int, Tensor]:
        """The sums of each client for the common standardisation; nothing where std is given, which clients take over."""
        return {client: sums for part in self._all("standardise", mean, std) for client, sums in part.items()}

    def exchange(self, method: str, step: str, messages: Mapping[int, Any], like: Like) -> dict[int, Any]:
        """Send clients messages of a method that exchanges data before round 1, and return their answers in the order of clients."""
        self._exchanged, self._belief.like = True, like
        parts = self._each("exchange", messages, lambda mine: (method, step, {client: messages[client] for client in mine}))
        return dict(sorted((client, answer) for _, part in parts for client, answer in part.items()))

    def set_up(self, population: Population, constants: Params) -> None:
        """Send clients, after all exchanges, the facts about all of them, and the weights that no client changes, such as LoRA's."""
        self._all("set_up", population, constants)

    @property
    def stateful(self) -> bool:
        return any(self._all("stateful"))

    def contact(self, received: Download, newcomers: Mapping[str, Sequence[int]]) -> dict[str, dict[int, Any]]:
        found: dict[str, dict[int, Any]] = {}
        everybody = {client for clients in newcomers.values() for client in clients}

        def arguments(mine: Sequence[int]) -> tuple[Any, ...]:
            own = set(mine)
            return received, {name: [client for client in clients if client in own] for name, clients in newcomers.items()}

        for _, part in self._each("contact", everybody, arguments, optional=True):
            for name, messages in part.items():
                found.setdefault(name, {}).update(messages)
        return found

    def train(self, received: Download, tasks: Sequence[ClientTask]) -> Generator[ClientReply, None, None]:
        by_client = {task.client: task for task in tasks}
        arguments = lambda mine: (received, [by_client[client] for client in mine])  # noqa: E731
        for _, part in self._each("train", by_client, arguments, optional=True):
            yield from part

    def commit(self, clients: Sequence[int]) -> None:
        list(self._each("commit", clients, lambda mine: (mine,)))

    def ask(self, questions: Sequence[Question]) -> list[Any]:
        given = [self._by_host(question) for question in questions]
        asked = {k: mine for k in range(len(self.hosts)) if (mine := [i for i, own in enumerate(given) if k in own])}
        found: list[dict[int, Any]] = [{} for _ in questions]
        requests = {
            k: ([(questions[i].name, len(given[i][k])) for i in mine], *(value for i in mine for value in given[i][k]))
            for k, mine in asked.items()
        }
        for k, answers in self._answers("evaluate", requests, optional=True):
            for i, answer in zip(asked[k], answers, strict=True):
                found[i][k] = answer
        return [self._joined(*each) for each in zip(questions, found, strict=True)]

    def _by_host(self, question: Question) -> dict[int, tuple[Any, ...]]:
        """The arguments of a question for each host that it concerns."""
        if question.name == "evaluate":
            return dict.fromkeys(range(len(self.hosts)), question.arguments)
        received, method, clients, *rest = question.arguments
        return {k: (received, method, mine, *rest) for k, mine in self._divided(clients).items()}

    def _joined(self, question: Question, parts: Mapping[int, Any]) -> Any:
        """The answer to a question, from the hosts' answers."""
        if question.name == "personal_scores":
            return joined_numbers(parts, self._home, question.arguments[2])
        if not parts:
            raise NoAnswer("no host has answered the request to evaluate the model")
        counts = {k: self._calls[k].val if question.arguments[2] == "val" else self._calls[k].test for k in parts}
        return joined_scores(parts, {k: 0 if count is None else int(count.sum()) for k, count in counts.items()}, self.kind)

    def losses(self, received: Download, clients: Sequence[int]) -> list[float]:
        found = self._each("losses", clients, lambda mine: (received, mine), optional=True)
        return joined_numbers(dict(found), self._home, clients)

    def personal_model(self, received: Download, method: str, client: int, first: Params) -> tuple[Params, Params]:
        [(_, model)] = self._answers("personal_model", {self._home[client]: (received, method, client, first)})
        return model  # type: ignore[no-any-return]

    def snapshot(self) -> dict[int, dict[str, Slot]]:
        return {client: states for part in self._all("snapshot") for client, states in part.items()}

    def restore(self, states: Mapping[int, dict[str, Slot]]) -> None:
        hosted = self._divided(states)
        mine = {k: ({client: states[client] for client in hosted.get(k, ())},) for k in range(len(self.hosts))}
        list(self._answers("restore", mine))

    def _all(self, name: str, *arguments: Any) -> list[Any]:
        """The answers of all hosts to the same request."""
        return [answer for _, answer in self._answers(name, dict.fromkeys(range(len(self.hosts)), arguments))]

    def _each(
        self, name: str, clients: Iterable[int], arguments: Any, optional: bool = False
    ) -> Generator[tuple[int, Any], None, None]:
        """The answers to a request with ``arguments(its clients)``, for each host of some of these clients."""
        return self._answers(name, {k: arguments(mine) for k, mine in self._divided(clients).items()}, optional)

    def _divided(self, clients: Iterable[int]) -> dict[int, list[int]]:
        """These clients by host."""
        hosted: dict[int, list[int]] = {}
        for client in clients:
            hosted.setdefault(self._home[client], []).append(client)
        return dict(sorted(hosted.items()))

    def _answers(
        self, name: str, arguments: Mapping[int, tuple[Any, ...]], optional: bool = False
    ) -> Generator[tuple[int, Any], None, None]:
        """The number of each host, and its answer to a request. If the request is ``optional``, hosts without an answer are left out."""
        for k, given in arguments.items():
            while self._unread[k]:  # an error has ended the earlier request, and its answers would be taken for those to this one
                self._read(k)
            self.hosts[k].send(name, *given)
            self._unread[k] += 1
        errors: list[Exception] = []
        for k in arguments:
            answer, error = self._read(k, name, arguments[k])
            if error is None:
                yield k, answer
            elif optional and isinstance(error, BadAnswer) and self._belief.drop:
                warnings.warn(f"{error} (the answer counts as lost)", stacklevel=2)
            elif not (optional and isinstance(error, NoAnswer)):
                errors.append(error)
        if errors:
            raise errors[0]

    def _read(self, k: int, name: str = "", arguments: tuple[Any, ...] = ()) -> tuple[Any, Exception | None]:
        """A host's answer to the earliest request without one, if it has the form that the request asks for, or its error."""
        answer: Any = None
        error: Exception | None = None
        form = self._belief.wanted(name, arguments, self._calls[k].clients if self._calls else ())
        try:
            answer = self.hosts[k].answer(form and form.limits)
            answer = form.of(answer) if form else answer
        except HostError as raised:
            error = BadAnswer(f"{self._name(k)}: {clean(str(raised))}")
        except (BadAnswer, PackingError) as raised:
            error = BadAnswer(f"{self._name(k)} has sent a bad answer to the request {name}: {clean(str(raised))}")
        except Exception as raised:
            error = raised
        self._unread[k] -= 1
        return answer, error


def joined_scores(parts: Mapping[int, Scores], sizes: Mapping[int, int], kind: str) -> Scores:
    """The scores of all clients, and the figures on all held-out samples."""
    together, withheld = dict[str, float](), list[str]()
    for name in dict.fromkeys(name for part in parts.values() for name in part.figures):
        measured = [k for k, part in parts.items() if name in part.figures]  # a host without held-out samples has none
        if len(measured) > 1 and any(parts[k].joins.get(name, ("", 1))[0] == POOLED for k in measured):
            withheld.append(name)
            continue
        together[name] = _over_all_rows([(parts[k], sizes[k]) for k in measured], name)
    if withheld:
        warnings.warn(
            f"{', '.join(withheld)} on the clients' held-out parts: no mean over samples, so the {kind}s' figures do not "
            "tell that of all samples together. It is left out; a validation set of the server's gives it",
            stacklevel=2,
        )
    return Scores(torch.stack([part.clients for part in parts.values()]).nanmean(0), together)


def joined_numbers(parts: Mapping[int, Sequence[float]], home: Mapping[int, int], clients: Sequence[int]) -> list[float]:
    """A number for each of these clients; NaN for clients of a host without an answer. ``home`` is the host of each client."""
    found: dict[int, float] = {}
    for k, numbers in parts.items():
        found.update(zip((client for client in clients if home[client] == k), numbers, strict=True))
    return [found.get(client, math.nan) for client in clients]


def _over_all_rows(hosts: Sequence[tuple[Scores, int]], name: str) -> float:
    """A figure over the held-out samples of the clients of all these hosts, each with its number of samples."""
    joins = [host.joins.get(name, ("mean", 1.0)) for host, _ in hosts]
    values, join = [host.figures[name] for host, _ in hosts], JOINS[joins[0][0]]
    if joins[0][0] != "mean":
        return float(functools.reduce(join, values))
    weights = [rows * per_row for (_, rows), (_, per_row) in zip(hosts, joins, strict=True)]
    total = functools.reduce(join, weights)
    return functools.reduce(join, map(operator.mul, values, weights)) / total if total else math.nan
