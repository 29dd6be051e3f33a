"""Messages between the server and the nodes over Flower's Grid, with their bytes and times."""

import time
from collections.abc import Iterable, Mapping
from typing import Any

import httpx
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, RecordDict
from flwr.serverapp import Grid
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects
from flwr.supercore.run import RunNotRunningException

from flcog.client.answers import BadAnswer
from flcog.wire.packing import PackingError

TYPES = {
    "begin": "query.begin",
    "roll_call": "query.roll_call",
    "standardise": "query.standardise",
    "exchange": "query.exchange",
    "set_up": "query.set_up",
    "contact": "train.contact",
    "train": "train",
    "evaluate": "evaluate",
    "losses": "evaluate.losses",
    "personal_model": "query.personal_model",
}
"""The type of Flower's message for each request."""

REQUEST, ANSWER, TIMES = "flcog.request", "flcog.answer", "flcog.times"
"""The records of a message."""

PACKED = "flcog.packed"
"""The serialisation of the arrays in these records: bytes of ``flcog.wire.packing``. Nothing is ever unpickled."""

FIGURES = ("comm/wire_up_bytes", "comm/wire_down_bytes", "time/nodes_wait", "time/nodes_work")
"""Columns of ``metrics.csv``: bytes with Flower's headers, and seconds."""


def to_record(parts: Mapping[str, bytes]) -> ArrayRecord:
    """A record with the parts of a message. Flower cuts arrays into pieces, and sends equal ones once."""
    return ArrayRecord({name: Array(dtype="uint8", shape=(len(part),), stype=PACKED, data=part) for name, part in parts.items()})


def from_record(record: Any) -> dict[str, bytes]:
    """The parts of a message. Records of other senders are refused."""
    if not isinstance(record, ArrayRecord) or any(array.stype != PACKED for array in record.values()):
        raise PackingError(f"a message of flcog contains an ArrayRecord with the serialisation {PACKED}")
    return {name: array.data for name, array in record.items()}


def reply_to(message: Message, answer: bytes, seconds: float) -> Message:
    """The reply to a message, with a packed answer and the time that it took."""
    content = RecordDict({ANSWER: to_record({"answer": answer}), TIMES: ConfigRecord({"work": seconds})})
    return Message(content, reply_to=message)


class Post:
    """Pushes messages and waits for their replies."""

    def __init__(self, grid: Grid, poll: float, timeout: float) -> None:
        self.grid, self.poll, self.timeout = grid, poll, timeout
        self._waiting: set[str] = set()
        self._replies: dict[str, Message | BadAnswer] = {}
        self.figures = dict.fromkeys(FIGURES, 0.0)
        """The bytes and times since the last round."""

    def push(self, node: int, kind: str, parts: dict[str, bytes], group: str) -> str:
        """Send a message to a node. Returns the message's identifier; empty if the SuperLink does not know the node any more."""
        content = RecordDict({REQUEST: to_record(parts)})
        message = Message(content, dst_node_id=node, message_type=kind, group_id=group, ttl=self.timeout + self.poll)
        identifiers = list(self.grid.push_messages([message]))
        if not identifiers:
            raise ValueError(
                f"a message of {sum(map(len, parts.values()))} bytes is too large for the SuperLink: look into its log"
            )
        if identifiers[0]:
            self.figures["comm/wire_down_bytes"] += wire_bytes(message)
            self._waiting.add(identifiers[0])
        return identifiers[0] or ""

    def wait_for(self, identifier: str, deadline: float) -> Message | None:
        """The reply to a message; None if it has not come by the deadline (by ``time.monotonic``), or was not sent."""
        began = time.monotonic()
        while identifier in self._waiting:
            for each in list(self._waiting):
                self._pull(each)
            if identifier in self._waiting:
                if time.monotonic() > deadline:
                    self._waiting.discard(identifier)
                    break
                time.sleep(self.poll)
        self.figures["time/nodes_wait"] += time.monotonic() - began
        reply = self._replies.pop(identifier, None)
        if isinstance(reply, BadAnswer):
            raise reply
        return reply

    def _pull(self, identifier: str) -> None:
        """Look for the reply to one message, because Flower raises an error if any message of several cannot be read."""
        try:
            for reply in self.grid.pull_messages([identifier]):
                self._waiting.discard(identifier)
                self._replies[identifier] = reply
                self.figures["comm/wire_up_bytes"] += wire_bytes(reply)
                times = reply.content.get(TIMES) if reply.has_content() else None
                work = times.get("work") if isinstance(times, ConfigRecord) else None
                if isinstance(work, float) and 0 <= work <= self.timeout:  # of the slowest node, as it says
                    self.figures["time/nodes_work"] = max(self.figures["time/nodes_work"], work)
        except (httpx.HTTPError, RunNotRunningException):
            raise
        except Exception as error:
            self._waiting.discard(identifier)
            self._replies[identifier] = BadAnswer(f"Flower cannot read it: {error}")

    def take_figures(self) -> dict[str, float]:
        """The bytes and times since the last call."""
        figures, self.figures = self.figures, dict.fromkeys(FIGURES, 0.0)
        return figures


def wire_bytes(message: Message) -> int:
    """The bytes of a message's objects as Flower stores and sends them. Equal objects in one message count once."""
    objects: Iterable[Any] = get_all_nested_objects(message).values()
    return sum(len(each.deflate()) for each in objects)
