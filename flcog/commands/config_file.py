"""Check a config file before it is parsed, because the parser silently ignores some mistakes."""

from pathlib import Path
from typing import Any

import yaml

from flcog.core.yaml_files import load_yaml


def check_config(path: Path) -> None:
    """Refuse a file without a mapping of options, and an option that appears twice, because YAML would use the last value."""
    load_yaml(path)
    node = yaml.compose(path.read_text(encoding="utf-8"), Loader=yaml.SafeLoader)
    if not isinstance(node, yaml.MappingNode):
        what = {yaml.SequenceNode: "a list", yaml.ScalarNode: "a single value"}.get(type(node), "nothing")
        raise ValueError(f"{path} holds {what}: a config is a mapping with trainer, model, data, as configs/quickstart.yaml is")
    _refuse_doubles(path, node, set())
    for key, value in node.value:
        if key.value == "trainer" and isinstance(value, yaml.ScalarNode):
            raise ValueError(f"{path}: trainer must be a mapping of options; got {value.value or 'nothing'}")


def _refuse_doubles(path: Path, node: Any, seen: set[int]) -> None:
    if id(node) in seen:  # an alias, which may contain itself
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
