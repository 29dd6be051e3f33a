"""Opens a run: reads its checkpoint and data, compares them, makes the session in the run's directory, and restores its state."""

from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Literal, cast
from weakref import WeakSet

import lightning as L
from lightning.fabric import Fabric
from lightning.pytorch.loggers import Logger
from lightning.pytorch.trainer.states import TrainerFn
from torch import nn

from flcog.client.model import make_client_model
from flcog.client.remote import RemoteClients
from flcog.core.fabric import processes_of
from flcog.core.files import RUN_REMEDY, clear_errors, make_folder
from flcog.core.types import Params
from flcog.core.writer_lock import WriterLock
from flcog.data import FederatedDataModule
from flcog.lightning.trainer import RoundsTrainer
from flcog.method import Callback, Method, Note
from flcog.run import checkpoint, experiment
from flcog.run.assembly import Assembly
from flcog.run.directory import find_checkpoint, new_run_directory, run_of
from flcog.run.hosting import largest_client
from flcog.run.session import Session
from flcog.run.trackers import Trackers
from flcog.server import privacy
from flcog.settings import Settings

_trained: WeakSet[nn.Module] = WeakSet()
"""Models that were trained: another run does not start from new weights."""


@dataclass(frozen=True, kw_only=True)
class Opening:
    """Opens a run for a verb of the trainer: to ``fit`` in a directory, to drive rounds ``by hand`` without one, or to ``evaluate``."""

    reason: Literal["fit", "by hand", "evaluate"]
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
    trainer: RoundsTrainer
    clients: RemoteClients | None
    """The clients, if they run in other processes."""
    stage: TrainerFn
    new_clients: bool
    """Whether the clients are others than those of the checkpoint, without states."""
    resume_changed: bool
    logger: Logger | list[Logger] | bool | None
    ckpt_path: str | None = None
    """``auto`` resumes the run of this configuration under the root, or starts one."""
    keep_files: bool = True
    """Whether methods may keep files that runs share."""
    lock: WriterLock = field(default_factory=WriterLock)
    init_from: str | None = None
    """The absolute path of the file with the weights in the model, if they are not the model's own."""

    def open(self) -> Session:
        """The session. A checkpoint is compared before methods exchange any data and before anything is written."""
        processes, trainer, fits = processes_of(self.fabric, self.trainer.together), self.trainer, self.reason == "fit"
        path = cast(Path | None, processes.decide(self._find))
        saved = {} if path is None else checkpoint.read(path)

        trainer.enter(self.stage, processes)
        self._read_data()
        trainer.plan(*largest_client(self.settings, self.datamodule))
        client = make_client_model(self.settings, self.methods, self.model, self.datamodule, processes, trainer)
        described = experiment.describe(self.settings, self.methods, client, self.datamodule, self.config)
        if origin := self._origin(path, saved):
            described["init_from"] = origin
            if self.config is not None and self.reason != "evaluate":
                self.config["init_from"] = origin
        notes = [] if path is None else self._compare(path, saved, client.tensors, described)
        directory = cast(Path, processes.decide(self._new_directory) if path is None else run_of(path)) if fits else None
        trackers = Trackers()
        if directory is not None and processes.is_first:
            trackers = Trackers(self.logger, directory, saved.get("tracker_run"))
        assembly = Assembly(self.settings, self.methods, client, self.datamodule, processes)
        if self.clients is not None:
            engine, server = assembly.with_clients_elsewhere(self.clients)
        else:
            engine, server = assembly.with_clients_here(Path(self.root) if self.keep_files else None)
        engine.notes.add(*notes)
        checkpoints = directory / "checkpoints" if directory else path.resolve().parent if path else None
        run = Session(
            engine,
            server,
            observers=self.observers,
            experiment=described,
            config=self.config,
            folder=directory,
            states_folder=None if checkpoints is None else checkpoints / "clients",
            trackers=trackers,
            lightning=trainer,
            datamodule=self.datamodule,
        )
        if path is not None:
            run.restore(path, saved, resume=self.reason != "evaluate", new_clients=self.new_clients)
        if self.reason == "by hand":
            privacy.begin(engine, server)
        if fits:
            if path is None and self.model in _trained:
                text = "an earlier fit trained this model, and this one starts from it: make a new one to start anew"
                engine.notes.add(Note("note", text))
            run.record()
            _trained.add(self.model)
        trainer.finish_opening(run)
        return run

    def _find(self) -> Path | None:
        """The checkpoint to read. To fit, its run is locked before anything is read."""

        def difference(path: Path) -> str:
            if self.ckpt_path == "auto":
                mine = self.settings, self.methods, self.config, self.init_from
                return experiment.other_configuration(path, *mine, self.resume_changed)
            saved = checkpoint.peek(path)
            return experiment.other_run(saved, self.methods) if "methods" in saved else ""

        fits = self.reason == "fit"
        if fits and self.ckpt_path == "auto":
            with clear_errors(self.root, RUN_REMEDY):
                make_folder(Path(self.root))
            self.lock.take(Path(self.root))
        found = None if self.ckpt_path is None else find_checkpoint(self.ckpt_path, self.root, difference)
        if fits and found is not None and found.is_file():
            self.lock.take(run_of(found))
        return found

    def _new_directory(self) -> Path:
        directory = new_run_directory(self.root)
        self.lock.take(directory)
        return directory

    def _read_data(self) -> None:
        """Prepare and set up the data, also public data of methods. The user's own hooks of this time see their trainer."""
        self.trainer.show_data(self.datamodule.hooked)
        values = [getattr(method, field.name) for method in self.methods for field in fields(method)]
        with self.fabric.rank_zero_first(local=True):
            for module in (self.datamodule, *(value for value in values if isinstance(value, FederatedDataModule))):
                module.prepare_data()
            if isinstance(self.model, L.LightningModule):
                self.model.trainer = self.trainer
                self.model.prepare_data()
        self.datamodule.setup(self.stage.value)

    def _origin(self, path: Path | None, saved: dict[str, Any]) -> str | None:
        """The file of the weights with which the run began. A resumed run keeps those of its first start."""
        if path is None:
            return self.init_from
        before: str | None = saved["experiment"].get("init_from")
        repeats = self.init_from == before or (self.init_from is None and self.ckpt_path != "auto")
        if self.reason == "fit" and not repeats:
            raise ValueError(
                f"{path} was written by a run whose init_from was {before}, and now it is {self.init_from}: give the same, or start a new "
                "run without ckpt_path"
            )
        return before

    def _compare(self, path: Path, saved: dict[str, Any], tensors: Params, described: dict[str, Any]) -> list[Note]:
        """Refuse a checkpoint that does not fit. Returns notes for the user."""
        if self.reason == "evaluate":
            checkpoint.check_same_model(path, saved["params"] | saved["buffers"], tensors)
            return []
        notes = experiment.check_resumable(path, saved, self.settings, self.methods, tensors, described)
        changes = [note.text for note in notes if note.topic == "changed"]
        if self.reason == "by hand":
            for change in changes:
                print(f"other numbers than the run's: {change}")
        elif changes and not self.resume_changed:
            raise ValueError(
                f"{path} was written with other settings: {'; '.join(changes)}. Put them back, start a new run without ckpt_path, or set "
                "trainer.resume_changed to true to accept the changes"
            )
        return notes
