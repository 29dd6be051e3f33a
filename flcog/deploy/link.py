"""Messages over a local socket, between Flower's process for one message and the node's worker. Loads no torch."""

import json
import os
import socket
import struct
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

Parts = Mapping[str, bytes]
"""The parts of a message by name: each is a packed value."""


def send(link: socket.socket, parts: Parts) -> None:
    """Send a message: the lengths of its parts in JSON, and the parts."""
    header = json.dumps({name: len(part) for name, part in parts.items()}).encode()
    link.sendall(struct.pack("<Q", len(header)) + header)
    for part in parts.values():
        link.sendall(part)


def receive(link: socket.socket) -> dict[str, bytes]:
    """Wait for a message. Raises a ConnectionError if the other side has gone."""
    lengths = json.loads(_exactly(link, struct.unpack("<Q", _exactly(link, 8))[0]))
    return {name: _exactly(link, length) for name, length in lengths.items()}


def connect(path: Path) -> socket.socket | None:
    """A connection to the worker that listens there; None if there is no worker."""
    link = socket.socket(socket.AF_UNIX)
    try:
        with _address(path) as address:
            link.connect(address)
    except OSError:
        link.close()
        return None
    return link


def listen(path: Path) -> socket.socket:
    """Listen for connections there, and replace the socket of a worker that was killed."""
    path.unlink(missing_ok=True)
    listener = socket.socket(socket.AF_UNIX)
    with _address(path) as address:
        listener.bind(address)
    path.chmod(0o600)
    listener.listen()
    return listener


@contextmanager
def _address(path: Path) -> Iterator[str]:
    """The address of a socket, which has at most 107 characters. So the folder is opened and named by its descriptor."""
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        yield f"/proc/self/fd/{folder}/{path.name}"
    finally:
        os.close(folder)


def _exactly(link: socket.socket, length: int) -> bytes:
    buffer = bytearray(length)
    view, done = memoryview(buffer), 0
    while done < length:
        got = link.recv_into(view[done:])
        if not got:
            raise ConnectionError("the other side of the local socket has gone")
        done += got
    return bytes(buffer)
