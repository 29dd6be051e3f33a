"""Check a config file before it is parsed, because the parser silently ignores some mistakes."""

from pathlib import Path

import yaml

from flcog.core.yaml_files import load_yaml, refuse_doubles


def check_config(path: Path) -> None:
    """Refuse a file without a mapping of options, and an option that appears twice, because YAML would use the last value."""
    load_yaml(path)
    node = yaml.compose(path.read_text(encoding="utf-8"), Loader=yaml.SafeLoader)
    if not isinstance(node, yaml.MappingNode):
        what = {yaml.SequenceNode: "a list", yaml.ScalarNode: "a single value"}.get(type(node), "nothing")
        raise ValueError(f"{path} holds {what}: a config is a mapping with trainer, model, data, as configs/quickstart.yaml is")
    refuse_doubles(path, node)
    for key, value in node.value:
        if key.value == "trainer" and isinstance(value, yaml.ScalarNode):
            raise ValueError(f"{path}: trainer must be a mapping of options; got {value.value or 'nothing'}")
