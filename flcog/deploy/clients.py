"""The clients of a deployment, as the server reaches them: a host for each node, drop-outs, and the rounds that were accepted."""

import secrets
import time
from collections import deque
from collections.abc import Generator, Sequence
from dataclasses import dataclass, field
from typing import Any

from flwr.app import Message
from flwr.common.constant import ErrorCode

from flcog.client.answers import HostError, clean, require
from flcog.client.messages import ClientReply, ClientTask, Download, RollCall
from flcog.client.remote import NoAnswer, RemoteClients, called
from flcog.deploy.node import SETTING_UP
from flcog.deploy.post import ANSWER, TYPES, Post, from_record
from flcog.method import Callback, Run
from flcog.wire.packing import Limits, pack, unpack

RETRY_SECONDS = 2.0
"""Seconds before a node that has failed is asked again."""

LEFT = "the SuperLink does not know it any more"

HEAD = 4096
"""Bytes of an answer's header for its token, and for an error."""

Requests = Sequence[tuple[str, tuple[Any, ...]]]
"""Requests of one message: names and arguments."""


class Progress(Callback):
    """Knows the rounds that the server has accepted from each client. It is part of the run's checkpoints.

    ``post`` measures bytes and times, which become columns of ``metrics.csv``.
    """

    def __init__(self, post: Post) -> None:
        self._post = post
        self.run, self.round = secrets.token_hex(8), 0
        self.accepted: dict[int, int] = {}
        self.missing = set[int]()
        """The nodes that have not answered a request of this round. They are not asked again in it, and cost one timeout."""

    def on_round_metrics(self, run: Run, round: int, metrics: dict[str, float]) -> None:
        self.missing.clear()
        metrics.update(self._post.take_figures())

    def state_dict(self) -> dict[str, Any]:
        return {"run": self.run, "accepted": dict(self.accepted)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        if state:
            self.run, self.accepted = state["run"], dict(state["accepted"])


@dataclass
class Letter:
    """A message on its way.

    The answer to the last of its requests counts, and must contain the token, so that no other node can answer. ``done`` is the number of
    requests before round 1 that the node has answered before.
    """

    requests: Requests
    done: int
    deadline: float
    identifier: str = ""
    token: str = field(default_factory=secrets.token_hex)


class FlowerNode:
    """A node, for :class:`flcog.client.remote.RemoteClients`.

    In the ``facts`` server and nodes must agree.
    """

    def __init__(self, post: Post, number: int, progress: Progress, facts: dict[str, Any]) -> None:
        self.number, self.clients = number, list[int]()
        self._post, self._progress, self._facts = post, progress, facts
        self._journal: list[tuple[str, tuple[Any, ...]]] = []
        """The requests before round 1, which a restarted node gets again."""
        self._unsent: list[tuple[str, tuple[Any, ...]]] = []
        self._letters: deque[Letter | NoAnswer | None] = deque()

    def __str__(self) -> str:
        return called("node", self.number, self.clients)

    def send(self, name: str, *arguments: Any) -> None:
        request = (name, arguments)
        if name == "begin":
            self._journal, self._unsent = [], []
        if name in SETTING_UP:
            self._journal.append(request)
        elif self.number in self._progress.missing:
            self._letters.append(NoAnswer(f"{self} has not answered a request of this round: start the node, or raise timeout"))
            return
        self._unsent.append(request)
        if name == "set_up":  # needs no answer of its own: it goes with the next request
            self._letters.append(None)
            return
        requests, self._unsent = self._unsent, []
        done = len(self._journal) - sum(each in SETTING_UP for each, _ in requests)
        self._letters.append(self._sent(Letter(requests, done, time.monotonic() + self._post.timeout)))

    def answer(self, limits: Limits | None) -> Any:
        letter = self._letters.popleft()
        if letter is None:
            return None
        if isinstance(letter, NoAnswer):
            raise letter
        reason = ""
        while True:
            reply = self._post.wait_for(letter.identifier, letter.deadline)
            kind, value = (
                ("failed", "" if letter.identifier else LEFT) if reply is None else self._read(reply, letter.token, limits)
            )
            if kind == "result":
                return value
            reason = value or reason
            if time.monotonic() >= letter.deadline:  # a node that is away fails at once, again and again
                self._progress.missing.add(self.number)
                raise NoAnswer(
                    f"{self} has not answered the request {letter.requests[-1][0]} within {self._post.timeout:g} s"
                    f"{reason and f' ({reason})'}: start the node, or raise timeout"
                )
            if kind == "behind":
                begun = [each for each in self._journal if not any(each is request for request in letter.requests)]
                letter = Letter([*begun, *letter.requests], 0, letter.deadline)
            else:
                time.sleep(RETRY_SECONDS)
            letter = self._sent(letter)

    def _sent(self, letter: Letter) -> Letter:
        progress = self._progress
        head = {
            "token": letter.token,
            "run": progress.run,
            "accepted": {client: progress.accepted[client] for client in self.clients if client in progress.accepted},
            "round": progress.round,
            "done": letter.done,
            "facts": self._facts,
            "requests": [[name, len(arguments)] for name, arguments in letter.requests],
        }
        parts = {"head": pack(head)}
        for i, (_, arguments) in enumerate(letter.requests):
            parts |= {f"{i}.{k}": pack(argument) for k, argument in enumerate(arguments)}
        letter.identifier = self._post.push(self.number, TYPES[letter.requests[-1][0]], parts, str(progress.round + 1))
        return letter

    def _read(self, reply: Message, token: str, limits: Limits | None) -> tuple[str, Any]:
        """The kind of a reply and its value: result, behind, or failed if the node must be asked again."""
        if reply.has_error():
            if reply.error.code in (ErrorCode.LOAD_CLIENT_APP_EXCEPTION, ErrorCode.INVALID_FAB):
                raise ValueError(f"{self} does not run this app: {clean(reply.error.reason or '')}")
            return "failed", clean(str(reply.error.reason))
        parts = from_record(reply.content.get(ANSWER))
        answer = unpack(parts.get("answer", b""), limits and limits._replace(header=limits.header + HEAD))
        require(type(answer) is tuple and len(answer) == 3 and answer[0] == token, "it answers another request")
        _, kind, value = answer
        require(kind in ("result", "behind", "error"), "it is no answer")
        require(kind != "error" or isinstance(value, str), "it is no answer")
        if kind == "error":
            raise HostError(value)
        return kind, value


class DeployedClients(RemoteClients):
    """The clients of all nodes. Their states stay on the nodes, which learn with each request which rounds were accepted.

    A round needs replies of ``min_clients``, if its cohort has as many.
    """

    may_be_lost = True
    kind, division = "node", "give each client to one node (--clients of flcog node), and start all nodes before the run"

    def __init__(
        self, nodes: Sequence[FlowerNode], progress: Progress, num_clients: int, max_client_samples: int, min_clients: int
    ) -> None:
        super().__init__(nodes)
        self.nodes, self._progress, self._min_clients = nodes, progress, min_clients
        self.num_clients, self.max_client_samples = num_clients, max_client_samples

    def _take(self, calls: list[RollCall]) -> None:
        for node, call in zip(self.nodes, calls, strict=True):
            node.clients = call.clients
        order = sorted(range(len(calls)), key=lambda k: calls[k].clients)  # figures do not depend on the nodes' numbers
        self.hosts = self.nodes = [self.nodes[k] for k in order]
        super()._take([calls[k] for k in order])

    def _name(self, k: int) -> str:
        return str(self.nodes[k])

    def train(self, received: Download, tasks: Sequence[ClientTask]) -> Generator[ClientReply, None, None]:
        self._progress.round, replied = received.round, 0
        for reply in super().train(received, tasks):
            replied += len(reply.clients)
            yield reply
        if replied < min(self._min_clients, len(tasks)):
            raise NoAnswer(
                f"{replied} of {len(tasks)} clients have replied in round {received.round + 1}, and min_clients is {self._min_clients}: "
                "start the missing nodes, and continue from the checkpoint (ckpt_path)"
            )

    def commit(self, clients: Sequence[int]) -> None:
        self._progress.accepted.update(dict.fromkeys(clients, self._progress.round))

    def snapshot(self) -> dict[int, dict[str, Any]]:
        """Empty, because states stay on the nodes."""
        return {}

    def restore(self, states: Any) -> None:
        """Do nothing: the nodes have the states of the accepted rounds on their disks."""
