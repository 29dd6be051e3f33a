"""The entries of a checkpoint that ``LightningModule.load_from_checkpoint`` reads, with flcog installed or without it."""

import warnings
from collections.abc import Mapping
from typing import Any

import lightning as L
from torch import Tensor

from flcog.core.masking import masked
from flcog.core.types import Params
from flcog.models.lora import adapters

LIGHTNINGS = ("pytorch-lightning_version", "state_dict", "hparams_name", "hyper_parameters", "epoch", "global_step")
"""Entries that Lightning writes, too, and that a module's ``on_save_checkpoint`` may change."""

PRIMITIVES = (type(None), bool, int, float, complex, str, bytes)


def lightning_entries(
    module: L.LightningModule, weights: Params, config: Mapping[str, Any] | None, round: int = 0
) -> dict[str, Any]:
    """Return the weights and the constructor arguments of the module, and the place in the run: a round is an epoch and a step.

    The arguments come from the module's ``save_hyperparameters()``, or else from the run's configuration.

    Args:
        module: the client module.
        weights: the global model's parameters and shared buffers.
        config: the full configuration, if the command line knows it.
        round: the number of rounds done.
    """
    # load_from_checkpoint needs frozen weights, too, except for modules that say otherwise and for networks around which adapters train.
    partial = not module.strict_loading or next(adapters(module), None) is not None
    entries: dict[str, Any] = {
        "pytorch-lightning_version": L.__version__,
        "epoch": max(0, round - 1),
        "global_step": round,
        "state_dict": weights if partial else module.state_dict() | weights,
    }
    if module.hparams:
        kept, _ = split_hyperparameters(module)
        entries |= {"hparams_name": module._hparams_name, "hyper_parameters": masked(kept)}
    elif model := (config or {}).get("model"):
        entries["hyper_parameters"] = _from_config(module, model)
    return entries


def entries_of_hook(owner: Any, taken: Mapping[str, Any], *arguments: Any) -> dict[str, Any]:
    """The entries that an ``on_save_checkpoint`` adds to a checkpoint, and Lightning's own entries that it changes.

    Args:
        owner: the client module, or a callback.
        taken: the entries that the checkpoint already has.
        arguments: of the hook, before the checkpoint.
    """
    name = f"{type(owner).__name__}.on_save_checkpoint"
    checkpoint = {key: dict(value) if isinstance(value, Mapping) else value for key, value in taken.items()}
    owner.on_save_checkpoint(*arguments, checkpoint)
    added = {key: value for key, value in checkpoint.items() if key not in taken or not _same(value, taken[key])}
    lost: list[str] = []
    for key, value in added.items():
        if key in taken and key not in LIGHTNINGS:
            raise ValueError(f"{name} changes {key!r}, which flcog writes: add entries of other names")
        if not isinstance(value, Mapping) and not _is_plain(value, Tensor):
            raise ValueError(
                f"{name} adds {key!r}, which must contain tensors, numbers and text alone; got {type(value).__name__}"
            )
        added[key] = _storable(value, key, lost)
    if lost:
        warnings.warn(
            f"checkpoints do not store {', '.join(lost)} of {name}, which are no tensors, numbers or text: its on_load_checkpoint gets "
            "the other entries",
            stacklevel=2,
        )
    return added


def checked_state(owner: Any, state: Any) -> Any:
    """The state of a callback or data module for a checkpoint, which only tensors and primitives may enter."""
    if not _is_plain(state, Tensor):
        odd = [name for name, value in state.items() if not _is_plain(value, Tensor)] if isinstance(state, Mapping) else []
        where = f"{odd[0]!r}, a {type(state[odd[0]]).__name__}" if odd else f"a {type(state).__name__}"
        raise ValueError(f"{type(owner).__name__}.state_dict returns {where}: return tensors, numbers and text alone")
    return _plain(state)


def _same(value: Any, before: Any) -> bool:
    """Whether a hook has left an entry as it was."""
    if isinstance(value, Mapping) and isinstance(before, Mapping):
        return value.keys() == before.keys() and all(value[key] is before[key] for key in value)
    return value is before


def _storable(value: Any, name: str, lost: list[str]) -> Any:
    """The value without the entries of dicts that a checkpoint cannot hold, whose names are added to ``lost``."""
    if not isinstance(value, Mapping):
        return _plain(value)
    kept = {}
    for key, inner in value.items():
        if isinstance(key, str | int) and (isinstance(inner, Mapping) or _is_plain(inner, Tensor)):
            kept[key] = _storable(inner, f"{name}.{key}", lost)
        else:
            lost.append(f"{name}.{key}")
    return kept


def split_hyperparameters(module: L.LightningModule) -> tuple[dict[str, Any], list[str]]:
    """The hyper-parameters that a checkpoint can hold, and the names of the others, such as networks.

    >>> class Lit(L.LightningModule):
    ...     def __init__(self, width, network):
    ...         super().__init__()
    ...         self.save_hyperparameters(logger=False)
    >>> with warnings.catch_warnings(action="ignore"):
    ...     split_hyperparameters(Lit(3, L.LightningModule()))
    ({'width': 3}, ['network'])
    """
    stored = dict(module.hparams)
    lost = [name for name, value in stored.items() if not _is_plain(value)]
    return {name: _plain(value) for name, value in stored.items() if name not in lost}, lost


def logged_hyperparameters(*owners: Any) -> dict[str, Any]:
    """The numbers and texts that modules and data modules have stored with ``save_hyperparameters()``, for trackers, as in Lightning.

    Args:
        owners: the module and the data module, any of which may have stored none.
    """
    found: dict[str, Any] = {}
    for owner in owners:
        own = owner.hparams_initial if getattr(owner, "_log_hyperparams", False) else {}
        for name, value in own.items():
            if name.startswith("_") or not _is_plain(value):  # entries of Lightning's own command line, and networks
                continue
            if name in found and found[name] != _plain(value):
                warnings.warn(
                    f"the module and {type(owner).__name__} store different values of the hyper-parameter {name}: trackers get "
                    "the latter's; rename one of them",
                    stacklevel=2,
                )
            found[name] = _plain(value)
    return found


def _is_plain(value: Any, *further: type) -> bool:
    if isinstance(value, Mapping):
        return all(_is_plain(inner, *further) for inner in value.values()) and all(isinstance(key, str | int) for key in value)
    if isinstance(value, list | tuple):
        return all(_is_plain(inner, *further) for inner in value)
    return type(value) in (*PRIMITIVES, *further)


def _plain(value: Any) -> Any:
    """The value without subclasses of dict, such as jsonargparse's Namespace, which ``weights_only=True`` refuses to load."""
    if isinstance(value, Mapping):
        return {key: _plain(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(inner) for inner in value]
    return value


def _from_config(module: L.LightningModule, model: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of the configuration, as Lightning's own command line stores them."""
    own = f"{type(module).__module__}.{type(module).__qualname__}"
    if "class_path" not in model:  # a script's FederatedCLI has a fixed class
        return dict(masked(dict(model)))
    path, arguments = model["class_path"], model.get("init_args") or {}
    if path.rpartition(".")[2] != type(module).__name__:  # the configuration names a network, and flcog put this module around it
        path, arguments = own, {"model": model}
    return masked(arguments) | {"_class_path": path, "_instantiator": "lightning.pytorch.cli.instantiate_module"}


def warn_of_lost_hyperparameters(module: L.LightningModule) -> None:
    """Say once which hyper-parameters no checkpoint can hold, as it contains only tensors and primitives."""
    _, lost = split_hyperparameters(module) if module.hparams else ({}, [])
    if lost:
        name = type(module).__name__
        warnings.warn(
            f"checkpoints do not store the hyper-parameter{'s' * (len(lost) > 1)} {', '.join(lost)} of {name}, which are no numbers or "
            f"text: give them to {name}.load_from_checkpoint(PATH, {lost[0]}=...), or leave them out with save_hyperparameters(ignore=...)",
            stacklevel=2,
        )
