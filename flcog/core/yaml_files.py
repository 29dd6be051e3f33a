"""Reads YAML files, with an error of one line for any damage."""

from pathlib import Path
from typing import Any

import yaml


def load_yaml(path: Path) -> Any:
    """Parse a YAML file. Raises a ValueError in one line for any damage."""
    try:
        return yaml.safe_load(path.read_text(encoding="utf-8"))
    except yaml.YAMLError as error:
        raise ValueError(f"{path} is no YAML: {problem(error)}") from None
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} is not UTF-8 text (byte {error.start}): save it as UTF-8") from None
    except RecursionError:
        raise ValueError(f"{path} cannot be read: its brackets or lists are nested too deeply") from None
    except Exception as error:  # the YAML package raises nearly every kind of error for a value that does not fit its tag
        raise ValueError(f"{path} cannot be read: {type(error).__name__}: {' '.join(str(error).split())[:200]}") from None


def problem(error: yaml.YAMLError) -> str:
    """Describe a syntax error with its line and column."""
    mark, text = getattr(error, "problem_mark", None), getattr(error, "problem", None) or str(error).splitlines()[0]
    return f"{text} (line {mark.line + 1}, column {mark.column + 1})" if mark else text
