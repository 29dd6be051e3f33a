"""Checks that a resumed run is the same experiment as the run that wrote its checkpoint."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from flcog.core.types import Params
from flcog.method import ChangedCode, ChangedSetting, Method, Note, WarningNote
from flcog.run import checkpoint, experiment
from flcog.run.initial_weights import Origin, other_origin
from flcog.run.users_code import changed_classes
from flcog.settings import Settings


def check_resumable(
    path: Path,
    saved: dict[str, Any],
    settings: Settings,
    methods: Sequence[Method],
    tensors: Params,
    present: Mapping[str, Any],
) -> list[Note]:
    """Refuse to resume another experiment. Returns a note for each changed setting.

    Args:
        path: the checkpoint.
        saved: its contents.
        settings, methods: this run's.
        tensors: this run's initial parameters and shared buffers.
        present: this run's description by :func:`flcog.run.experiment.describe`.
    """
    names = [method.name for method in methods]
    checkpoint.check_same_model(path, saved["params"] | saved["buffers"], tensors)
    if saved["methods"] != names:
        before, now = map(checkpoint.as_given, (saved["methods"], names))
        raise ValueError(f"{path} was written by a run with methods {before}; this run has {now}: use the same list")
    if not saved["resumable"]:
        raise ValueError(f"{path} has only a model for evaluation: resume from last.ckpt in the same folder")
    if saved["seed"] != settings.seed:
        raise ValueError(
            f"{path} was written by a run with seed {saved['seed']}; this one has {settings.seed}: use the same seed"
        )
    notes: list[Note] = []
    if saved["round"] >= settings.rounds:
        text = f"{saved['round']} rounds are done, and trainer.rounds is {settings.rounds}: there are no rounds left to train"
        notes.append(WarningNote(text))
    experiment.check_same(path, saved["experiment"], present)
    if changed := changed_classes(saved["experiment"].get("code", {}), present["code"]):
        notes.append(ChangedCode(f"the code of {', '.join(changed)} has changed since round {saved['round']}"))
    return notes + [ChangedSetting(change) for change in experiment.differences(saved["experiment"], present)]


def other_configuration(
    path: Path,
    settings: Settings,
    methods: Sequence[Method],
    config: Mapping[str, Any] | None,
    init_from: Origin | None,
    may_change: bool,
) -> str | None:
    """Describe how the configuration of a checkpoint's run differs from this run's, without the model and the data.

    None if they are equal, or if the checkpoint cannot be read, which will be reported when it is loaded.

    Args:
        path: the checkpoint.
        settings, methods, config, init_from: this run's.
        may_change: whether settings may differ.
    """
    saved = checkpoint.peek(path)
    for part, now in {"methods": [method.name for method in methods], "seed": settings.seed}.items():
        if (before := saved.get(part, now)) != now:
            was, value = map(checkpoint.as_given, (before, now)) if part == "methods" else (before, now)
            return f"{part} was {was}, is {value}"
    before = saved.get("experiment")
    if before and (difference := other_origin(before.get("init_from"), init_from)):
        return difference
    if not before or may_change:
        return None
    present = before | experiment.describe_settings(settings, methods, config)
    return "; ".join(experiment.differences(before, present)) or None


def check_meant(path: Path, notes: Sequence[Note]) -> None:
    """Refuse settings that differ from the checkpoint's, unless the user allowed changes."""
    changes = [note.text for note in notes if isinstance(note, ChangedSetting)]
    if changes:
        raise ValueError(
            f"{path} was written with other settings: {'; '.join(changes)}. Put them back, start a new run without ckpt_path, "
            "or set trainer.resume_changed to true to accept the changes"
        )
