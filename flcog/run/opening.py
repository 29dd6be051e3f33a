"""How a run begins: its data, its model, its directory and the right to write there, and what it takes over from a checkpoint."""

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, cast
from weakref import WeakSet

from lightning.fabric import Fabric
from lightning.pytorch.loggers import Logger
from torch import nn

from flcog.assembly import data_modules, set_up
from flcog.client.model import ClientModel, make_client_model
from flcog.core.fabric import processes_of
from flcog.core.processes import Processes
from flcog.data import FederatedDataModule
from flcog.method import Callback, ChangedSetting, Method, Note
from flcog.run import checkpoint, experiment
from flcog.run.branching import check_branch, check_rows, take_over
from flcog.run.directory import LAST, check_run_directory, find_checkpoint, find_round, new_run_directory, run_of
from flcog.run.resuming import check_meant, check_resumable
from flcog.run.session import Session
from flcog.run.trackers import Trackers, check_environment
from flcog.run.writer_lock import WriterLock
from flcog.settings import Settings

_trained: WeakSet[nn.Module] = WeakSet()
"""Models that a run was opened for: another run does not start from new weights."""


class Saved(NamedTuple):
    """A checkpoint that was read: where, and what was in it."""

    path: Path
    content: dict[str, Any]


@dataclass(frozen=True)
class Opening:
    """Opens the session of a trainer's verb. What a checkpoint must agree with is compared before methods exchange any data.

    Args:
        settings: what the user asked of the training.
        methods: in the order in which they act.
        observers: who is told of the run.
        fabric: whose processes have started.
        root: where runs get their directories.
        config: the full configuration, where the command line knows it.
        model: the user's module.
        datamodule: the user's data.
    """

    settings: Settings
    methods: Sequence[Method]
    observers: Sequence[Callback]
    fabric: Fabric
    root: str
    config: dict[str, Any] | None
    model: nn.Module
    datamodule: FederatedDataModule

    def fit(
        self, ckpt_path: str | None, resume_changed: bool, logger: Logger | list[Logger] | bool | None, lock: WriterLock
    ) -> Session:
        """A new run with its directory, or one that goes on in its own.

        Args:
            ckpt_path: the checkpoint from which it goes on.
            resume_changed: whether it may do so with other settings than the checkpoint's; those are shown in the summary.
            logger: its trackers, as the trainer has them.
            lock: which is locked for this run.
        """
        check_environment(logger)
        processes, found = processes_of(self.fabric), self._find(ckpt_path)
        if found is not None and found.is_file():
            check_run_directory(run_of(found))
            _claim(lock, run_of(found), processes)  # before anything is read, which another writer might be about to change
        saved = self._read(found)
        directory = _make_directory(self.root, lock, processes) if saved is None else run_of(saved.path)
        tracker_run = None if saved is None else saved.content["tracker_run"]
        trackers = Trackers(logger, directory, tracker_run) if processes.is_first else Trackers()
        client, described = self._describe()
        notes = [] if saved is None else check_resumable(*saved, self.settings, self.methods, client.tensors, described)
        if saved is not None and not resume_changed:
            check_meant(saved.path, notes)
        run = self._session(client, described, saved, directory, trackers, keep_files=True)
        if saved is not None:
            run.engine.notes.add(*notes)
            run.restore(*saved, resume=True)
        run.record()
        self._note_training(run, anew=saved is None)
        return run

    def branch(self, trunk: str, round: int, logger: Logger | list[Logger] | bool | None, lock: WriterLock) -> Session:
        """A new run with its directory, whose rounds until this one are another run's.

        Args:
            trunk: the other run's directory.
            round: after which it goes its own way.
            logger: its trackers, as the trainer has them.
            lock: which is locked for this run.
        """
        check_environment(logger)
        processes, other = processes_of(self.fabric), Path(trunk).resolve()
        saved = self._read(processes.agree(find_round(other, round, checkpoint.round_of)))
        assert saved is not None
        client, described = self._describe()
        checkpoint.check_same_model(saved.path, saved.content["params"] | saved.content["buffers"], client.tensors)
        check_branch(*saved, self.settings, self.methods, described)
        check_rows(other, round, self.settings)
        directory = _make_directory(self.root, lock, processes)
        trackers = Trackers(logger, directory) if processes.is_first else Trackers()
        run = self._session(client, described, None, directory, trackers, keep_files=True)
        content = take_over(saved.content, other, self.methods, run.server.servers, directory, processes)
        run.restore(saved.path, content, resume=True)
        run.record()
        run.save(directory / LAST)  # so that it goes on like any run, even if it is killed in its first round
        for row in run.history:
            trackers.log_metrics(row)
        self._note_training(run, anew=False)
        return run

    def rounds_by_hand(self, ckpt_path: str | None, keep_files: bool) -> Session:
        """A run without a directory, new or from a checkpoint on.

        Args:
            ckpt_path: the checkpoint.
            keep_files: whether methods may keep what runs can share.
        """
        saved = self._read(self._find(ckpt_path))
        client, described = self._describe()
        notes = [] if saved is None else check_resumable(*saved, self.settings, self.methods, client.tensors, described)
        for note in notes:
            if isinstance(note, ChangedSetting):
                print(f"other numbers than the run's: {note.text}")
        run = self._session(client, described, saved, keep_files=keep_files)
        if saved is not None:
            run.engine.notes.add(*notes)
            run.restore(*saved, resume=True)
        return run

    def evaluation(self, ckpt_path: str | None) -> Session:
        """The model of a checkpoint, or as it is, with all that is needed to evaluate it."""
        saved = self._read(self._find(ckpt_path))
        client, described = self._describe()
        if saved is not None:
            checkpoint.check_same_model(saved.path, saved.content["params"] | saved.content["buffers"], client.tensors)
        run = self._session(client, described, saved, keep_files=True)
        if saved is not None:
            run.restore(*saved, resume=False)
        return run

    def _note_training(self, run: Session, anew: bool) -> None:
        """Remember the model, and note on a run that begins ``anew`` that an earlier one has trained it."""
        if self.model in _trained and anew:
            text = "an earlier fit trained this model, and this one starts from it: make a new one to start anew"
            run.engine.notes.add(Note(text))
        _trained.add(self.model)

    def _find(self, ckpt_path: str | None) -> Path | None:
        """The checkpoint that is meant, the same on every process."""
        if ckpt_path is None:
            return None
        if not isinstance(ckpt_path, str | Path):
            raise ValueError(
                f"ckpt_path is a {type(ckpt_path).__name__}, and it is a checkpoint's path: sets to validate and test on belong to the "
                "data, as in flcog.datamodules.TorchDataset(train, test, val)"
            )
        fits = functools.partial(checkpoint.may_have_methods, names=[method.name for method in self.methods])
        return cast(Path, processes_of(self.fabric).agree(find_checkpoint(ckpt_path, self.root, fits)))

    def _read(self, found: Path | None) -> Saved | None:
        """The checkpoint, if there is one, and then the data."""
        saved = None if found is None else Saved(found, checkpoint.read(found))
        with self.fabric.rank_zero_first(local=True):
            for module in (self.datamodule, *data_modules(self.methods)):
                module.prepare_data()
        self.datamodule.setup("fit")
        return saved

    def _describe(self) -> tuple[ClientModel, dict[str, Any]]:
        """The clients' model, and what makes this experiment: all that is known before methods exchange data."""
        processes = processes_of(self.fabric)
        autocast = functools.partial(self.settings.autocast, processes.device)
        client = make_client_model(self.settings, self.methods, self.model, self.datamodule, processes, autocast)
        module, optimizer = client.function.module, client.optimizer
        return client, experiment.describe(self.settings, self.methods, module, optimizer, self.datamodule, self.config)

    def _session(
        self,
        client: ClientModel,
        described: dict[str, Any],
        saved: Saved | None,
        directory: Path | None = None,
        trackers: Trackers | None = None,
        *,
        keep_files: bool,
    ) -> Session:
        processes, workspace = processes_of(self.fabric), Path(self.root) if keep_files else None
        engine, server = set_up(self.settings, self.methods, client, self.datamodule, processes, workspace)
        checkpoints = saved.path.resolve().parent if saved else directory / "checkpoints" if directory else None
        return Session(
            engine,
            server,
            observers=self.observers,
            experiment=described,
            config=self.config,
            directory=directory,
            clients=None if checkpoints is None else checkpoints / "clients",
            trackers=trackers,
        )


def _make_directory(root: str, lock: WriterLock, processes: Processes) -> Path:
    """A new run's directory under ``root``, which nobody else writes to."""
    directory = Path(processes.agree(str(new_run_directory(root)) if processes.is_first else ""))
    _claim(lock, directory, processes)
    return directory


def _claim(lock: WriterLock, directory: Path, processes: Processes) -> None:
    """Be the only one who writes into a run's directory: the first process, for all of this run."""
    refused = processes.agree(lock.take(directory) if processes.is_first else None)
    if refused is not None:
        raise ValueError(refused)
