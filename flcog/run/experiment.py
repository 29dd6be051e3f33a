"""Describes an experiment: its model, data, partition and settings. Checkpoints store this, and a resumed run compares it."""

import dataclasses
import hashlib
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from flcog.client.model import ClientModel
from flcog.core.arguments import by_name, constructor_arguments, digest, plain
from flcog.core.masking import masked
from flcog.core.text import clipped
from flcog.core.trees import leaves
from flcog.data import FederatedDataModule, Samples
from flcog.method import Method
from flcog.run.users_code import code_of
from flcog.settings import Settings

HASHED_BYTES = 32 * 2**20
"""The most bytes of a set's inputs that are hashed, which takes a tenth of a second."""

HOW_IT_RUNS = (
    *("rounds", "callbacks", "seed", "executor", "chunk_size", "compile", "accelerator", "strategy", "devices", "num_nodes"),
    *("processes_per_device", "logger", "default_root_dir", "resume_changed", "fast_dev_run", "num_sanity_val_steps"),
    *("gradient_clip_val", "gradient_clip_algorithm"),
    *("enable_progress_bar", "enable_checkpointing", "enable_model_summary", "inference_mode", "limit_predict_batches"),
)
"""Arguments of the trainer that a resumed run may change. Methods, clipping among them, and the seed are compared separately."""


VARIES = re.compile(r"(^|\.)(seed|partition_seed|default_root_dir|save_dir|dirpath|init_from\.file)$")
"""Settings in which repetitions of a run differ."""


def describe(
    settings: Settings,
    methods: Sequence[Method],
    client: ClientModel,
    data: FederatedDataModule,
    config: Mapping[str, Any] | None,
) -> dict[str, Any]:
    """Describe the experiment and all its settings by name, in numbers and strings only.

    On the command line the arguments of model and data are in ``config``; in Python they are read from the objects' attributes.
    """
    federation = data.federation  # before methods exchange anything
    module, optimizer = client.function.module, client.optimizer
    groups = [{name: value for name, value in group.items() if name != "params"} for group in optimizer.param_groups]
    stored_inputs = [leaf for leaf in leaves(federation.train.inputs) if isinstance(leaf, Tensor)]
    rates = groups[0] if len(groups) == 1 else {str(number): group for number, group in enumerate(groups)}
    return {
        "clients": federation.num_clients,
        "partition": federation.split.hash,
        "trained_on": federation.partition.hash,
        "targets": "-".join(map(digest, leaves(federation.train.targets) or stored_inputs)),
        "inputs": {part: _inputs(samples) for part in ("train", "val", "test") if (samples := getattr(federation, part))},
        "layers": {name: type(layer).__qualname__ for name, layer in module.named_modules()},
        **describe_settings(settings, methods, config),
        "objects": by_name(
            {
                # The optimiser's real settings count, not the arguments that the module kept for making it.
                "model": plain(module) | {"optimizer": {"": type(optimizer), **rates}},
                "layer": {name: layer.extra_repr() for name, layer in module.named_modules() if layer.extra_repr()},
                "data": data,
            }
        ),
        "code": code_of(
            {"model": [*module.modules(), optimizer], "data": [data, *vars(data).values()]} | {m.name: [m] for m in methods}
        ),
    }


def _inputs(samples: Samples) -> str:
    """The digests of a set's stored inputs, or of evenly spread rows of a large set; empty for inputs that are made when they are read."""
    stored = [leaf for leaf in leaves(samples.inputs) if isinstance(leaf, Tensor | np.ndarray)]
    return "-".join(digest(leaf[:: max(1, -(-leaf.nbytes // HASHED_BYTES))]) for leaf in stored)


def describe_settings(settings: Settings, methods: Iterable[Method], config: Mapping[str, Any] | None) -> dict[str, Any]:
    """Describe the part of the experiment that needs neither the model nor the data."""
    by_owner = {"trainer": {name: value for name, value in dataclasses.asdict(settings).items() if name not in HOW_IT_RUNS}}
    return {
        "settings": by_name(by_owner | {method.name: constructor_arguments(method) for method in methods}),
        "config": None if config is None else by_name({name: config.get(name) for name in ("model", "data")}),
    }


def fingerprint(*parts: Any) -> str:
    """A hash of descriptions, as sixteen hex digits, without seeds and folders."""
    known = {name: value for name, value in by_name(parts).items() if not VARIES.search(name)}
    return hashlib.sha256(json.dumps(known, sort_keys=True, default=str).encode()).hexdigest()[:16]


def check_same(path: Path, saved: Mapping[str, Any], present: Mapping[str, Any]) -> None:
    """Refuse another model, other data or another partition."""
    for name in {**saved["layers"], **present["layers"]}:
        before, now = saved["layers"].get(name), present["layers"].get(name)
        if before != now:
            raise ValueError(
                f"{path} holds another model: {name or 'it'} is {before or 'nothing'} there, {now or 'nothing'} here. "
                "Use the model of the run that wrote it"
            )
    if saved["targets"] != present["targets"]:
        raise ValueError(
            f"{path} was written by a run on other training samples: use the data set of that run, or start a new one"
        )
    for part, now in present["inputs"].items():
        if saved.get("inputs", {}).get(part, now) != now:
            raise ValueError(
                f"{path} was written by a run with other inputs in the {part} set: use the data set of that run, or start a new one"
            )
    if (saved["partition"], saved["clients"]) != (present["partition"], present["clients"]):
        raise ValueError(
            f"{path} was written by a run with {saved['clients']} clients (partition {saved['partition']}); this one has "
            f"{present['clients']} (partition {present['partition']}): use the same data.num_clients, partitioner and partition_seed"
        )
    if saved["trained_on"] != present["trained_on"]:
        raise ValueError(
            f"{path} was written by a run that held out other samples of its clients: use the same data.client_test, client_val "
            "and partition_seed"
        )


def differences(saved: Mapping[str, Any], present: Mapping[str, Any]) -> list[str]:
    """List the changed settings, such as ``trainer.local_steps was 40, is 50``."""
    both = saved["config"] is not None and present["config"] is not None
    lines = []
    for part in ("settings", "config" if both else "objects"):
        before, now = masked(saved[part]), present[part]  # earlier checkpoints hold secrets as they are
        for name in {**before, **now}:
            was, value = before.get(name), now.get(name)
            if was != value and (was == was or value == value):
                lines.append(f"{name} was {clipped(str(was))}, is {clipped(str(value))}")
    return lines
