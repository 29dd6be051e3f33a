"""The process that hosts a node's clients. It stays up between messages, and ends with its node or when it is idle.

Flower starts a process for each message, and importing torch and Lightning takes seconds. So that process only forwards the message to
this one over a local socket (``python -m flcog.deploy.worker``).
"""

import fcntl
import sys
import time
from pathlib import Path
from typing import IO, Any

from flcog.deploy.link import listen, receive, send
from flcog.deploy.supervision import Worker, end_with

IDLE_SECONDS = 1800.0
"""A worker without a message for this time ends. The next message starts another, which continues from the states on disk."""


def main() -> None:
    """Listen first and load torch afterwards, so that Flower's process finds the socket at once."""
    worker = Worker.of_json(sys.argv[1])
    lock = _locked(worker.folder / "worker.lock")
    if lock is None:
        return  # another worker was started at the same time
    end_with(worker.node)
    with listen(worker.socket) as listener:
        listener.settimeout(IDLE_SECONDS)
        node: Any = None
        while True:
            try:
                link, _ = listener.accept()
            except TimeoutError:
                break
            with link:
                try:
                    parts = receive(link)
                    if "end" in parts:
                        break
                    began = time.monotonic()
                    if node is None:
                        node = _make_node(worker)
                    send(link, {"answer": node.answer(parts), "seconds": str(time.monotonic() - began).encode()})
                except OSError:
                    continue  # Flower's process has gone: the server asks again
    worker.socket.unlink(missing_ok=True)


def _make_node(worker: Worker) -> Any:
    from flcog.deploy.node import Node  # loads torch

    return Node(worker)


def _locked(path: Path) -> IO[Any] | None:
    """The open file, which is locked until this process ends; None if another process has the lock."""
    file = path.open("w")
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return None
    return file


if __name__ == "__main__":
    main()
