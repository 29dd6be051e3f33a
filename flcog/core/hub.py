"""Hugging Face's hub: where it cannot be reached its client is told so, or it would try for half a minute and say so a dozen times."""

import importlib
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from urllib.request import getproxies

PATIENCE = 5.0
"""Seconds in which the hub must answer a call."""


@contextmanager
def asked(source: Any = None) -> Iterator[None]:
    """Inside, what is loaded by a name comes from the hub; or, where that cannot be reached, from what was kept of it, or not at all.

    Args:
        source: what is loaded. A file or a folder, or anything but a name, needs no hub.
    """
    if source is not None and (not isinstance(source, str | Path) or Path(source).exists()):
        yield
        return
    constants: Any = importlib.import_module("huggingface_hub.constants")
    before = constants.HF_HUB_OFFLINE
    constants.HF_HUB_OFFLINE = before or not _answers(constants.ENDPOINT)
    try:
        yield
    finally:
        constants.HF_HUB_OFFLINE = before


def _answers(address: str) -> bool:
    if getproxies():
        return True  # what a proxy reaches cannot be told from here
    parts = urlsplit(address)
    port = parts.port or (80 if parts.scheme == "http" else 443)
    try:
        socket.create_connection((parts.hostname or "", port), PATIENCE).close()
    except OSError:
        return False
    return True
