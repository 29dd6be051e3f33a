"""Opens a run: reads its checkpoint and data, compares them, makes the session in the run's directory, and restores its state."""

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
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
from flcog.core.processes import Processes
from flcog.core.types import Params
from flcog.core.writer_lock import WriterLock
from flcog.data import FederatedDataModule
from flcog.lightning.trainer import RoundsTrainer
from flcog.method import Callback, Method, Note
from flcog.run import checkpoint, experiment
from flcog.run.assembly import Assembly
from flcog.run.directory import find_checkpoint, new_run_directory, run_of
from flcog.run.hosting import largest_client
from flcog.run.initial_weights import Origin, other_origin
from flcog.run.session import Session
from flcog.run.trackers import Trackers
from flcog.server import privacy
from flcog.settings import Settings

_trained: WeakSet[nn.Module] = WeakSet()
"""Models that were trained: another run does not start from new weights."""


@dataclass(frozen=True)
class Plan:
    """The reason to open a run: to ``fit`` in a directory, to drive rounds ``by hand`` without one, or to ``evaluate``."""

    reason: Literal["fit", "by hand", "evaluate"]
    ckpt_path: str | None = None
    """``auto`` resumes the run of this configuration under the root, or starts one."""
    stage: TrainerFn = TrainerFn.FITTING
    new_clients: bool = False
    """Whether the clients are others than those of the checkpoint, without states."""
    keep_files: bool = True
    """Whether methods may keep files that runs share."""
    resume_changed: bool = False
    logger: Logger | list[Logger] | bool | None = None
    lock: WriterLock = dataclasses.field(default_factory=WriterLock)
    init_from: Origin | None = None
    """The origin of the weights in the model, if they are not the model's own."""


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
    clients: RemoteClients | None
    """The clients, if they run in other processes."""


def open_run(request: Request, plan: Plan) -> Session:
    """The session of a verb. A checkpoint is compared before methods exchange any data and before anything is written."""
    settings, processes, trainer = request.settings, processes_of(request.fabric, request.lightning.together), request.lightning
    path = _find(request, plan, processes)
    saved = None if path is None else checkpoint.read(path)

    trainer.enter(plan.stage, processes)
    _read_data(request, plan)
    trainer.plan(*largest_client(settings, request.datamodule))
    client = make_client_model(settings, request.methods, request.model, request.datamodule, processes, trainer)
    described = experiment.describe(settings, request.methods, client, request.datamodule, request.config)
    if origin := _origin(plan, path, saved):
        described["init_from"] = origin
        if request.config is not None and plan.reason != "evaluate":
            request.config["init_from"] = origin["file"]  # an absolute path, which holds in every folder
    notes = [] if path is None or saved is None else _compare(request, plan, path, saved, client.tensors, described)
    directory = _directory(request, plan, path, processes) if plan.reason == "fit" else None
    trackers = Trackers()
    if directory is not None and processes.is_first:
        trackers = Trackers(plan.logger, directory, None if saved is None else saved["tracker_run"])
    assembly = Assembly(settings, request.methods, client, request.datamodule, processes)
    if request.clients is not None:
        engine, server = assembly.with_clients_elsewhere(request.clients)
    else:
        engine, server = assembly.with_clients_here(Path(request.root) if plan.keep_files else None)
    engine.notes.add(*notes)
    checkpoints = directory / "checkpoints" if directory else path.resolve().parent if path else None
    run = Session(
        engine,
        server,
        observers=request.observers,
        experiment=described,
        config=request.config,
        folder=directory,
        states_folder=None if checkpoints is None else checkpoints / "clients",
        trackers=trackers,
        lightning=trainer,
        datamodule=request.datamodule,
    )
    if path is not None and saved is not None:
        run.restore(path, saved, resume=plan.reason != "evaluate", new_clients=plan.new_clients)
    if plan.reason == "by hand":
        privacy.begin(engine, server)
    if plan.reason == "fit":
        if saved is None and request.model in _trained:
            text = "an earlier fit trained this model, and this one starts from it: make a new one to start anew"
            engine.notes.add(Note("note", text))
        run.record()
        _trained.add(request.model)
    trainer.finish_opening(run)
    return run


def _find(request: Request, plan: Plan, processes: Processes) -> Path | None:
    """The checkpoint to read, the same on every process. To fit, its run is locked before anything is read."""

    def difference(path: Path) -> str:
        if plan.ckpt_path == "auto":
            mine = request.settings, request.methods, request.config, plan.init_from
            return experiment.other_configuration(path, *mine, plan.resume_changed)
        saved = checkpoint.peek(path)
        return experiment.other_run(saved, request.methods) if "methods" in saved else ""

    def find() -> Path | None:
        if plan.reason == "fit" and plan.ckpt_path == "auto":
            with clear_errors(request.root, RUN_REMEDY):
                make_folder(Path(request.root))
            _take(plan.lock, Path(request.root))
        found = None if plan.ckpt_path is None else find_checkpoint(plan.ckpt_path, request.root, difference)
        if plan.reason == "fit" and found is not None and found.is_file():
            _take(plan.lock, run_of(found))
        return found

    return cast(Path | None, processes.decide(find))


def _take(lock: WriterLock, directory: Path) -> None:
    if refused := lock.take(directory):
        raise ValueError(refused)


def _read_data(request: Request, plan: Plan) -> None:
    """Prepare and set up the data, also public data of methods. The user's own hooks of this time see their trainer."""
    request.lightning.show_data(request.datamodule.hooked)
    values = [getattr(method, field.name) for method in request.methods for field in dataclasses.fields(method)]
    with request.fabric.rank_zero_first(local=True):
        for module in (request.datamodule, *(value for value in values if isinstance(value, FederatedDataModule))):
            module.prepare_data()
        if isinstance(request.model, L.LightningModule):
            request.model.trainer = request.lightning
            request.model.prepare_data()
    request.datamodule.setup(plan.stage.value)


def _origin(plan: Plan, path: Path | None, saved: dict[str, Any] | None) -> Origin | None:
    """The origin of the weights with which the run began. A resumed run keeps those of its first start."""
    if saved is None:
        return plan.init_from
    before: Origin | None = saved["experiment"].get("init_from")
    if plan.reason == "fit" and (difference := other_origin(before, plan.init_from, resumes=plan.ckpt_path != "auto")):
        raise ValueError(
            f"{path} was written by a run with other initial weights: {difference}. Give the init_from of that run, or start a new run "
            "without ckpt_path"
        )
    return before


def _compare(
    request: Request, plan: Plan, path: Path, saved: dict[str, Any], tensors: Params, described: dict[str, Any]
) -> list[Note]:
    """Refuse a checkpoint that does not fit. Returns notes for the user."""
    if plan.reason == "evaluate":
        checkpoint.check_same_model(path, saved["params"] | saved["buffers"], tensors)
        return []
    notes = experiment.check_resumable(path, saved, request.settings, request.methods, tensors, described)
    changes = [note.text for note in notes if note.topic == "changed"]
    if plan.reason == "by hand":
        for change in changes:
            print(f"other numbers than the run's: {change}")
    elif changes and not plan.resume_changed:
        raise ValueError(
            f"{path} was written with other settings: {'; '.join(changes)}. Put them back, start a new run without ckpt_path, or set "
            "trainer.resume_changed to true to accept the changes"
        )
    return notes


def _directory(request: Request, plan: Plan, path: Path | None, processes: Processes) -> Path:
    """The directory of a resumed run, or a new one, which is locked."""
    if path is not None:
        return run_of(path)

    def new() -> Path:
        directory = new_run_directory(request.root)
        _take(plan.lock, directory)
        return directory

    return cast(Path, processes.decide(new))
