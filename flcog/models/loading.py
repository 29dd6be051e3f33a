"""What networks of other packages have in common: how an error that stopped one from loading is told."""

import textwrap


def reason(error: Exception) -> str:
    """An error's first sentences, in one line."""
    return textwrap.shorten(str(error).strip() or type(error).__name__, 200)
