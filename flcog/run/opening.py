"""Opens a run: prepares its data, model and directory, locks the directory, and restores a checkpoint."""

import functools
from pathlib import Path

from flcog.assembly import data_modules, set_up
from flcog.client.model import make_client_model
from flcog.core.fabric import processes_of
from flcog.run import checkpoint, experiment
from flcog.run.plans import Plan, Request, Saved
from flcog.run.session import Session
from flcog.run.trackers import Trackers, check_environment
from flcog.run.writer_lock import WriterLock
from flcog.server.order import notes_on_order
from flcog.settings import Settings

_trained: WeakSet[nn.Module] = WeakSet()
"""Models that earlier runs have trained, so that another run does not start from new weights."""


class Saved(NamedTuple):
    """A checkpoint that was read: its path and its contents."""

    path: Path
    content: dict[str, Any]


@dataclass(frozen=True)
class Opening:
    """Opens the session of a trainer's verb.

    A checkpoint is compared with the run before methods exchange any data.

    Args:
        settings: the user's settings.
        methods: the methods in calling order.
        observers: the run's observers.
        fabric: Fabric, whose processes have started.
        root: the folder of runs' directories.
        config: the full configuration, if the command line knows it.
        model: the user's module.
        datamodule: the user's data.
    """
    settings, processes = request.settings, processes_of(request.fabric)
    saved = _read(request, plan.find(request, processes))

    autocast = functools.partial(settings.autocast, processes.device)
    client = make_client_model(settings, request.methods, request.model, request.datamodule, processes, autocast)
    module, optimizer = client.function.module, client.optimizer
    described = experiment.describe(settings, request.methods, module, optimizer, request.datamodule, request.config)

    def fit(
        self, ckpt_path: str | None, resume_changed: bool, logger: Logger | list[Logger] | bool | None, lock: WriterLock
    ) -> Session:
        """Open a new run with a new directory, or resume a run in its directory.

        Args:
            ckpt_path: the checkpoint of the resumed run.
            resume_changed: whether the settings may differ from the checkpoint's. The summary shows the changes.
            logger: the trainer's loggers.
            lock: the lock to take for this run.
        """
        check_environment(logger)
        processes, found = processes_of(self.fabric), self._find(ckpt_path)
        if found is not None and found.is_file():
            check_run_directory(run_of(found))
            _claim(lock, run_of(found), processes)  # before reading files that another writer could change
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
        run.engine.notes.add(*notes_on_order(run.engine, run.server))
        run.record()
        self._note_training(run, anew=saved is None)
        return run

    def branch(self, trunk: str, round: int, logger: Logger | list[Logger] | bool | None, lock: WriterLock) -> Session:
        """Open a new run with a new directory, whose first rounds are another run's.

        Args:
            trunk: the other run's directory.
            round: the last shared round.
            logger: the trainer's loggers.
            lock: the lock to take for this run.
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
        run.engine.notes.add(*notes_on_order(run.engine, run.server))
        run.restore(saved.path, content, resume=True)
        run.record()
        run.save(directory / LAST)  # so that it can be resumed even if it is killed in its first round
        for row in run.history:
            trackers.log_metrics(row)
        self._note_training(run, anew=False)
        return run

    def rounds_by_hand(self, ckpt_path: str | None, keep_files: bool) -> Session:
        """Open a run without a directory, new or from a checkpoint.

        Args:
            ckpt_path: the checkpoint.
            keep_files: whether methods may write files that other runs can reuse.
        """
        saved = self._read(self._find(ckpt_path))
        client, described = self._describe()
        notes = [] if saved is None else check_resumable(*saved, self.settings, self.methods, client.tensors, described)
        for note in notes:
            if isinstance(note, ChangedSetting):
                print(f"other numbers than the run's: {note.text}")
        run = self._session(client, described, saved, keep_files=keep_files)
        run.engine.notes.add(*notes_on_order(run.engine, run.server))
        if saved is not None:
            run.engine.notes.add(*notes)
            run.restore(*saved, resume=True)
        return run

    def evaluation(self, ckpt_path: str | None) -> Session:
        """Open a run to evaluate the model of a checkpoint, or the model as it is."""
        saved = self._read(self._find(ckpt_path))
        client, described = self._describe()
        if saved is not None:
            checkpoint.check_same_model(saved.path, saved.content["params"] | saved.content["buffers"], client.tensors)
        run = self._session(client, described, saved, keep_files=True)
        if saved is not None:
            _restore_to_evaluate(run, saved)
        return run

    def _note_training(self, run: Session, anew: bool) -> None:
        """Remember the model. Add a note to a new run if an earlier run has trained its model."""
        if self.model in _trained and anew:
            text = "an earlier fit trained this model, and this one starts from it: make a new one to start anew"
            run.engine.notes.add(Note(text))
        _trained.add(self.model)

    def _find(self, ckpt_path: str | None) -> Path | None:
        """Find the checkpoint, the same on every process."""
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
        """Read the checkpoint, if there is one, and prepare the data."""
        saved = None if found is None else Saved(found, checkpoint.read(found))
        with self.fabric.rank_zero_first(local=True):
            for module in (self.datamodule, *data_modules(self.methods)):
                module.prepare_data()
        self.datamodule.setup("fit")
        return saved

    def _describe(self) -> tuple[ClientModel, dict[str, Any]]:
        """Make the clients' model, and describe the experiment before methods exchange data."""
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


def _restore_to_evaluate(run: Session, saved: Saved) -> None:
    """Restore a checkpoint. Read it again if its run, which is still training, has replaced it and removed its clients' states."""
    try:
        run.restore(*saved, resume=False)
    except ValueError:
        now = Saved(saved.path, checkpoint.read(saved.path))
        if now.content["round"] == saved.content["round"]:
            raise
        _restore_to_evaluate(run, now)


def _make_directory(root: str, lock: WriterLock, processes: Processes) -> Path:
    """Make a new run's directory under ``root``, and lock it."""
    directory = Path(processes.agree(str(new_run_directory(root)) if processes.is_first else ""))
    _claim(lock, directory, processes)
    return directory


def _claim(lock: WriterLock, directory: Path, processes: Processes) -> None:
    """Lock a run's directory in the first process, on behalf of all processes."""
    refused = processes.agree(lock.take(directory) if processes.is_first else None)
    if refused is not None:
        raise ValueError(refused)
