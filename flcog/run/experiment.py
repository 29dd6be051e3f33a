"""What makes two runs the same experiment: a checkpoint stores it, and a resumed run compares it.

These are the seed, the list of methods, the partition, the names and shapes of tensors, and the configuration without its free options.
"""

import dataclasses
import hashlib
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from flcog.client.model import ClientModel
from flcog.core.arguments import by_name, constructor_arguments, plain
from flcog.core.text import clipped
from flcog.core.types import Params
from flcog.data import FederatedDataModule
from flcog.method import Method, Note
from flcog.run import checkpoint
from flcog.settings import Settings

VARIES = re.compile(r"(^|\.)(seed|seed_everything|partition_seed|default_root_dir|save_dir|dirpath|ckpt_path)$")
"""Settings in which repetitions of a run differ."""


def describe(
    settings: Settings,
    methods: Sequence[Method],
    client: ClientModel,
    data: FederatedDataModule,
    config: Mapping[str, Any] | None,
) -> dict[str, Any]:
    """Describe the experiment by names, in numbers and strings only.

    On the command line the arguments of model and data are in ``config``; in Python they are read from the objects' attributes.
    """
    federation, optimizer = data.federation, client.optimizer  # before methods exchange anything
    groups = [{name: value for name, value in group.items() if name != "params"} for group in optimizer.param_groups]
    rates = groups[0] if len(groups) == 1 else {str(number): group for number, group in enumerate(groups)}
    # The optimiser's real settings count, not the arguments that the module kept for making it.
    model = plain(client.function.module) | {"optimizer": {"": type(optimizer), **rates}}
    return {
        "clients": federation.num_clients,
        "partition": federation.partition.hash,
        **describe_settings(settings, methods, config),
        "objects": by_name({"model": model, "data": data}),
    }


def describe_settings(settings: Settings, methods: Iterable[Method], config: Mapping[str, Any] | None) -> dict[str, Any]:
    """Describe the part of the experiment that needs neither the model nor the data."""
    compared = {field.name: getattr(settings, field.name) for field in dataclasses.fields(settings) if not field.metadata}
    return {
        "settings": by_name({"trainer": compared} | {method.name: constructor_arguments(method) for method in methods}),
        "config": None if config is None else by_name({name: config.get(name) for name in ("model", "data")}),
    }


def fingerprint(*parts: Any) -> str:
    """A hash of descriptions, as sixteen hex digits, without seeds and folders."""
    known = {name: value for name, value in by_name(parts).items() if not VARIES.search(name)}
    return hashlib.sha256(json.dumps(known, sort_keys=True, default=str).encode()).hexdigest()[:16]


def other_run(saved: Mapping[str, Any], methods: Sequence[Method], seed: int | None = None) -> str:
    """How the methods of a checkpoint's run, and its seed if one is given, differ from this run's. Empty if they are the same."""
    pairs: dict[str, tuple[Any, Any]] = {"methods": (saved["methods"], [method.name for method in methods])}
    if seed is not None:
        pairs["seed"] = saved["seed"], seed
    return "; ".join(f"{name} was {was}, is {now}" for name, (was, now) in pairs.items() if was != now)


def differences(saved: Mapping[str, Any], present: Mapping[str, Any]) -> list[str]:
    """List the changed settings, such as ``trainer.local_steps was 40, is 50``."""
    both = saved["config"] is not None and present["config"] is not None
    lines = []
    for part in ("settings", "config" if both else "objects"):
        for name in {**saved[part], **present[part]}:
            was, value = saved[part].get(name), present[part].get(name)
            if was != value and (was == was or value == value):
                lines.append(f"{name} was {clipped(str(was))}, is {clipped(str(value))}")
    return lines


def check_resumable(
    path: Path,
    saved: dict[str, Any],
    settings: Settings,
    methods: Sequence[Method],
    tensors: Params,
    present: Mapping[str, Any],
) -> list[Note]:
    """Refuse to resume another experiment. Returns a note for each changed setting."""
    if difference := other_run(saved, methods, settings.seed):
        raise ValueError(f"{path} was written by another run: {difference}. Use the same, or start a new run without ckpt_path")
    checkpoint.check_same_model(path, saved["params"] | saved["buffers"], tensors)
    if not saved["resumable"]:
        raise ValueError(f"{path} has only a model for evaluation: resume from last.ckpt in the same folder")
    before = saved["experiment"]
    if (before["partition"], before["clients"]) != (present["partition"], present["clients"]):
        raise ValueError(
            f"{path} was written by a run with {before['clients']} clients (partition {before['partition']}); this one has "
            f"{present['clients']} (partition {present['partition']}): use the same data.num_clients, partitioner, partition_seed, "
            "client_test and client_val"
        )
    notes: list[Note] = []
    if saved["round"] >= settings.rounds:
        text = f"{saved['round']} rounds are done, and trainer.rounds is {settings.rounds}: there are no rounds left to train"
        notes.append(Note("warning", text))
    return notes + [Note("changed", change) for change in differences(before, present)]


def other_configuration(
    path: Path,
    settings: Settings,
    methods: Sequence[Method],
    config: Mapping[str, Any] | None,
    init_from: str | None,
    may_change: bool,
) -> str:
    """Describe how the configuration of a checkpoint's run differs from this run's, before the model and the data are known.

    Empty if they are equal, or if the checkpoint cannot be read, which will be reported when it is loaded.
    """
    saved = checkpoint.peek(path)
    if "experiment" not in saved:
        return ""
    before = saved["experiment"]
    different = other_run(saved, methods, settings.seed)
    if not different and before.get("init_from") != init_from:
        different = f"init_from was {before.get('init_from')}, is {init_from}"
    if different or may_change:
        return different
    return "; ".join(differences(before, before | describe_settings(settings, methods, config)))
