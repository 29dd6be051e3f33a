"""The part of a checkpoint that Lightning writes and reads: weights, hyper-parameters, optimisers, schedulers, callbacks and loops."""

import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import lightning as L
from torch import Tensor

from flcog.core.masking import masked
from flcog.core.types import Params
from flcog.models.lora import adapters

STORABLE = (type(None), bool, int, float, complex, str, bytes, Tensor)
LOST = object()
"""In place of a value that a checkpoint cannot hold."""


def entries(trainer: L.Trainer, weights: Params, config: Mapping[str, Any] | None) -> dict[str, Any]:
    """What ``lightning.Trainer`` saves, so that ``load_from_checkpoint`` and its ``fit`` can read the file.

    Only tensors, numbers and texts are stored. A warning names the others. The command line's ``config`` has the arguments of a
    module without ``save_hyperparameters()``.
    """
    module = trainer.lightning_module
    live = {name: value.data_ptr() for name, value in module.state_dict().items()}
    saved, lost = trainer._checkpoint_connector.dump_checkpoint(weights_only=False), list[str]()
    # load_from_checkpoint needs frozen weights, too, except for modules that say otherwise and for networks around which adapters train.
    partial = not module.strict_loading or next(adapters(module), None) is not None
    state = {
        name: weights[name] if name in weights and value.data_ptr() == live.get(name) else value  # the file has each tensor once
        for name, value in saved.pop("state_dict").items()
        if name in weights or not partial
    }
    # Hooks of rounds may have frozen or freed layers.
    saved["requires_grad"] = {name: value.requires_grad for name, value in module.named_parameters() if name in weights}
    if not module.hparams and (model := (config or {}).get("model")):
        saved["hyper_parameters"] = _from_config(module, model)
    elif "hyper_parameters" in saved:
        saved["hyper_parameters"] = masked(dict(module.hparams))
    kept = _storable(saved, "", lost)
    if lost:  # Python shows the same warning once
        warnings.warn(
            f"checkpoints do not store {', '.join(lost)}, which are no tensors, numbers or text; load_from_checkpoint takes the missing "
            "hyper_parameters as arguments",
            stacklevel=2,
        )
    return {**kept, "state_dict": state}


@contextmanager
def restored(trainer: L.Trainer, saved: Mapping[str, Any] | None) -> Iterator[None]:
    """Restore callbacks and the data module, and after ``on_fit_start`` optimisers, schedulers and the scaler of gradients.

    Checkpoints of older runs have none of these.
    """
    connector = trainer._checkpoint_connector
    connector._loaded_checkpoint = dict(saved or {})
    try:
        if saved is not None:
            connector.restore_callbacks()
            connector.restore_datamodule()
        yield
        for name, trains in connector._loaded_checkpoint.get("requires_grad", {}).items():
            trainer.lightning_module.get_parameter(name).requires_grad_(trains)
        if saved is not None and "optimizer_states" in saved:
            connector.restore_precision_plugin_state()
            connector.restore_optimizers()
            connector.restore_lr_schedulers()
    finally:
        connector._loaded_checkpoint = {}


def _storable(value: Any, place: str, lost: list[str]) -> Any:
    """The value as dicts, lists, tensors, numbers and texts; LOST if it is something else.

    ``weights_only=True`` refuses to load subclasses of these, such as jsonargparse's Namespace. Entries of dicts that cannot be stored are
    left out, and their names are added to ``lost``.
    """
    if isinstance(value, Mapping):
        named = {key: f"{place}.{key}".removeprefix(".") for key in value}
        parts = {key: _storable(value[key], named[key], lost) if isinstance(key, str | int) else LOST for key in value}
        lost += [named[key] for key, part in parts.items() if part is LOST]
        return {key: part for key, part in parts.items() if part is not LOST}
    if isinstance(value, list | tuple):
        listed = [_storable(part, place, lost) for part in value]
        return LOST if any(part is LOST for part in listed) else listed
    return value if type(value) in STORABLE else LOST


def logged_hyperparameters(*owners: Any) -> dict[str, Any]:
    """The numbers and texts that modules and data modules have stored with ``save_hyperparameters()``, for trackers, as in Lightning.

    The last owner's value of a name counts.
    """
    found: dict[str, Any] = {}
    for owner in owners:
        own = _storable(owner.hparams_initial, "", []) if getattr(owner, "_log_hyperparams", False) else {}
        # Names with an underscore are entries of Lightning's own command line.
        found |= {name: value for name, value in own.items() if not (name.startswith("_") or isinstance(value, Tensor))}
    return found


def _from_config(module: L.LightningModule, model: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of the configuration, as Lightning's own command line stores them."""
    own = f"{type(module).__module__}.{type(module).__qualname__}"
    if "class_path" not in model:  # a script's FederatedCLI has a fixed class
        return dict(masked(dict(model)))
    path, arguments = model["class_path"], model.get("init_args") or {}
    if path.rpartition(".")[2] != type(module).__name__:  # the configuration names a network, and flcog put this module around it
        path, arguments = own, {"model": model}
    return masked(arguments) | {"_class_path": path, "_instantiator": "lightning.pytorch.cli.instantiate_module"}
