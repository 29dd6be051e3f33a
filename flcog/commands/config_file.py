"""Checks a config file before it is parsed: options given twice, no YAML, no mapping; one line for what a parser would drop silently."""

from pathlib import Path
from typing import Any

import yaml

SECTIONS = ("trainer", "model", "data")


def check_config(path: Path) -> None:
    """Refuse a file that is no mapping of options, or in which an option stands twice, of which YAML would take the last."""
    try:
        text = path.read_text(encoding="utf-8")
        yaml.safe_load(text)  # which also refuses what no config may hold
        node = yaml.compose(text, Loader=yaml.SafeLoader)
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} is not UTF-8 text (byte {error.start}): save it as UTF-8, or give a config in YAML") from None
    except RecursionError:
        raise ValueError(f"{path} is no config: its brackets or lists are nested too deeply") from None
    except yaml.YAMLError as error:
        raise ValueError(f"{path} is no YAML: {_problem(error)}") from None
    if not isinstance(node, yaml.MappingNode):
        what = {yaml.SequenceNode: "a list", yaml.ScalarNode: "a single value"}.get(type(node), "nothing")
        raise ValueError(f"{path} holds {what}: a config is a mapping with {', '.join(SECTIONS)}, as configs/quickstart.yaml is")
    _refuse_doubles(path, node, set())
    for key, value in node.value:
        if key.value == "trainer" and isinstance(value, yaml.ScalarNode):
            raise ValueError(f"{path}: trainer must be a mapping of options; got {value.value or 'nothing'}")


def _problem(error: yaml.YAMLError) -> str:
    mark, problem = getattr(error, "problem_mark", None), getattr(error, "problem", None) or str(error).splitlines()[0]
    return f"{problem} (line {mark.line + 1}, column {mark.column + 1})" if mark else problem


def _refuse_doubles(path: Path, node: Any, seen: set[int]) -> None:
    if id(node) in seen:  # an alias, which may hold itself
        return
    seen.add(id(node))
    if isinstance(node, yaml.MappingNode):
        lines: dict[str, int] = {}
        for key, value in node.value:
            line = key.start_mark.line + 1
            if isinstance(key, yaml.ScalarNode) and lines.setdefault(key.value, line) != line:
                raise ValueError(f"{path} has {key.value!r} twice, in lines {lines[key.value]} and {line}: keep one")
            _refuse_doubles(path, value, seen)
    elif isinstance(node, yaml.SequenceNode):
        for value in node.value:
            _refuse_doubles(path, value, seen)
