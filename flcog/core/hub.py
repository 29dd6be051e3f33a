"""Hugging Face's hub.

If it cannot be reached, its client is switched offline at once. Otherwise it would retry for half a minute and print a dozen
warnings.
"""

import importlib
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from urllib.request import getproxies

from flcog.core.text import reason

PATIENCE = 5.0
"""The hub counts as unreachable if it does not answer within these seconds."""


@contextmanager
def asked(source: Any = None) -> Iterator[None]:
    """Load names from the hub, or from its local cache if the hub cannot be reached."""
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


@contextmanager
def loading(source: Any, kind: str, owner: str) -> Iterator[None]:
    """Load a part of transformers' from a folder or the hub, or make it of a configuration. A failure is explained in one line."""
    try:
        with asked(source):
            yield
    except Exception as error:  # the hub's client raises nearly every kind where there is no network
        if isinstance(source, dict):
            raise ValueError(f"{owner}: transformers makes no {kind} of {source} ({reason(error)})") from error
        raise ValueError(
            f"{owner}: {source} is neither a folder with a {kind}, nor in the hub's cache, nor could it be downloaded "
            f"({reason(error)}): give a folder that save_pretrained wrote"
        ) from error


def _answers(address: str) -> bool:
    if getproxies():
        return True  # a proxy may reach the hub although this machine does not
    parts = urlsplit(address)
    port = parts.port or (80 if parts.scheme == "http" else 443)
    try:
        socket.create_connection((parts.hostname or "", port), PATIENCE).close()
    except OSError:
        return False
    return True
