"""Reports users' mistakes in one line, and guesses the name that was meant."""

import difflib
from collections.abc import Iterable

from flcog.core.output import say


def complain(message: str) -> None:
    """Print an error in one line."""
    say(f"flcog: error: {message}")


def guess(name: str, names: Iterable[str]) -> str:
    """Ask whether the nearest of ``names`` was meant, ignoring upper and lower case. Empty if no name is near."""
    by_lower = {known.lower(): known for known in names}
    close = difflib.get_close_matches(name.lower(), by_lower, n=1, cutoff=0.65)
    return f" Did you mean {by_lower[close[0]]!r}?" if close else ""
