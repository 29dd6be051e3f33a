"""Distinguish errors that the user can correct, which are shown in one line, from faults in code, which keep their traceback."""

import os
import sysconfig
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import flcog.callbacks
import flcog.datamodules
from flcog.commands.complaint import complain
from flcog.core.files import short
from flcog.core.users_hooks import raised_in_hook

FOLDERS = (Path(__file__).parents[1], *flcog.callbacks.__path__, *flcog.datamodules.__path__)
OURS = tuple(f"{folder}{os.sep}" for folder in FOLDERS)

INSTALLED = ("<", *(f"{sysconfig.get_path(name)}{os.sep}" for name in ("stdlib", "purelib", "platlib")))
"""The folders of Python and of other packages. "<" begins the names of modules that are compiled into Python."""


@contextmanager
def mistakes_in_one_line() -> Iterator[None]:
    """Show a user's mistake in one line and exit with status 2. Other errors keep their traceback."""
    try:
        yield
    except Exception as error:
        reason = refusal(error)
        if reason is None:
            raise
        complain(reason)
        raise SystemExit(2) from None


def refusal(error: BaseException | None) -> str | None:
    """Return the message in one line, or None for a fault in code.

    The parser wraps errors of constructors, so their causes count too.
    """
    while isinstance(error, Exception):
        if reason := _of_our_code(error) or _of_a_hook(error) or _of_users_code(error) or _of_a_constructor(error):
            return reason
        error = error.__cause__
    return None


def _of_our_code(error: Exception) -> str | None:
    frames = traceback.extract_tb(error.__traceback__)
    while isinstance(error, OSError) and len(frames) > 1 and _is_pythons(frames[-1].filename):
        frames.pop()  # Python's own file functions, called by our code
    if isinstance(error, ValueError | OSError) and frames[-1].filename.startswith(OURS):
        return " ".join([str(error), *getattr(error, "__notes__", [])])
    return None


def _of_a_hook(error: Exception) -> str | None:
    """Describe any error in a hook of a user's callback or module, with its place."""
    users = [frame for frame in traceback.extract_tb(error.__traceback__) if _is_users(frame.filename)]
    if not users or not raised_in_hook(error):
        return None
    said, place = f"{type(error).__name__}: {_flat(error)}", f"{short(Path(users[-1].filename))}, line {users[-1].lineno}"
    return f"{said} ({place}), {', '.join(error.__notes__)}"


def _of_users_code(error: Exception) -> str | None:
    """A ``raise ValueError`` addresses the user of the class.

    A ValueError without ``raise``, as from ``int("x")``, is a fault.
    """
    place = _raised_in(error)
    if not _is_users(place.filename):
        return None
    if isinstance(error, OSError) or (isinstance(error, ValueError) and "raise" in (place.line or "")):
        return f"{_flat(error)} ({short(Path(place.filename))}, line {place.lineno})"
    return None


def _of_a_constructor(error: Exception) -> str | None:
    """Describe any error in the constructor of another package's class that a config names."""
    frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
    parsers = [i for i, frame in enumerate(frames) if frame.f_globals.get("__name__", "").startswith("jsonargparse.")]
    made = frames[parsers[-1] + 1 :] if parsers else []
    if not made or not made[0].f_code.co_filename.startswith(INSTALLED):
        return None
    parts = [frame.f_locals["self"] for frame in made if frame.f_code.co_name == "__init__" and "self" in frame.f_locals]
    return f"{type(parts[0]).__name__} cannot be made: {_flat(error)}" if parts else None


def _raised_in(error: Exception) -> traceback.FrameSummary:
    return traceback.extract_tb(error.__traceback__)[-1]


def _is_pythons(file: str) -> bool:
    return file.startswith(INSTALLED[:2]) and not file.startswith(INSTALLED[2:])


def _is_users(file: str) -> bool:
    return not file.startswith((*OURS, *INSTALLED))


def _flat(error: Exception) -> str:
    return " ".join(str(error).split()) or type(error).__name__
