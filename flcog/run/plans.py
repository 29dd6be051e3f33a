"""The three reasons to open a run: to fit, to drive rounds by hand, and to evaluate.

A plan chooses the checkpoint, compares it with the run, chooses the run's directory, and restores the state.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, cast
from weakref import WeakSet

from lightning.fabric import Fabric
from lightning.pytorch.loggers import Logger
from lightning.pytorch.trainer.states import TrainerFn
from torch import nn

from flcog.client.model import ClientModel
from flcog.client.remote import RemoteClients
from flcog.core.files import RUN_REMEDY, clear_errors, make_folder
from flcog.core.processes import Processes
from flcog.core.writer_lock import WriterLock
from flcog.data import FederatedDataModule
from flcog.lightning.trainer import RoundsTrainer
from flcog.method import Callback, Method, Note
from flcog.run import checkpoint, experiment
from flcog.run.directory import find_checkpoint, find_same_run, new_run_directory, run_of
from flcog.run.initial_weights import Origin, other_origin
from flcog.run.session import Session
from flcog.run.trackers import Trackers
from flcog.server import privacy
from flcog.settings import Settings

_trained: WeakSet[nn.Module] = WeakSet()
"""Models that were trained: another run does not start from new weights."""


@dataclass(frozen=True)
class Request:
    """The user's arguments of the trainer and its verb."""

    settings: Settings
    methods: Sequence[Method]
    observers: Sequence[Callback]
    fabric: Fabric
    """Its processes have started."""
    root: str
    config: dict[str, Any] | None
    """The full configuration, if the command line knows it."""
    model: nn.Module
    datamodule: FederatedDataModule
    lightning: RoundsTrainer
    clients: RemoteClients | None = None
    """The clients, if they run in other processes."""


class CheckpointFile(NamedTuple):
    """A checkpoint that was read."""

    path: Path
    content: dict[str, Any]


@dataclass
class Plan:
    """How a verb opens a run."""

    ckpt_path: str | None
    keep_files, trains, stage = True, True, TrainerFn.FITTING
    """Whether methods may keep files that runs share, whether the run trains, and the stage of the hook ``setup``."""

    def find(self, request: Request, processes: Processes) -> Path | None:
        """The checkpoint to read, the same on every process."""
        if self.ckpt_path is None:
            return None

        def difference(path: Path) -> str:
            saved = checkpoint.peek(path)
            return experiment.other_run(saved, request.methods) if "methods" in saved else ""

        return cast(Path, processes.agree(find_checkpoint(self.ckpt_path, request.root, difference)))

    def origin(self, saved: CheckpointFile | None) -> Origin | None:
        """The origin of the weights with which the run began."""
        return None if saved is None else saved.content["experiment"].get("init_from")

    def check(self, request: Request, saved: CheckpointFile, client: ClientModel, described: Mapping[str, Any]) -> list[Note]:
        """Refuse a checkpoint that does not fit. Returns notes for the user."""
        checkpoint.check_same_model(saved.path, saved.content["params"] | saved.content["buffers"], client.tensors)
        return []

    def directory(self, request: Request, saved: CheckpointFile | None, processes: Processes) -> Path | None:
        """The run's directory; None if nothing is written."""
        return None

    def trackers(self, saved: CheckpointFile | None, directory: Path | None) -> Trackers:
        """The trackers of the first process."""
        return Trackers()

    def restore(self, request: Request, run: Session, saved: CheckpointFile | None) -> None:
        """Take over the checkpoint."""
        if saved is not None:
            run.restore(*saved, resume=False)


@dataclass
class EvaluationPlan(Plan):
    """Load a checkpoint's model, or take the model as it is, to evaluate it, in the stage of the trainer's verb."""

    stage: TrainerFn
    trains = False


@dataclass
class ByHandPlan(Plan):
    """Start or resume a run without a directory, whose rounds the user drives."""

    keep_files: bool

    def check(self, request: Request, saved: CheckpointFile, client: ClientModel, described: Mapping[str, Any]) -> list[Note]:
        notes = experiment.check_resumable(*saved, request.settings, request.methods, client.tensors, described)
        for note in notes:
            if note.topic == "changed":
                print(f"other numbers than the run's: {note.text}")
        return notes

    def restore(self, request: Request, run: Session, saved: CheckpointFile | None) -> None:
        if saved is not None:
            run.restore(*saved, resume=True)
        privacy.begin(run.engine, run.server)


@dataclass
class FitPlan(Plan):
    """Train a new run in its own directory, or resume a run in its directory.

    ``ckpt_path="auto"`` resumes the run of this configuration under the root, or starts one.
    """

    resume_changed: bool
    logger: Logger | list[Logger] | bool | None
    lock: WriterLock
    init_from: Origin | None
    """The origin of the weights in the model, if they are not the model's own."""

    def find(self, request: Request, processes: Processes) -> Path | None:
        if self.ckpt_path == "auto":
            found = cast(Path | None, processes.decide(lambda: self._find_same_run(request)))
        else:
            found = super().find(request, processes)
        if found is not None and found.is_file():
            # Before anything is read, or another writer might change it meanwhile.
            processes.decide(lambda: _take(self.lock, run_of(found)))
        return found

    def _find_same_run(self, request: Request) -> Path | None:
        """Take the lock of all runs under the root, and find the run of this configuration, if there is one."""
        root = Path(request.root)
        with clear_errors(root, RUN_REMEDY):
            make_folder(root)
        _take(self.lock, root)
        mine = request.settings, request.methods, request.config, self.init_from
        return find_same_run(root, lambda path: experiment.other_configuration(path, *mine, self.resume_changed))

    def origin(self, saved: CheckpointFile | None) -> Origin | None:
        if saved is None:
            return self.init_from
        before = super().origin(saved)
        if difference := other_origin(before, self.init_from, resumes=self.ckpt_path != "auto"):
            raise ValueError(
                f"{saved.path} was written by a run with other initial weights: {difference}. Give the init_from of that run, or start "
                "a new run without ckpt_path"
            )
        return before

    def check(self, request: Request, saved: CheckpointFile, client: ClientModel, described: Mapping[str, Any]) -> list[Note]:
        notes = experiment.check_resumable(*saved, request.settings, request.methods, client.tensors, described)
        changes = [note.text for note in notes if note.topic == "changed"]
        if changes and not self.resume_changed:
            raise ValueError(
                f"{saved.path} was written with other settings: {'; '.join(changes)}. Put them back, start a new run without ckpt_path, "
                "or set trainer.resume_changed to true to accept the changes"
            )
        return notes

    def directory(self, request: Request, saved: CheckpointFile | None, processes: Processes) -> Path | None:
        if saved is not None:
            return run_of(saved.path)
        directory = Path(processes.decide(lambda: str(new_run_directory(request.root))))
        processes.decide(lambda: _take(self.lock, directory))
        return directory

    def trackers(self, saved: CheckpointFile | None, directory: Path | None) -> Trackers:
        assert directory is not None
        return Trackers(self.logger, directory, None if saved is None else saved.content["tracker_run"])

    def restore(self, request: Request, run: Session, saved: CheckpointFile | None) -> None:
        if saved is not None:
            run.restore(*saved, resume=True)
        elif request.model in _trained:
            text = "an earlier fit trained this model, and this one starts from it: make a new one to start anew"
            run.engine.notes.add(Note("note", text))
        run.record()
        _trained.add(request.model)


def _take(lock: WriterLock, directory: Path) -> None:
    if refused := lock.take(directory):
        raise ValueError(refused)
