"""The form in which the server believes a host's answer: the clients, fields, shapes, types and sizes that it asked for.

The server knows the form of every answer before it arrives. A reply to a task has the form of the reply that the server's own client sends
after one step. An answer may have no more bytes than this form. Then the server unpacks and compares it, and replaces every value
that it can compute itself, such as the counted bytes.
"""

import itertools
import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from flcog.client.messages import JOINS, POOLED, ClientReply, ClientTask, Download, RollCall, Scores
from flcog.client.runtime import ClientRuntime
from flcog.data import LABELLED, Federation
from flcog.data.label_statistics import MOST_LABELS
from flcog.functional.own_steps import LOGGED
from flcog.method import SealedSum, Stage
from flcog.wire.envelope import Field
from flcog.wire.ledger import masked_bytes
from flcog.wire.packing import Limits, pack, unpack

SLACK = 2**16
"""Bytes of any answer's header."""

LEAF = 300
"""Bytes of a header for a tensor, a number or a name."""

MOST_TEXT = 200
"""The most characters of a name."""

MOST_CLASSES = 10**6
MOST_SAMPLES = 2**40

Like = Callable[[int, Federation], Any] | Any
"""An example of a client's answer in an exchange, or a function that returns it (``flcog.method.data_exchange.Ask``)."""


class BadAnswer(ValueError):
    """An answer of another form than the server asked for."""


class HostError(BadAnswer):
    """An error that a host has met, as it tells it."""


class Wanted(NamedTuple):
    """What the server asked for. ``believed`` returns the part of an answer that the server believes, or raises a :class:`BadAnswer`."""

    limits: Limits
    believed: Callable[[Any], Any]

    def of(self, answer: Any) -> Any:
        """The part of an answer that the server believes. Checks meet values of any kind."""
        try:
            return self.believed(answer)
        except (TypeError, AttributeError) as error:
            raise BadAnswer(str(error)) from None


def wanted(like: Any) -> Wanted:
    """An answer of the same form as an example. Numbers are finite, and texts short."""
    leaves, _ = pytree.tree_flatten(like, is_leaf=lambda part: isinstance(part, Field))
    tensors = [leaf for leaf in leaves if isinstance(leaf, Tensor | Field)]
    values = sum(math.prod(leaf.shape) * leaf.dtype.itemsize for leaf in tensors)
    return Wanted(Limits(SLACK + LEAF * len(leaves), values), partial(_alike, like=like))


def require(true: bool, text: str) -> None:
    if not true:
        raise BadAnswer(text)


def clean(text: str) -> str:
    """A text of a host in one line, without control characters.

    >>> clean("a" + chr(27) + "[2J" + chr(10) + " b")
    'a [2J b'
    """
    return " ".join("".join(letter if letter.isprintable() else " " for letter in text[:2000]).split())[:500]


@dataclass
class Belief:
    """The forms of all answers in a run.

    ``own`` is the server's own runtime, which trains one step on the server's data to learn the form of a reply. ``num_clients`` is 0 if
    only the hosts' data tell it. ``drop``: whether a round goes on without the clients of a host whose answer is bad.
    """

    own: ClientRuntime
    num_clients: int = 0
    max_samples: int = MOST_SAMPLES
    drop: bool = False
    like: Like = None
    """Gives an example of each client's answer in the exchange under way."""
    _replies: dict[Any, tuple[ClientReply, Limits]] = field(default_factory=dict)

    def wanted(self, name: str, arguments: tuple[Any, ...], clients: Sequence[int]) -> Wanted | None:
        """The form of the answer to a request; None for any form."""
        match name:
            case "begin" | "roll_call":
                values = (24 + 8 * MOST_LABELS) * self.num_clients or 24 * 2**27
                return Wanted(Limits(2**22, values + 8 * MOST_CLASSES), self._believed_roll_call)
            case "set_up":
                return wanted(None)
            case "stateful":
                return wanted(True)
            case "standardise":
                return self._sums(clients, *arguments)
            case "exchange":
                return self._exchange(arguments[2])
            case "contact":
                return self._contact(*arguments)
            case "train":
                return self._train(*arguments)
            case "evaluate":
                return self._scores(*arguments, clients=clients)
            case "losses":
                count = len(arguments[1])
                return Wanted(Limits(SLACK + 32 * count, 0), partial(_believed_numbers, count=count, what="losses"))
            case "personal_model":
                return wanted((arguments[0].params, arguments[0].buffers))
        return None

    def _believed_roll_call(self, call: Any) -> RollCall:
        """The sizes of a host's data, and facts about them, if they are numbers and short texts."""
        require(isinstance(call, RollCall), "it is no roll call")
        for name in ("sizes", "val", "test"):
            sizes = getattr(call, name)
            if sizes is None and name != "sizes":
                continue
            count = self.num_clients or len(sizes)
            whole = isinstance(sizes, Tensor) and (sizes.dtype, sizes.shape) == (torch.int64, (count,))
            require(whole, f"{name} are not {count} whole numbers")
            bad = sizes[(sizes < 0) | (sizes > self.max_samples)].tolist()
            text = f"{name} contain {bad[:1]}, and a client has at most {self.max_samples:,} samples (max_client_samples)"
            require(not bad, text)
        require(bool(call.clients), "it hosts no client with data")
        require(call.task in (*LABELLED, "unlabelled"), "its task is unknown")
        for name, most in (("asked", MOST_SAMPLES), ("num_classes", MOST_CLASSES)):
            value = getattr(call, name)
            require(type(value) is int and 0 <= value <= most, f"{name} is no number from 0 to {most}")
        edges, names, facts, counts = call.bin_edges, call.class_names, call.data, call.label_counts
        if counts is not None:
            form = (torch.int64, (len(call.sizes), call.num_classes))
            whole = isinstance(counts, Tensor) and (counts.dtype, counts.shape) == form
            require(whole and bool(((counts >= 0) & (counts <= call.sizes[:, None])).all()), "label_counts")
        require(edges is None or (isinstance(edges, Tensor) and edges.ndim == 1 and len(edges) < call.num_classes), "bin_edges")
        require(names is None or (type(names) in (list, tuple) and len(names) == call.num_classes), "class_names")
        require(all(map(_is_name, names or ())), "a name of a class is no short text")
        require(type(facts) is dict and all(map(_is_name, facts)) and all(map(_is_fact, facts.values())), "facts of its data")
        return call

    def _sums(self, clients: Sequence[int], mean: Tensor | None, std: Tensor | None) -> Wanted:
        """The sums of clients for the common standardisation."""
        columns = self.own.federation.train.inputs.shape[1] + (mean is None)
        form = wanted({client: Field((columns,), torch.float64) for client in clients} if std is None else {})

        def believed(sums: Any) -> Any:
            form.believed(sums)
            for each in sums.values():
                require(bool(each.isfinite().all()) and (mean is None or bool((each >= 0).all())), "a sum is no number")
                require(mean is not None or 0 < each[0] <= 3 * self.max_samples, f"a client has {float(each[0]):g} rows")
            return sums

        return Wanted(form.limits, believed)

    def _exchange(self, messages: Mapping[int, Any]) -> Wanted:
        """The answers of clients to messages before round 1."""
        found = {client: self.like(client, self.own.federation) if callable(self.like) else self.like for client in messages}
        return wanted({client: example for client, example in found.items() if example is not None})

    def _contact(self, received: Download, newcomers: Mapping[str, Sequence[int]]) -> Wanted:
        """The first messages of clients to methods, in the form of those of the server's own client."""
        asked = {name: clients for name, clients in newcomers.items() if clients}
        own = self.own.contact(received, {name: [self._client] for name in asked})
        return wanted({name: dict.fromkeys(asked[name], messages[self._client]) for name, messages in own.items()})

    def _train(self, received: Download, tasks: Sequence[ClientTask]) -> Wanted:
        """The replies to tasks."""
        like, due = self._reply_like(received, tasks[0])
        by_client = {task.client: task for task in tasks}

        def believed(replies: Any) -> list[ClientReply]:
            listed = type(replies) is list and all(isinstance(reply, ClientReply) for reply in replies)
            require(listed, "it is no list of replies")
            clients = [client for reply in replies for client in reply.clients]
            require(all(type(client) is int for client in clients), "a client's number is none")
            asked = f"it is for clients {clients[:9]}, and clients {[*by_client][:9]} were asked"
            require(sorted(clients) == sorted(by_client), asked)
            return [_believed_reply(reply, like, [by_client[client] for client in reply.clients]) for reply in replies]

        return Wanted(Limits(SLACK + len(tasks) * due.header, len(tasks) * (due.values + SLACK)), believed)

    def _scores(self, questions: Sequence[tuple[str, int]], *arguments: Any, clients: Sequence[int]) -> Wanted:
        """The answers to the questions of an evaluation, each with its number of arguments."""
        given, num_clients = iter(arguments), self.num_clients
        parts = [(name, list(itertools.islice(given, count))) for name, count in questions]
        counts = [len(own[2]) if name == "personal_scores" else 0 for name, own in parts]

        def believed(answers: Any) -> list[Any]:
            require(type(answers) is list and len(answers) == len(questions), f"it does not have {len(questions)} answers")
            for answer, (name, _), count in zip(answers, questions, counts, strict=True):
                if name == "evaluate":
                    _check_scores(answer, clients, num_clients)
                else:
                    _believed_numbers(answer, count, "scores", infinite=True)
            return answers  # type: ignore[no-any-return]

        return Wanted(Limits(SLACK * (1 + len(questions)) + 32 * sum(counts), 8 * len(questions) * num_clients), believed)

    @property
    def _client(self) -> int:
        """The client of the server's own data that serves as an example."""
        return int(self.own.federation.partition.sizes.argmax())

    def _reply_like(self, received: Download, task: ClientTask) -> tuple[ClientReply, Limits]:
        """The reply of the server's own client, and its bytes. It depends on the methods that send something, and on the masks."""
        names = [
            method.name
            for method in self.own.methods
            if method.name in received.server
            and (method.overrides("finish_client") or method.of_change is not None or isinstance(method, Stage | SealedSum))
        ]
        whole = {name: mask.ndim > 0 or bool(mask) for name, mask in task.masks.items()}
        key = (*names, *sorted(whole.items()))
        if key not in self._replies:
            keys = received.keys and received.keys._replace(clients=[self._client])
            sent = received._replace(server={name: received.server[name] for name in names}, keys=keys)
            (reply,) = self.own.train(sent, [task._replace(client=self._client, num_steps=1)])
            self.own.commit([])
            packed = pack(reply)
            self._replies[key] = unpack(packed), Limits.of(packed)
        return self._replies[key]


def _believed_reply(reply: ClientReply, like: ClientReply, tasks: Sequence[ClientTask]) -> ClientReply:
    """The reply of some clients, with the bytes as the server counts them."""
    rows, envelope, example = len(tasks), reply.envelope, like.envelope
    require(rows > 0, "a reply is for no client")
    require(type(envelope) is type(example), "a reply has no envelope")
    _alike(envelope._replace(measured={}), example._replace(measured={}), rows, "the envelope")
    measured, due = envelope.measured, {name for name in example.measured if not name.startswith(LOGGED)}
    require(type(measured) is dict and all(map(_is_name, measured)), "the names of the measurements are no short texts")
    require(due <= measured.keys(), f"it does not have {due - measured.keys()}")
    for name, value in measured.items():
        require(name in example.measured or name.startswith(LOGGED), f"nobody asked for {clean(name)}")
        own = isinstance(value, Tensor) and value.is_floating_point() and value.shape == (rows,)
        require(own, f"{clean(name)} is not one number for each client")
    manifest = like.manifest
    masked, plain = ([masked_bytes(task.masks, sizes) for task in tasks] for sizes in (manifest.params, manifest.plain_params))
    require(type(reply.seconds) is float and 0 <= reply.seconds < math.inf, "the seconds of its training are no number")
    return ClientReply(list(reply.clients), envelope, manifest, masked, plain, reply.seconds)


def _alike(value: Any, like: Any, rows: int | None = None, where: str = "it") -> Any:
    """The value, if it has the form of an example.

    ``rows`` is the number of clients, if the tensors of both have a leading client axis. ``where`` names the place in the answer.
    """
    if isinstance(like, Tensor | Field):
        shape = tuple(like.shape) if rows is None else (rows, *like.shape[1:])
        own = (tuple(value.shape), value.dtype) if isinstance(value, Tensor) else (type(value).__name__,)
        require(own == (shape, like.dtype), f"{where} is {' of '.join(map(str, own))}, and {shape} of {like.dtype} was asked for")
    elif isinstance(like, Mapping):
        names = ", ".join(map(str, [*like][:9]))
        require(type(value) is dict and list(value) == list(like), f"{where} does not have the fields {names}")
        for name, part in like.items():
            _alike(value[name], part, rows, f"{where}[{name!r}]")
    elif isinstance(like, tuple | list):
        require(type(value) is type(like) and len(value) == len(like), f"{where} does not have {len(like)} parts")
        for place, (mine, part) in enumerate(zip(value, like, strict=True)):
            _alike(mine, part, rows, f"{where}[{place}]")
    else:
        require(type(value) is type(like), f"{where} is a {type(value).__name__}, and a {type(like).__name__} was asked for")
        require(not isinstance(value, float) or math.isfinite(value), f"{where} is {value}")
        require(not isinstance(value, str) or _is_name(value), f"{where} is no short text")
    return value


def _check_scores(answer: Any, clients: Collection[int], num_clients: int) -> None:
    """Refuse scores of clients that the host does not have, and figures that are no numbers."""
    require(isinstance(answer, Scores), "it is no score")
    _alike(answer.clients, Field((num_clients,), torch.float64), where="the clients' scores")
    measured = set((~answer.clients.isnan()).nonzero().flatten().tolist())
    require(measured <= set(clients), "it has scores of clients that it does not host")
    figures, joins = answer.figures, answer.joins
    named = type(figures) is dict and all(_is_name(name) and type(each) is float for name, each in figures.items())
    require(named and type(joins) is dict and joins.keys() <= figures.keys(), "its figures")
    for join in joins.values():
        known = type(join) is tuple and len(join) == 2 and join[0] in (*JOINS, POOLED) and type(join[1]) is float
        require(known and 0 <= join[1] < math.inf, "its figures")


def _believed_numbers(answer: Any, count: int, what: str, infinite: bool = False) -> list[float]:
    """One number for each client; NaN for a client without one."""
    numbers = type(answer) is list and len(answer) == count and all(type(each) is float for each in answer)
    require(numbers and (infinite or not any(map(math.isinf, answer))), f"the {what} are not {count} numbers")
    return answer  # type: ignore[no-any-return]


def _is_name(text: Any) -> bool:
    return type(text) is str and len(text) <= MOST_TEXT and text.isprintable()


def _is_fact(value: Any) -> bool:
    return _is_name(value) or (type(value) is list and all(map(_is_name, value)))
