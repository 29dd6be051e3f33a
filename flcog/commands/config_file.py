"""Config files: mistakes that the parser would silently ignore, and the parts that belong to Lightning or to ``fit`` alone."""

from collections.abc import Container
from pathlib import Path
from typing import Any

import yaml

from flcog.core.yaml_files import load_yaml, refuse_doubles

OF_LIGHTNING = ("optimizer", "lr_scheduler", "weights_only")
"""Options of LightningCLI's ``fit`` that the ``flcog`` command does not have. LightningCLI writes them as null."""

IN_ROUNDS = {"max_epochs": "rounds", "check_val_every_n_epoch": "eval_every"}
"""Options of ``lightning.Trainer`` that count epochs, and those of the federated trainer that count rounds."""

OPTIONS = ("-c", "--config")
"""The option of the command line that gives a config."""

ONLY_FIT = ("init_from",)
"""Entries of a run's ``config.yaml`` that are options of ``fit`` alone."""


def check_config(path: Path) -> dict[str, Any]:
    """Read a config. Refuse a file without a mapping of options, and an option that appears twice: YAML would use the last value."""
    content = load_yaml(path)
    if not isinstance(content, dict):
        what = "nothing" if content is None else "a list" if isinstance(content, list) else "a single value"
        raise ValueError(f"{path} holds {what}: a config is a mapping with trainer, model, data, as configs/quickstart.yaml is")
    refuse_doubles(path, yaml.compose(path.read_text(encoding="utf-8"), Loader=yaml.SafeLoader))
    if not isinstance(content.get("trainer", {}), dict):
        raise ValueError(f"{path}: trainer must be a mapping of options; got {content['trainer'] or 'nothing'}")
    return content


def adapted(text: str, options: Container[str]) -> str:
    """Remove from a config what its command has no use for.

    LightningCLI writes every option of ``lightning.Trainer``. An option that is null gets the default of the federated trainer, and an
    option that counts epochs counts rounds. A mapping of callbacks changes the list of an earlier config (see ``callback_options``).

    Args:
        text: the config.
        options: the command's, such as ``--init_from``.

    >>> print(adapted("{trainer: {max_epochs: 3, precision: null}, optimizer: null}", ()).strip())
    trainer:
      rounds: 3
    """
    config = yaml.safe_load(text)
    if not isinstance(config, dict):
        return text
    found = {
        name: value
        for name, value in config.items()
        if not (name in OF_LIGHTNING and value is None) and (name not in ONLY_FIT or f"--{name}" in options)
    }
    if isinstance(trainer := config.get("trainer"), dict):
        kept = {name: value for name, value in trainer.items() if value is not None and not is_change(name, value)}
        found["trainer"] = {IN_ROUNDS.get(name, name): value for name, value in kept.items()}
    return text if found == config else yaml.safe_dump(found, sort_keys=False)


def is_change(name: str, value: Any) -> bool:
    """Whether an option of the trainer is a mapping of callbacks by name."""
    return name == "callbacks" and isinstance(value, dict) and bool(value) and "class_path" not in value


def split_config(before: str, word: str) -> tuple[str, str]:
    """Split a word of the command line, after ``before``, into an option and the config that it gives; the config may be empty.

    >>> split_config("-c", "a.yaml"), split_config("", "--config=a.yaml"), split_config("", "--trainer.rounds=3")
    (('', 'a.yaml'), ('--config=', 'a.yaml'), ('--trainer.rounds=3', ''))
    """
    if before in OPTIONS:
        return "", word
    option, sign, config = word.partition("=")
    return (option + sign, config) if sign and option in OPTIONS else (word, "")
