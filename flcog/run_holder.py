"""Opens the runs of a trainer, and shows the last one."""

import functools
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar, cast

import lightning as L
from lightning.pytorch.loggers import Logger
from lightning.pytorch.trainer.states import TrainerFn
from torch import nn
from torch.utils.data import DataLoader, Dataset

from flcog.assembly import data_modules
from flcog.client.lightning_hooks import check_hooks
from flcog.client.messages import ClientsElsewhere
from flcog.core import lost_processes
from flcog.core.allocations import keep_allocations
from flcog.core.fabric import launch
from flcog.core.files import short
from flcog.core.lightning_packages import lightning_base
from flcog.core.topic_list import TopicList
from flcog.data import FederatedDataModule
from flcog.lightning_attributes import LightningAttributes
from flcog.run.description import describe_method, local_work
from flcog.run.directory import LAST, next_command
from flcog.run.observers.progress import score
from flcog.run.opening import open_run
from flcog.run.outside_fit import outside_fit
from flcog.run.plans import EvaluationPlan, Plan, Request
from flcog.run.session import Session
from flcog.settings import Settings
from flcog.trainer_arguments import TrainerArguments

Data = FederatedDataModule | L.LightningDataModule | Dataset | DataLoader
"""Data to train on: flcog's data modules, and types that are wrapped as one."""

Verb = TypeVar("Verb", bound=Callable[..., Any])


class RunHolder(TrainerArguments, LightningAttributes, TopicList):
    """Opens a trainer's runs, and shows the last one: its model, history, directory and trackers."""

    config: dict[str, Any] | None = None
    """The full configuration, if the command line knows it."""
    _clients: ClientsElsewhere | None = None
    _session: Session | None = None
    _trained: tuple[nn.Module, Any] | None = None
    """The model and the data of the last run."""
    _launched = False

    def _topics(self) -> Iterator[tuple[str, str]]:
        settings, done = self.settings, 0 if self._session is None else self._session.round
        yield "rounds", f"{settings.rounds:,}" + (f", {done:,} of them done" if done else "")
        some = settings.clients_per_round
        yield "clients", "all in each round" if isinstance(some, float) and some == 1 else f"{some} in each round"
        yield "local work", local_work(settings)
        yield "methods", " + ".join(map(describe_method, self.methods)) or "none: plain FedAvg"
        evaluated = next(filter(None, map(score, reversed(self.history))), None)
        if evaluated is not None:
            yield "result", evaluated
        if self.run_dir is not None:
            yield "run", str(short(self.run_dir))

    @property
    def run(self) -> Session:
        """The current run, or the last one."""
        if self._session is None:
            raise ValueError("this trainer has no run yet: call fit, or prepare")
        return self._session

    @property
    def model(self) -> L.LightningModule:
        """The trained module with the global weights as they are evaluated: the user's module, with the changes of methods."""
        self.run.engine.hand_over(self.run.server, self.run.evaluated_params())
        return self.run.model.module

    @property
    def history(self) -> list[dict[str, float]]:
        """One row per round: the rows of ``metrics.csv``."""
        return self._session.history if self._session is not None else []

    @property
    def run_dir(self) -> Path | None:
        """The directory of the run, or None if it has none."""
        return self._session.directory if self._session is not None and self._session.has_directory else None

    @property
    def loggers(self) -> list[Logger]:
        """The run's trackers. W&B offline, with no other beside it, is open from the first round's row on."""
        if self._session is not None:
            return self._session.trackers.loggers
        given = self.given_logger if isinstance(self.given_logger, Sequence) else [self.given_logger]
        return [logger for logger in given if lightning_base(logger, "Logger")]  # type: ignore[misc]

    @property
    def logger(self) -> Logger | None:
        """The first tracker, as ``lightning.Trainer`` has it."""
        return next(iter(self.loggers), None)

    @logger.setter
    def logger(self, given: Logger | list[Logger] | bool | None) -> None:
        self.given_logger = given

    def connect(self, clients: ClientsElsewhere) -> None:
        """Let the clients of all later runs of this trainer live in other processes.

        Args:
            clients: sends the trainer's messages to the processes of :func:`flcog.hosting.host_clients`, which train, evaluate and keep
                the data. ``docs/scaling.md`` has an example.
        """
        self._clients = clients

    def _open(self, model: nn.Module, datamodule: Any, plan: Plan, settings: Settings | None = None) -> Session:
        """Start the processes, refuse hooks that would never be called, and open a run."""
        if not isinstance(datamodule, FederatedDataModule):
            from flcog.datamodules.wrapping import federated

            datamodule = federated(datamodule)
        if not self._launched:
            launch(self.fabric, self.num_nodes)
            self._launched = True
        keep_allocations()
        check_hooks(model, (datamodule, *data_modules(self.methods)), warn=self.fabric.is_global_zero)
        request = Request(
            settings=settings or self.settings,
            methods=self.methods,
            observers=self.observers,
            fabric=self.fabric,
            root=self.default_root_dir,
            config=self.config,
            model=model,
            datamodule=datamodule,
            clients=self._clients,
        )
        return open_run(request, plan)

    @contextmanager
    def _evaluation(
        self, stage: TrainerFn, model: nn.Module | None, datamodule: Data | None, ckpt_path: str | None
    ) -> Iterator[Session]:
        """A run to evaluate in the stage of a verb, with the hooks around it."""
        run = self._run_to_evaluate(model, datamodule, ckpt_path, stage)
        with outside_fit(self._lightning, run, stage, again=run is self._session):
            yield run

    def _run_to_evaluate(
        self, model: nn.Module | None, datamodule: Data | None, ckpt_path: str | None, stage: TrainerFn = TrainerFn.FITTING
    ) -> Session:
        """Open a run to evaluate a checkpoint or a model as it is. A model or data that are left out are those of the last run.

        As in Lightning, ``best``, or neither a model nor a checkpoint, is the best checkpoint of a ``ModelCheckpoint``, if there is one.
        """
        if ckpt_path == "best" or (ckpt_path is None and model is None):
            ckpt_path = getattr(getattr(self, "checkpoint_callback", None), "best_model_path", None) or ckpt_path
        if model is None and datamodule is None and ckpt_path is None:
            return self.run
        if model is None or datamodule is None:
            self.run.engine.hand_over(self.run.server, self.run.evaluated_params())
            assert self._trained is not None
            model, datamodule = model or self._trained[0], self._trained[1] if datamodule is None else datamodule
        run = self._open(model, datamodule, EvaluationPlan(ckpt_path, stage))
        self._as_lightning("run").follow(self._session, self.loggers)
        return run

    def _how_to_go_on(self) -> str:
        """The advice about a run that was cut off."""
        if self.run_dir is None or not (self.run_dir / LAST).is_file():
            return "start again, for there is no checkpoint yet"
        return "go on with " + next_command("fit", self.run_dir, self.run_dir, self.config)


def takes_loaders(verb: Verb) -> Verb:
    """Let a verb take loaders, too: ``fit(model, train_loader, val_loader)``, as ``lightning.Trainer`` does."""

    @functools.wraps(verb)
    def wrapped(self: RunHolder, *args: Any, **kwargs: Any) -> Any:
        from flcog.datamodules.loaders import with_datamodule

        some = self.settings.clients_per_round
        last = self._trained[1] if self._trained is not None and self._session is not None else None
        args, kwargs = with_datamodule(verb.__name__, args, kwargs, some if isinstance(some, int) else 1, last)
        return verb(self, *args, **kwargs)

    return cast(Verb, wrapped)


def in_precision(verb: Verb) -> Verb:
    """Run a verb in the run's precision. If a process dies meanwhile, the others name it."""

    @functools.wraps(verb)
    def wrapped(self: RunHolder, *args: Any, **kwargs: Any) -> Any:
        with self.settings.in_force(), self.debugging.in_force(), lost_processes.watched(self._how_to_go_on):
            return verb(self, *args, **kwargs)

    return cast(Verb, wrapped)
