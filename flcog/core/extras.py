"""Imports optional packages where they are needed."""

import importlib
from typing import Any


def require(package: str, what: str, extra: str) -> Any:
    """Import an optional package, or raise an error in one line that tells how to install it.

    >>> require("no_such_package", "Table", "pandas")
    Traceback (most recent call last):
    ValueError: Table needs no_such_package, which is not installed: pip install 'flcog[pandas]'
    """
    try:
        return importlib.import_module(package)
    except ImportError as error:
        raise ValueError(
            f"{what} needs {package.partition('.')[0]}, which is not installed: pip install 'flcog[{extra}]'"
        ) from error
