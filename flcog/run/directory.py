"""A run's directory: its name, its YAML files, and the checkpoint to resume from."""

import importlib.metadata
import itertools
import os
import platform
import shlex
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from flcog.core.files import RUN_REMEDY, as_yaml, clear_errors, make_folder, replacing, short, write_yaml
from flcog.core.masking import masked_command

LAST, BEST = "checkpoints/last.ckpt", "checkpoints/best.ckpt"


def new_run_directory(root: str | Path) -> Path:
    """Make a new directory under ``root``, named after the current time."""
    stamp = time.strftime("%Y%m%d-%H%M%S")
    with clear_errors(root, RUN_REMEDY):
        make_folder(Path(root))
        for number in itertools.count():
            with suppress(FileExistsError):
                path = Path(root, f"{stamp}-{number}" if number else stamp)
                path.mkdir()
                return path
    raise AssertionError


def find_checkpoint(ckpt_path: str | Path, root: str | Path, difference: Callable[[Path], str]) -> Path | None:
    """Find the checkpoint for ``ckpt_path``: a file, a run's directory, or ``last`` or ``best`` of the newest run under ``root`` without
    a ``difference``. ``auto`` is ``last``, or None if there are no runs.
    """
    if str(ckpt_path) not in ("last", "best", "auto"):
        return Path(ckpt_path, LAST) if Path(ckpt_path).is_dir() else Path(ckpt_path)
    runs = sorted(Path(root).glob(f"*/{LAST}"), key=lambda path: path.stat().st_mtime_ns, reverse=True)
    found = next((run for run in runs if not difference(run)), None)
    if found is not None:
        return found.with_name("best.ckpt") if ckpt_path == "best" else found
    other = f"of the newest, {short(runs[0].parents[1])}, {difference(runs[0])}" if runs else ""
    if ckpt_path != "auto":
        raise ValueError(
            f"ckpt_path={ckpt_path}: no run under {root} has a checkpoint{other and f' of a run with these methods ({other})'}; "
            "give a file, or start without ckpt_path"
        )
    if other:
        raise ValueError(
            f"ckpt_path=auto: {root} has no run of this configuration ({other}). "
            "Choose another trainer.default_root_dir, or leave ckpt_path out to start a run beside it"
        )
    return None


def kept_checkpoint(run: Path, round: int) -> Path:
    return run / "checkpoints" / f"round-{round:06d}.ckpt"


def run_of(checkpoint: Path) -> Path:
    run = checkpoint.resolve().parents[1]
    if checkpoint.resolve().parent.name != Path(LAST).parent.name or not (run / "run.yaml").is_file():
        raise ValueError(
            f"{checkpoint} lies outside a run's directory, where its metrics and its clients' states would be: give the run's "
            "directory, or the file inside its checkpoints folder (flcog test takes a checkpoint from anywhere)"
        )
    return run


def next_command(verb: str, run: Path, checkpoint: Path, config: Mapping[str, Any] | None) -> str:
    """Return the command that fits, tests or validates from a run's checkpoint (or directory), for the shell or for Python.

    The configuration is known to the command line alone. The classes of a user's own script are not part of it.
    """
    whole = all("class_path" in ((config or {}).get(part) or {}) for part in ("model", "data"))
    # A script with run=False has no verb on its command line, and calls the trainer's.
    has_verb = bool({"fit", "validate", "test", "predict"} & set(sys.argv[1:]))
    if config is None or not (whole or has_verb):
        return f"trainer.{verb}(model, datamodule, ckpt_path={str(short(checkpoint))!r})"
    prefix = ["uv", "run"] if "UV_RUN_RECURSION_DEPTH" in os.environ else []  # under `uv run` the user's own shell knows no flcog
    program = ["flcog"] if whole else ["python", sys.argv[0]]
    return shlex.join([*prefix, *program, verb, "-c", str(short(run / "config.yaml")), "--ckpt_path", str(short(checkpoint))])


def environment(accelerator: str | None) -> dict[str, Any]:
    """Describe the environment of a result: versions, the commit, the machine with its accelerator, the command."""
    packages = ("flcog", "torch", "torchvision", "lightning", "torchmetrics", "numpy", "wandb")
    return {
        "command": masked_command(sys.argv),
        "git_commit": git_commit(),
        "flcog_commit": clone_commit(),
        "python": platform.python_version(),
        "packages": {name: importlib.metadata.version(name) for name in packages},
        "machine": {"system": platform.platform(), "cpus": os.cpu_count()}
        | ({"accelerator": accelerator} if accelerator else {}),
    }


def git_commit(folder: Path | None = None) -> str | None:
    """The commit of a folder, by default the working directory, with "+changes" if files differ from it; None outside a repository."""
    command = ["git", "describe", "--always", "--exclude=*", "--abbrev=40", "--dirty=+changes"]
    environment = os.environ | {"GIT_OPTIONAL_LOCKS": "0"}
    try:
        result = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=5, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return result.stdout.strip()


def clone_commit(package: Path = Path(__file__).parents[1]) -> str | None:
    """The commit of the clone that contains flcog's package at its top; None for an installed package, even inside a repository."""
    root = package.resolve().parent
    return git_commit(root) if (root / ".git").exists() else None


def update_yaml(path: Path, content: Any, permissions: int | None = None) -> None:
    """Write a run's file. If it exists with other contents, as in a resumed run, keep a copy of these."""
    if path.is_file() and path.read_bytes() != as_yaml(content).encode():
        keep_earlier(path)
    write_yaml(path, content, permissions=permissions)


def keep_earlier(path: Path) -> None:
    """Copy a file that is about to change, with its permissions, to the first free number. An identical copy is not repeated."""
    copies = (path.with_name(f"{path.stem}-{number}{path.suffix}") for number in itertools.count(1))
    copy = next(copy for copy in copies if not copy.exists() or copy.read_bytes() == path.read_bytes())
    with replacing(copy, permissions=path.stat().st_mode & 0o777) as file:
        file.write(path.read_bytes())
