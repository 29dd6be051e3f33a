"""Packages that a plain install does not bring, imported where they are needed."""

import importlib
from typing import Any


def require(package: str, what: str, extra: str) -> Any:
    """A package of an extra, or the one line that says how to get it.

    Args:
        package: to import.
        what: needs it.
        extra: of flcog, which brings it.

    >>> require("no_such_package", "Table", "pandas")
    Traceback (most recent call last):
    ValueError: Table needs no_such_package, which is not installed: pip install 'flcog[pandas]'
    """
    try:
        return importlib.import_module(package)
    except ImportError as error:
        raise ValueError(f"{what} needs {package}, which is not installed: pip install 'flcog[{extra}]'") from error
