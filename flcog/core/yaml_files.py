"""Reads YAML files, with an error of one line for any damage."""

from pathlib import Path
from typing import Any

import yaml

MERGE = "tag:yaml.org,2002:merge"
"""The tag of the key ``<<``, which takes over another mapping's entries."""


class TextKeys(yaml.SafeLoader):
    """Keeps the keys of mappings as they are written: 010, no and 2026-01-01 are names, not a number, False and a date."""

    def compose_mapping_node(self, anchor: Any) -> yaml.MappingNode:
        node = super().compose_mapping_node(anchor)
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode) and key.tag != MERGE:
                key.tag = "tag:yaml.org,2002:str"
        return node


def load_yaml(path: Path, loader: type[yaml.SafeLoader] = yaml.SafeLoader) -> Any:
    """Parse a YAML file. Raises a ValueError in one line for any damage."""
    try:
        return yaml.load(path.read_text(encoding="utf-8"), loader)
    except yaml.YAMLError as error:
        raise ValueError(f"{path} is no YAML: {problem(error)}") from None
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} is not UTF-8 text (byte {error.start}): save it as UTF-8") from None
    except Exception as error:  # the YAML package raises nearly every kind of error for a value that does not fit its tag
        raise ValueError(f"{path} cannot be read: {type(error).__name__}: {' '.join(str(error).split())[:200]}") from None


def refuse_doubles(path: Path, node: Any) -> None:
    """Refuse a key that a mapping has twice, because YAML would use the last value."""
    if isinstance(node, yaml.MappingNode):
        lines: dict[str, int] = {}
        for key, value in node.value:
            line = key.start_mark.line + 1
            if isinstance(key, yaml.ScalarNode) and key.tag != MERGE:
                if key.value in lines:
                    where = f"lines {lines[key.value]} and {line}" if lines[key.value] != line else f"line {line}"
                    raise ValueError(f"{path} has {key.value!r} twice, in {where}: keep one")
                lines[key.value] = line
            refuse_doubles(path, value)
    elif isinstance(node, yaml.SequenceNode):
        for value in node.value:
            refuse_doubles(path, value)


def problem(error: yaml.YAMLError) -> str:
    """Describe a syntax error with its line and column."""
    mark, text = getattr(error, "problem_mark", None), getattr(error, "problem", None) or str(error).splitlines()[0]
    return f"{text} (line {mark.line + 1}, column {mark.column + 1})" if mark else text
