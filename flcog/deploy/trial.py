"""A trial of a deployment: server and nodes in this process, which exchange Flower's messages without a network."""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from flwr.app import Message
from flwr.supercore.task_identity import TaskIdentity

from flcog.deploy.application import NODE, PACKAGE
from flcog.deploy.node import Node, Place
from flcog.deploy.post import REQUEST, from_record, reply_to


class Here:
    """Delivers messages to nodes in this process, in place of Flower's Grid.

    The nodes have the numbers 1, 2, ... in the network.
    """

    def __init__(self, nodes: Sequence[Node]) -> None:
        self.nodes = list(nodes)
        self._replies: dict[str, Message] = {}
        TaskIdentity.task_id, TaskIdentity.run_id, TaskIdentity.node_id = 1, 1, 0  # the sender of the server's messages

    def get_node_ids(self) -> list[int]:
        return [k + 1 for k in range(len(self.nodes))]

    def push_messages(self, messages: Iterable[Message]) -> list[str]:
        return [self._push(message) for message in messages]

    def _push(self, message: Message) -> str:
        message.metadata.__dict__["_message_id"] = message.object_id  # as the SuperLink does
        identifier: str = message.metadata.message_id
        reply = self.answer(message)
        if reply is not None:
            self._replies[identifier] = reply
        return identifier

    def answer(self, message: Message) -> Message | None:
        """The reply of the node that a message is for; None without a reply."""
        parts = from_record(message.content[REQUEST])
        return reply_to(message, self.nodes[message.metadata.dst_node_id - 1].answer(parts), 0.0)

    def pull_messages(self, message_ids: Iterable[str]) -> list[Message]:
        return [self._replies.pop(each) for each in message_ids if each in self._replies]


def nodes_of(app: Path, folder: Path, clients: Sequence[Sequence[int]]) -> list[Node]:
    """Nodes with the data of the app's example file."""
    places: list[Any] = [Place(app / PACKAGE, tuple(mine), app / NODE, folder / str(k)) for k, mine in enumerate(clients)]
    return [Node(place) for place in places]
