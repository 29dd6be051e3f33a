"""Configs that LightningCLI has written: they hold every option of ``lightning.Trainer``, most of them with Lightning's default."""

from collections.abc import Collection
from typing import Any

import yaml

NO_OPTIONS = ("optimizer", "lr_scheduler", "weights_only")
"""Options of LightningCLI's ``fit`` that the ``flcog`` command does not have."""


def without_lightning_defaults(text: str) -> str:
    """Remove from a config the options that are null, which get the default of the federated trainer.

    >>> print(without_lightning_defaults("{trainer: {rounds: 3, precision: null}, optimizer: null}").strip())
    trainer:
      rounds: 3
    """
    config = yaml.safe_load(text)
    if not isinstance(config, dict):
        return text
    found: dict[Any, Any] = {name: value for name, value in config.items() if value is not None or name not in NO_OPTIONS}
    if isinstance(trainer := config.get("trainer"), dict):
        found["trainer"] = {name: value for name, value in trainer.items() if value is not None}
    return text if found == config else yaml.safe_dump(found, sort_keys=False)


def without(names: Collection[str], text: str) -> str:
    """Remove entries from a config."""
    config = yaml.safe_load(text) if names else None
    if not isinstance(config, dict) or not config.keys() & {*names}:
        return text
    return yaml.safe_dump({name: value for name, value in config.items() if name not in names}, sort_keys=False)
