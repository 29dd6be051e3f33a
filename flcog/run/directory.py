"""A run's directory: its name, its YAML files, its metrics.csv, and the checkpoint to resume from."""

import csv
import importlib.metadata
import io
import itertools
import os
import platform
import shlex
import sys
import time
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import yaml

from flcog.core.files import RUN_REMEDY, append, as_yaml, make_folder, replacing, short, write_table, write_yaml
from flcog.core.git import clone_commit, git_commit
from flcog.core.masking import masked_command
from flcog.run.metrics_rows import read_rows
from flcog.run.round_order import fault_in

LAST = "checkpoints/last.ckpt"
STATES = "checkpoints/clients"
"""The folder of the clients' states."""


def new_run_directory(root: str | Path) -> Path:
    """Make a new directory under ``root``, named after the current time."""
    root = Path(root)
    stamp = time.strftime("%Y%m%d-%H%M%S")
    for attempt in range(1000):
        path = root / (stamp if attempt == 0 else f"{stamp}-{attempt}")
        try:
            make_folder(root)
            path.mkdir()
        except FileExistsError:
            if path.is_dir():
                continue
            raise ValueError(
                f"cannot write runs under {root}: {path} is a file; choose another trainer.default_root_dir"
            ) from None
        except OSError as error:
            raise ValueError(
                f"cannot write runs under {root}: {error.strerror}; choose another trainer.default_root_dir"
            ) from error
        return path
    raise ValueError(f"a thousand runs started this second under {root}: try again, or choose another trainer.default_root_dir")


def find_checkpoint(ckpt_path: str | Path, root: str | Path, difference: Callable[[Path], str | None]) -> Path:
    """Find the checkpoint for ``ckpt_path``: a file, a run's directory, or "last" or "best" of the newest run under ``root`` without
    a ``difference``.

    Args:
        ckpt_path: the user's argument.
        root: the folder of runs' directories.
        difference: describes how the methods of a checkpoint's run differ from this run's; None for the same methods.
    """
    if str(ckpt_path) in ("last", "best"):
        runs = _newest_first(root)
        newest = next((run for run in runs if difference(run) is None), None)
        if newest is None:
            others = f" of a run with these methods (the newest, {short(run_of(runs[0]))}, {difference(runs[0])})" if runs else ""
            raise ValueError(
                f"ckpt_path={ckpt_path}: no run under {root} has a checkpoint{others}; give a file, or start without ckpt_path"
            )
        return newest.with_name(f"{ckpt_path}.ckpt")
    path = Path(ckpt_path)
    return path / LAST if path.is_dir() else path


def find_same_run(root: str | Path, difference: Callable[[Path], str | None]) -> Path | None:
    """Find the last checkpoint of the newest run under ``root`` without a ``difference``. None if ``root`` has no checkpoint.

    Args:
        root: the folder of runs' directories.
        difference: describes the difference between a checkpoint's run and this run; None for the same configuration.
    """
    differences = {}
    for path in _newest_first(root):
        differences[path] = difference(path)
        if differences[path] is None:
            return path
    if differences:
        newest, reason = next(iter(differences.items()))
        raise ValueError(
            f"ckpt_path=auto: {root} has no run of this configuration, and its newest, {short(run_of(newest))}, differs: {reason}. "
            "Choose another trainer.default_root_dir, or leave ckpt_path out to start a run beside it"
        )
    return None


def _newest_first(root: str | Path) -> list[Path]:
    """The last checkpoints of the runs under ``root``."""
    return sorted(Path(root).glob(f"*/{LAST}"), key=lambda path: path.stat().st_mtime_ns, reverse=True)


def kept_checkpoint(run: Path, round: int) -> Path:
    """Return the path of a round's checkpoint, if the run keeps it."""
    return run / "checkpoints" / f"round-{round:06d}.ckpt"


def run_of(checkpoint: Path) -> Path:
    """Return the directory of the run that wrote a checkpoint."""
    folder = checkpoint.resolve().parent
    if folder.name != Path(LAST).parent.name:
        raise ValueError(
            f"{checkpoint} lies outside a run's directory, where its metrics and its clients' states would be: give the run's "
            "directory, or the file inside its checkpoints folder (flcog test takes a checkpoint from anywhere)"
        )
    return folder.parent


def check_run_directory(run: Path) -> None:
    """Refuse to write into a folder that is not a run's directory, or that contains symbolic links to other places."""
    try:
        record = yaml.safe_load((run / "run.yaml").read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError, yaml.YAMLError):
        record = None
    if not isinstance(record, dict) or not {"methods", "seed"} <= record.keys():
        raise ValueError(
            f"{short(run)} is not a run's directory, because it has no valid run.yaml, and flcog writes nothing there: resume from "
            "a checkpoint in the run's own directory"
        )
    refuse_links(run)


def refuse_links(run: Path) -> None:
    """Refuse symbolic links among a run's files, because flcog would overwrite files in other places."""
    for folder in (run, run / "checkpoints", run / STATES, run / "figures"):
        for path in sorted(folder.iterdir()) if folder.is_dir() else ():
            own_file(folder, path.name)


def refuse_links_out(folder: Path, run: Path) -> None:
    """Refuse symbolic links in a tracker's folder that lead out of the run's directory. Links inside the directory are allowed.

    Below ``wandb`` all are allowed. W&B makes links to the files that it is to upload, and a resumed run writes to a new folder there.
    """
    if not folder.is_relative_to(run):
        return
    for place, folders, names in os.walk(folder):
        if Path(place) == run and "wandb" in folders:
            folders.remove("wandb")
        for name in (*folders, *names):
            path = Path(place, name)
            if path.is_symlink() and not path.resolve().is_relative_to(run.resolve()):
                own_file(path.parent, name)


def own_file(folder: Path, name: str) -> Path:
    """Return the path of a file in a folder of a run. Refuses symbolic links."""
    path = folder / name
    if path.is_symlink():
        raise ValueError(
            f"{short(path)} is a symbolic link to {os.readlink(path)}, and flcog writes a run's files in its directory alone: "
            "remove the link, or put the file or folder itself in its place"
        )
    return path


def next_command(verb: str, run: Path, checkpoint: Path, config: Mapping[str, Any] | None) -> str:
    """Return the command that fits, tests or validates from a run's checkpoint (or directory), for the shell or for Python.

    Args:
        verb: of the trainer.
        run: the run's directory.
        checkpoint: the checkpoint, or the directory.
        config: the configuration, if the command line knows it. The classes of a user's own script are not part of it.
    """
    whole = all("class_path" in ((config or {}).get(part) or {}) for part in ("model", "data"))
    # A script with run=False has no verb on its command line, and calls the trainer's.
    has_verb = bool({"fit", "validate", "test", "predict"} & set(sys.argv[1:]))
    if config is None or not (whole or has_verb):
        return f"trainer.{verb}(model, datamodule, ckpt_path={str(short(checkpoint))!r})"
    prefix = ["uv", "run"] if "UV_RUN_RECURSION_DEPTH" in os.environ else []  # under `uv run` the user's own shell knows no flcog
    program = ["flcog"] if whole else ["python", sys.argv[0]]
    return shlex.join([*prefix, *program, verb, "-c", str(short(run / "config.yaml")), "--ckpt_path", str(short(checkpoint))])


class MetricsTable:
    """``metrics.csv``: one row per round, flushed to the disk after each row. A new column rewrites the file."""

    def __init__(self, path: Path | None) -> None:
        self.path, self.rows, self.columns = path, [], []  # type: tuple[Path | None, list[dict[str, float]], list[str]]

    def load(self, rounds: int) -> None:
        """Load the rows of the first ``rounds`` rounds.

        Later rounds are not in the checkpoint and will be run again. If rounds are missing, double or damaged, this warns, keeps
        a copy of the file, and uses the last row of each round before the damage.
        """
        self.rows, damage = read_rows(self.path) if self.path is not None and self.path.is_file() else ([], None)
        # A power cut can leave half a line at the end. Its round is run again.
        if self.path is not None and (fault := fault_in([row["round"] for row in self.rows], rounds)):
            fault = f"{damage}, and {fault}" if damage else fault
            kept = f"; it is kept as {keep_earlier(self.path).name}" if self.path.is_file() else ""
            warnings.warn(
                f"{short(self.path)}: {fault}{kept}, and the run continues with the last row of each round", stacklevel=2
            )
        last = {row["round"]: row for row in self.rows}
        self.rows = [last[round] for round in sorted(last) if round <= rounds]
        self.columns = list(dict.fromkeys(name for row in self.rows for name in row))
        self._rewrite()

    def append(self, row: dict[str, float]) -> None:
        self.rows.append(row)
        new = [name for name in row if name not in self.columns]
        if new or len(self.rows) == 1:
            self.columns += new
            self._rewrite()
        elif self.path is not None:
            line = io.StringIO()
            csv.DictWriter(line, self.columns).writerow(row)
            append(self.path, line.getvalue(), RUN_REMEDY)

    def _rewrite(self) -> None:
        if self.path is not None and self.columns:
            write_table(self.path, self.rows, self.columns, RUN_REMEDY)


def environment(accelerator: str | None) -> dict[str, Any]:
    """Describe the environment of a result: versions, the commit, the machine, the command.

    Args:
        accelerator: the name of the accelerator on which the run trains; None for a CPU.
    """
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


def update_yaml(path: Path, content: Any, permissions: int | None = None) -> None:
    """Write a run's file. If it exists with other contents, as in a resumed run, keep a copy of these."""
    if path.is_file():
        if path.read_bytes() == as_yaml(content).encode():
            return
        keep_earlier(path)
    write_yaml(path, content, permissions=permissions)


def keep_earlier(path: Path) -> Path:
    """Copy a file that is about to change, with its permissions, to the first free number. An identical copy is not repeated."""
    for number in itertools.count(1):
        copy = path.with_name(f"{path.stem}-{number}{path.suffix}")
        if not copy.exists():
            with replacing(copy, permissions=path.stat().st_mode & 0o777) as file:
                file.write(path.read_bytes())
            return copy
        if copy.read_bytes() == path.read_bytes():
            return copy
    raise AssertionError
