"""Messages between the server and the nodes over Flower's Grid, with their bytes and times."""

import time
from collections.abc import Iterable
from typing import Any

from flwr.app import Message, RecordDict
from flwr.serverapp import Grid
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects

from flcog.deploy.arrays import to_record
from flcog.deploy.message_types import REQUEST, TIMES


class Post:
    """Pushes messages and waits for their replies.

    Args:
        grid: Flower's.
        poll: seconds between two looks for replies.
        timeout: seconds within which a reply counts.
    """

    def __init__(self, grid: Grid, poll: float, timeout: float) -> None:
        self.grid, self.poll, self.timeout = grid, poll, timeout
        self._waiting: set[str] = set()
        self._replies: dict[str, Message] = {}
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
            for reply in self.grid.pull_messages(list(self._waiting)):
                self._take(reply)
            if identifier in self._waiting:
                if time.monotonic() > deadline:
                    self._waiting.discard(identifier)
                    break
                time.sleep(self.poll)
        self.figures["time/nodes_wait"] += time.monotonic() - began
        return self._replies.pop(identifier, None)

    def _take(self, reply: Message) -> None:
        identifier = reply.metadata.reply_to_message_id
        if identifier not in self._waiting:
            return
        self._waiting.discard(identifier)
        self._replies[identifier] = reply
        self.figures["comm/wire_up_bytes"] += wire_bytes(reply)
        times: Any = reply.content.get(TIMES, {}) if reply.has_content() else {}
        for name in ("start", "work"):  # of the slowest node
            self.figures[f"time/nodes_{name}"] = max(self.figures[f"time/nodes_{name}"], float(times.get(name, 0.0)))

    def take_figures(self) -> dict[str, float]:
        """The bytes and times since the last call."""
        figures, self.figures = self.figures, dict.fromkeys(FIGURES, 0.0)
        return figures


FIGURES = ("comm/wire_up_bytes", "comm/wire_down_bytes", "time/nodes_wait", "time/nodes_start", "time/nodes_work")
"""Columns of ``metrics.csv``: bytes with Flower's headers, and seconds."""


def wire_bytes(message: Message) -> int:
    """The bytes of a message's objects as Flower stores and sends them. Equal objects in one message count once."""
    objects: Iterable[Any] = get_all_nested_objects(message).values()
    return sum(len(each.deflate()) for each in objects)
