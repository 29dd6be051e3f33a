"""Parts that transformers loads from a folder, from Hugging Face's hub or from its local cache."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from flcog.core.text import reason


@contextmanager
def loading(source: Any, kind: str, owner: str) -> Iterator[None]:
    """Load a part of transformers' from a folder or the hub, or make it of a configuration. A failure is explained in one line."""
    try:
        yield
    except Exception as error:  # the hub's client raises nearly every kind where there is no network
        if isinstance(source, dict):
            raise ValueError(f"{owner}: transformers makes no {kind} of {source} ({reason(error)})") from error
        raise ValueError(
            f"{owner}: {source} is neither a folder with a {kind}, nor in the hub's cache, nor could it be downloaded "
            f"({reason(error)}): give a folder that save_pretrained wrote"
        ) from error
