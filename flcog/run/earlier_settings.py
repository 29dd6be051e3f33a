"""Compares a run's settings with those that it had before it was resumed."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from flcog.core.arguments import by_name
from flcog.method import Method
from flcog.run import experiment
from flcog.run.record import read_config


def changed_settings(run: Path, methods: Sequence[Method]) -> list[str]:
    """List the settings that changed when a run was resumed, such as ``trainer.local_steps was 40, is 50``.

    Args:
        run: its directory, with ``config.yaml`` and the earlier ``config-1.yaml`` and so on.
        methods: its methods.
    """
    now = _settings(read_config(run), methods)
    earlier = [_settings(read_config(run, path.name), methods) for path in sorted(run.glob("config-*.yaml"))]
    return list(dict.fromkeys(change for before in earlier for change in experiment.differences(before, now)))


def _settings(config: Mapping[str, Any], methods: Sequence[Method]) -> dict[str, Any]:
    """The settings of a configuration as :func:`flcog.run.experiment.describe_settings` has them, without any object."""
    trainer, names = config.get("trainer") or {}, {method.name for method in methods}
    counts = {
        name: value for name, value in trainer.items() if name not in experiment.HOW_IT_RUNS or name.startswith("gradient_clip")
    }
    callbacks = [part for part in trainer.get("callbacks") or () if isinstance(part, dict)]
    given = {part["class_path"].rpartition(".")[2]: part.get("init_args") for part in callbacks}
    return {
        "settings": by_name({"trainer": counts, **{name: given[name] for name in given if name in names}}),
        "config": by_name({name: config.get(name) for name in ("model", "data")}),
    }
