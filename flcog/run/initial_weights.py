"""Loads the weights of a checkpoint of Lightning's, or of a file of weights, into a model before round 1."""

from collections.abc import Mapping
from pathlib import Path

from torch import Tensor, nn

from flcog.core.lightning_packages import lightning_base
from flcog.core.weight_files import PREFIX, digest_of, read_weights

Origin = dict[str, str]
"""The ``file`` of the weights that a run began with, and a digest of these ``weights``, which is empty if the file was not read."""


def load_initial_weights(model: nn.Module, path: str | Path, resumes: bool = False) -> Origin:
    """Load weights into a model; other contents of the file, such as optimiser states, are ignored.

    Args:
        model: the user's module or network.
        path: a checkpoint that ``lightning.Trainer`` or flcog wrote, or a file with a ``state_dict`` alone. Only tensors and primitives
            are read from it, so that a file cannot run code.
        resumes: whether a checkpoint will replace the weights. Their file may be gone then.
    """
    file = str(Path(path).resolve())
    if resumes and not Path(path).is_file():
        return {"file": file, "weights": ""}
    if lightning_base(model, "LightningModule") is not None:
        model.configure_model()  # type: ignore[operator]  # it may make the layers
    own, given = model.state_dict(), read_weights(Path(path))
    fitting = next((named for named in _namings(given) if named.keys() == own.keys()), None)
    kind = type(model).__name__
    if fitting is None:
        odd = sorted(own.keys() ^ given.keys())[0]
        where = f"{kind} has no such weight" if odd in given else "the file lacks it"
        raise ValueError(f"init_from={path} does not fit {kind}: {odd} ({where}): give weights of the same model")
    for name, value in fitting.items():
        if value.shape != own[name].shape:
            raise ValueError(
                f"init_from={path} does not fit {kind}: {name} has shape {list(value.shape)} there and {list(own[name].shape)} here: give "
                "weights of the same model"
            )
    model.load_state_dict(fitting)
    return {"file": file, "weights": digest_of(given)}


def check_origin(path: Path, before: Origin | None, now: Origin | None, resumes: bool) -> None:
    """Refuse other initial weights than those of a checkpoint's run.

    Args:
        path: the checkpoint.
        before: the origin of its run's weights.
        now: the origin that the user gave.
        resumes: whether the run is resumed by the checkpoint's name, so that the user need not repeat ``init_from``.
    """
    if difference := other_origin(before, now, resumes):
        raise ValueError(
            f"{path} was written by a run with other initial weights: {difference}. Give the init_from of that run, or start a new run "
            "without ckpt_path"
        )


def other_origin(before: Origin | None, now: Origin | None, resumes: bool = False) -> str:
    """Describe the difference between two origins of weights. Empty if they are the same weights."""
    if before and now:
        same = before["weights"] == now["weights"] or (not now["weights"] and before["file"] == now["file"])
    else:
        same = not now and (resumes or not before)
    was, value = (origin["file"] if origin else "none" for origin in (before, now))
    return "" if same else f"init_from was {was}, is {value}" + (", which has other weights" if was == value else "")


def _namings(given: Mapping[str, Tensor]) -> list[dict[str, Tensor]]:
    """The weights under the names of a client module, and of the network in it."""
    inside = {name.removeprefix(PREFIX): value for name, value in given.items()}
    return [
        dict(given),
        *([inside] if len(inside) == len(given) else []),
        {PREFIX + name: value for name, value in given.items()},
    ]
