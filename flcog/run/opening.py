"""How a run begins: its directory, the right to write there, and what it takes over from a checkpoint."""

from pathlib import Path
from typing import Any

from flcog.core.processes import Processes
from flcog.hooks import Note
from flcog.run.directory import new_run_directory
from flcog.run.session import Session
from flcog.run.writer_lock import WriterLock


def make_directory(root: str, lock: WriterLock, processes: Processes) -> Path:
    """A new run's directory under ``root``, which nobody else writes to."""
    directory = Path(processes.agree(str(new_run_directory(root)) if processes.is_first else ""))
    claim(lock, directory, processes)
    return directory


def claim(lock: WriterLock, directory: Path, processes: Processes) -> None:
    """Be the only one who writes into a run's directory: the first process, for all of this run."""
    refused = processes.agree(lock.take(directory) if processes.is_first else None)
    if refused is not None:
        raise ValueError(refused)


def go_on(run: Session, found: Path, saved: dict[str, Any], changed: bool) -> None:
    """Take over a checkpoint of the same experiment.

    Args:
        run: which goes on.
        found: where the checkpoint was read.
        saved: what was in it.
        changed: whether settings may differ from the checkpoint's; those that do are shown in the summary.
    """
    changes = run.check_resumable(found, saved)
    if changes and not changed:
        raise ValueError(
            f"{found} was written with other settings: {'; '.join(changes)}. Put them back, start a new run without ckpt_path, "
            "or set trainer.resume_changed to true to go on with the changes"
        )
    run.engine.notes.extend(Note("changed", change) for change in changes)
    run.restore(found, saved, resume=True)
