"""The ClientApp: forwards each message to the node's worker. Loads no torch, because Flower starts a process for each message."""

import os
from pathlib import Path
from typing import Any

from flwr.app import ConfigRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp

from flcog.deploy.arrays import from_record, to_record
from flcog.deploy.link import receive, send
from flcog.deploy.message_types import ANSWER, ERROR, REQUEST, TIMES, TYPES
from flcog.deploy.supervision import Worker, end, reach, seconds_alive, start_of

NODE_CONFIG = """--node-config 'config="/path/to/node.yaml" clients="0" state="/path/to/state"'"""


def client_app(folder: Path) -> ClientApp:
    """The ClientApp of an app.

    Args:
        folder: the app's folder, with ``config.yaml``.
    """
    app = ClientApp()

    def answer(message: Message, context: Context) -> Message:
        return Message(_answer(message, context, folder), reply_to=message)

    for kind in TYPES.values():
        category, _, action = kind.partition(".")
        register: Any = getattr(app, category)
        (register(action) if action else register())(answer)
    return app


def _answer(message: Message, context: Context, folder: Path) -> RecordDict:
    started = seconds_alive()
    try:
        parts, worker = from_record(message.content[REQUEST]), worker_of(context, folder)
        if message.metadata.message_type == TYPES["end"]:
            end(worker)
            return RecordDict()
        with reach(worker) as link:
            send(link, parts)
            answer = receive(link)
    except (ValueError, KeyError) as error:
        return RecordDict({ERROR: ConfigRecord({"text": str(error)})})
    # A worker that dies raises a ConnectionError, which Flower reports to the server, and the server asks again.
    times = ConfigRecord({"start": started, "work": float(answer.pop("seconds"))})
    return RecordDict({ANSWER: to_record(answer), TIMES: times})


def worker_of(context: Context, folder: Path) -> Worker:
    """The worker that hosts the clients of this node."""
    node = {name: str(value) for name, value in context.node_config.items()}
    if missing := [name for name in ("config", "clients", "state") if not node.get(name)]:
        lack = "has no data" if "config" in missing else f"does not know its {missing[0]}"
        raise ValueError(f"this node {lack}: start its SuperNode with {NODE_CONFIG}")
    words = node["clients"].replace(",", " ").split()
    if not all(word.isdigit() for word in words):
        raise ValueError(f'clients of --node-config are numbers, such as clients="0 3 6"; got {node["clients"]!r}')
    return Worker(
        run=str(context.run_id),
        state=os.path.abspath(os.path.expanduser(node["state"])),
        app=str(folder),
        clients=tuple(map(int, words)),
        of=int(context.run_config["clients"]),
        data=os.path.abspath(os.path.expanduser(node["config"])),
        node=(os.getppid(), start_of(os.getppid())),
    )
