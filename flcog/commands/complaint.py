"""How a mistake is said: in one line, with a guess at what was meant."""

import difflib
import sys
from collections.abc import Iterable


def complain(message: str) -> None:
    """One line on the error stream."""
    print(f"flcog: error: {message}", file=sys.stderr)


def guess(name: str, names: Iterable[str]) -> str:
    """The nearest of ``names``, whatever the case of its letters, as a question; nothing where none is near."""
    by_lower = {known.lower(): known for known in names}
    close = difflib.get_close_matches(name.lower(), by_lower, n=1, cutoff=0.7)
    return f" Did you mean {by_lower[close[0]]!r}?" if close else ""
