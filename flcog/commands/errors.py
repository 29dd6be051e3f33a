"""How the command line shows errors: a mistake in the configuration in one line, an error in the user's code with that code alone."""

import functools
import os
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Any

from flcog.core.output import say
from flcog.core.users_code import is_ours, is_pythons, is_users

TRACEBACK = "FLCOG_TRACEBACK"
"""Set in the environment, this variable keeps the whole traceback of all errors."""


def complain(message: str) -> None:
    """Print an error in one line."""
    say(f"flcog: error: {message}")


@contextmanager
def shown_errors() -> Iterator[None]:
    """Show a mistake in the configuration in one line and exit with status 2; if another error ends Python, show the user's code."""
    try:
        yield
    except BrokenPipeError:  # nobody reads the output any more
        raise
    except Exception as error:
        if os.environ.get(TRACEBACK):
            raise
        if reason := refusal(error):
            complain(reason)
            raise SystemExit(2) from None
        if getattr(sys.excepthook, "func", None) is not _show:
            sys.excepthook = functools.partial(_show, sys.excepthook)
        raise


def refusal(error: BaseException) -> str | None:
    """Return the message of a mistake in the configuration: of a ValueError of flcog's, or of a file that it cannot open.

    jsonargparse wraps the errors of constructors, so their causes count too. None for any other error.
    """
    cause: BaseException | None = error
    while cause is not None:
        entries = _entries(cause)
        while isinstance(cause, OSError) and len(entries) > 1 and is_pythons(entries[-1].tb_frame.f_code.co_filename):
            entries.pop()  # Python's own file functions, called by our code
        if isinstance(cause, ValueError | OSError) and is_ours(entries[-1].tb_frame):
            return ", ".join([str(cause), *getattr(cause, "__notes__", [])])
        if cause.__cause__ is None and isinstance(cause, ValueError) and _package(entries[-1]) == "jsonargparse":
            return cut(str(error))  # earlier versions of jsonargparse do not name the cause
        cause = cause.__cause__
    return None


def _show(hook: Callable[..., Any], kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    """Print an error that ends Python, by ``hook``: from the user's code on, if flcog called it, without the frames in ``MACHINERY``."""
    entries = _entries(error)
    while error.__cause__ is not None and entries and _package(entries[-1]) == "jsonargparse":
        error = error.__cause__  # the parser has wrapped the error of a constructor
        entries = _entries(error)
    first = next((place for place, entry in enumerate(entries) if _package(entry) in MACHINERY), len(entries))
    called = [place for place in range(first, len(entries)) if is_users(entries[place].tb_frame)]
    if not called and not isinstance(error, SyntaxError):  # an error of flcog's own, or of a package that it calls
        hook(kind, error, trace)
        return
    shown = None
    for entry in reversed(entries[called[0] :] if called else []):  # a syntax error names its file and line itself
        if _package(entry) not in MACHINERY:
            shown = TracebackType(shown, entry.tb_frame, entry.tb_lasti, entry.tb_lineno)
    hook(type(error), error.with_traceback(shown), shown)
    say(f"({TRACEBACK}=1 shows the frames of flcog, too)")


MACHINERY = {"flcog", "lightning", "pytorch_lightning", "jsonargparse", "argparse", "contextlib", "importlib"}
"""The packages that call the user's code."""


def _entries(error: BaseException) -> list[TracebackType]:
    """The entries of an error's traceback, outermost first."""
    entries, entry = [], error.__traceback__
    while entry is not None:
        entries.append(entry)
        entry = entry.tb_next
    return entries


def _package(entry: TracebackType) -> str:
    name: str = entry.tb_frame.f_globals.get("__name__", "")
    return name.partition(".")[0]


PLACE = re.compile(r"Parser key \"([\w.]+)\":|Problem with given class_path '[^']*':")
"""A line that tells where a mistake is, before the lines that tell what it is."""

ALTERNATIVES = re.compile(
    r"Does not validate|Subtypes:|Errors:|Given value|Import path \S+\.\S+ does|Expected a (?:config )?path but|Expected a dot"
)
"""Lines that list what an option also accepts."""

NO_CLASS = re.compile(r"Expected a dot import path string:? ?([A-Za-z_]\w*)$", re.MULTILINE)
"""A line about a word that names no class."""


def cut(report: str) -> str:
    """Cut a report of jsonargparse, which lists every alternative of a type, to one line: the option, its last causes and its value.

    >>> cut('''Parser key "lr":
    ...   Does not validate against any of the Union subtypes
    ...   Subtypes: [<class 'int'>, <class 'NoneType'>]
    ...   Errors:
    ...     - Expected a <class 'int'>
    ...     - Expected a <class 'NoneType'>
    ...   Given value type: <class 'str'>
    ...   Given value: abc''')
    'lr: Expected a int; got abc'
    """
    place = ".".join(filter(None, dict.fromkeys(PLACE.findall(report))))
    report = re.sub(r"\. Got value: (?:Namespace|NestedArg|[{\[]).*", "", report)
    lines = [line.strip(" -") for line in PLACE.sub("\n", report).splitlines()]
    causes = [line for line in dict.fromkeys(lines) if line and not ALTERNATIVES.match(line) and "NoneType" not in line]
    causes = causes or [line for line in lines if line.startswith(("Import path", "Expected a dot"))][:1]
    values = re.findall(r"Given value: ([^{(\n]*)$", report, re.MULTILINE)
    if name := NO_CLASS.search(report):
        causes, values = [f"there is no class {name[1]}"], []
    told = "; ".join([*causes, *(f"got {value}" for value in values[:1])])
    return re.sub(r"<class '(?:\w+\.)*(\w+)'>", r"\1", f"{place}: {told}" if place else told)[:400]
