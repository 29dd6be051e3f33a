"""Distinguish errors that the user can correct, which are shown in one line, from faults in code, which keep their traceback."""

import os
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from flcog.commands.complaint import complain
from flcog.core.users_hooks import (
    has_named_hook,
    hook_in_users_code,
    hook_with_other_parameters,
    is_installed,
    is_ours,
    is_pythons,
    is_users,
    place_in_users_code,
)

TRACEBACK = "FLCOG_TRACEBACK"
"""Set in the environment, this variable keeps the traceback of all errors."""


@contextmanager
def mistakes_in_one_line() -> Iterator[None]:
    """Show a user's mistake in one line and exit with status 2. Other errors keep their traceback."""
    try:
        yield
    except Exception as error:
        reason = None if keeps_traceback() else refusal(error)
        if reason is None:
            raise
        complain(reason)
        raise SystemExit(2) from None


def keeps_traceback() -> bool:
    """Whether the user has asked for the traceback of all errors."""
    return bool(os.environ.get(TRACEBACK))


def refusal(error: BaseException | None) -> str | None:
    """Return the message in one line, or None for a fault in code.

    The parser wraps errors of constructors, so their causes count too.
    """
    while isinstance(error, Exception):
        if reason := _of_our_code(error) or _of_users_code(error) or _of_a_constructor(error):
            return reason
        error = error.__cause__
    return None


def _of_our_code(error: Exception) -> str | None:
    frames = _frames(error)
    while isinstance(error, OSError) and len(frames) > 1 and is_pythons(frames[-1].f_code.co_filename):
        frames.pop()  # Python's own file functions, called by our code
    if isinstance(error, ValueError | OSError) and is_ours(frames[-1]):
        return ", ".join([str(error), *getattr(error, "__notes__", [])])
    return None


def _of_users_code(error: Exception) -> str | None:
    """Describe an error in a hook or another function of the user's, which flcog calls, with its place.

    An error in a constructor is a fault, which keeps its traceback, unless it addresses the user of the class: ``raise ValueError``, and
    not a ValueError as from ``int("x")``.
    """
    hook = hook_in_users_code(error) or hook_with_other_parameters(error)
    place, last = place_in_users_code(error), traceback.extract_tb(error.__traceback__)[-1]
    refused = is_users(_frames(error)[-1]) and (
        isinstance(error, OSError) or (isinstance(error, ValueError) and "raise" in (last.line or ""))
    )
    if not (hook or refused or has_named_hook(error)):
        return None
    said = _flat(error) if refused else f"{type(error).__name__}: {_flat(error)}"
    named = [f"in {hook}"] if hook and not has_named_hook(error) else []
    said = ", ".join([f"{said} ({place})" if place else said, *named, *getattr(error, "__notes__", [])])
    return said if refused else f"{said} ({TRACEBACK}=1 shows the traceback)"


def _of_a_constructor(error: Exception) -> str | None:
    """Describe any error in the constructor of another package's class that a config names."""
    frames = _frames(error)
    parsers = [i for i, frame in enumerate(frames) if frame.f_globals.get("__name__", "").startswith("jsonargparse.")]
    made = frames[parsers[-1] + 1 :] if parsers else []
    if not made or not is_installed(made[0].f_code.co_filename):
        return None
    parts = [frame.f_locals["self"] for frame in made if frame.f_code.co_name == "__init__" and "self" in frame.f_locals]
    return f"{type(parts[0]).__name__} cannot be made: {_flat(error)}" if parts else None


def _frames(error: Exception) -> list[FrameType]:
    return [frame for frame, _ in traceback.walk_tb(error.__traceback__)]


def _flat(error: Exception) -> str:
    return " ".join(str(error).split()) or type(error).__name__
