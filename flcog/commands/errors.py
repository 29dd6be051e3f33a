"""How the command line shows errors: a mistake in the configuration in one line, an error in the user's code with that code alone."""

import difflib
import functools
import os
import re
import sys
from collections.abc import Callable, Iterable, Iterator
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


def guess(name: str, names: Iterable[str]) -> str:
    """Ask whether the nearest of ``names`` was meant, ignoring upper and lower case. Empty if no name is near."""
    by_lower = {known.lower(): known for known in names}
    close = difflib.get_close_matches(name.lower(), by_lower, n=1, cutoff=0.65)
    return f" Did you mean {by_lower[close[0]]!r}?" if close else ""


# Errors that are raised -----------------------------------------------------------------------------------------------------------


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


# Reports of jsonargparse ----------------------------------------------------------------------------------------------------------

NOISE = re.compile(
    r"Does not validate against|Subtypes:|Errors:|Given value type:|Expected a (?:config )?path but|Expected a <class 'NoneType'>"
)
"""Lines of a report that say nothing about the mistake."""

WEAK = re.compile(r"Import path|Expected a dot import path")
"""Lines that matter only if no other line does: they are about classes, which would also do."""

AROUND = re.compile(r"Parser key \"[\w.]+\":|Problem with given class_path '[^']*':|Type typing\.Callable.*? callable class:")
"""The places around the mistake, each before its part of the report."""

PLAINER = {
    r"^Expected a dot import path string:? ?(\S*)$": r"there is no class '\1'",
    r"^Validation failed: ": "",
    r"^\w+ '\w+' does not accept (?:option|nested key) '([^']*)'": r"there is no option '\1'",
    r"^(?:Option|Key) '([^']*)' is not (?:accepted|expected)": r"there is no option '\1'",
    r"^Expected an? ": "expected ",
    r"<class '(?:\w+\.)*(\w+)'>": r"\1",
    r"\btyping\.": "",
    r"\. Got value: (?:Namespace|NestedArg|[{\[]).*": "",
    r"\. Got value: ": "; got ",
}
"""Wordings of jsonargparse, and those that replace them."""


def cut(report: str) -> str:
    """Cut a report of jsonargparse, which lists every alternative of a type, to one line: the option, and what is wrong with it.

    >>> cut('''Parser key "lr":
    ...   Does not validate against any of the Union subtypes
    ...   Subtypes: [<class 'int'>, <class 'float'>, <class 'NoneType'>]
    ...   Errors:
    ...     - Expected a <class 'int'>
    ...     - Expected a <class 'float'>
    ...     - Expected a <class 'NoneType'>
    ...   Given value type: <class 'str'>
    ...   Given value: abc''')
    'lr: expected int; expected float; got abc'
    """
    keys = dict.fromkeys(re.findall(r'Parser key "([\w.]+)"', report))
    texts = [line.strip(" -") for line in AROUND.sub("\n", report).splitlines()]
    lines = [text for text in dict.fromkeys(texts) if text and not NOISE.match(text)]
    given = re.findall(r"Given value: ([^{(\n]*?)(?:$|\. Got value)", report, re.MULTILINE)
    lines = [line for line in lines if not line.startswith("Given value:")]
    strong = [line for line in lines if not WEAK.match(line)] or lines
    # Of several alternatives, the first is the likeliest, but a value that is no class may have any of its types.
    told = [line for line in strong if line is strong[0] or line.startswith("Expected a")]
    for pattern, plainer in PLAINER.items():
        told = [re.sub(pattern, plainer, line) for line in told]
    told += [f"got {value}" for value in given[:1] if value not in told[0]]
    classes = re.findall(r"Problem with given class_path '([\w.]+)'", report)
    place = ".".join(keys) + "".join(f" ({path.rpartition('.')[2]})" for path in classes[-1:])
    return (f"{place}: " * bool(place) + "; ".join(told))[:600]
