"""The federated trainer: rounds instead of epochs, on Lightning Fabric."""

import copy
import dataclasses
import functools
import inspect
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal, TypeVar, cast

import lightning as L
from lightning.pytorch.callbacks import BatchSizeFinder, LearningRateFinder
from lightning.pytorch.loggers import Logger
from lightning.pytorch.strategies import Strategy
from lightning.pytorch.trainer.states import TrainerFn
from torch import nn
from torch.utils.data import DataLoader, Dataset

from flcog.client.messages import Split
from flcog.client.remote import RemoteClients
from flcog.core import checks, lost_processes
from flcog.core.fabric import as_torchrun_started, make_fabric
from flcog.core.files import short
from flcog.core.lightning_packages import OtherCallback, adopt, overrides
from flcog.core.output import never_failing
from flcog.core.text import TopicList, guess
from flcog.data import FederatedDataModule
from flcog.lightning.trainer import RoundsTrainer, one_line
from flcog.method import Callback, Method, Personalisation, check_methods, method_of
from flcog.method.gradient_clip import GradientClip
from flcog.run.advice import Finding, advise
from flcog.run.client_table import client_table
from flcog.run.description import describe_method, local_work
from flcog.run.directory import LAST, next_command
from flcog.run.evaluation import Figures, measure
from flcog.run.export import Format, export, trained_network
from flcog.run.initial_weights import load_initial_weights
from flcog.run.lifecycle import Lifecycle
from flcog.run.observers.checkpoint import Checkpoint
from flcog.run.observers.defaults import default_observers
from flcog.run.observers.progress import score
from flcog.run.opening import Opening
from flcog.run.predictions import Predictions, predict
from flcog.run.session import Session
from flcog.server import round as rounds
from flcog.server.aggregate import Aggregate
from flcog.server.evaluate import evaluate
from flcog.settings import Settings
from flcog.wire.ledger import Ledger

Data = FederatedDataModule | L.LightningDataModule | Dataset | list[Dataset] | DataLoader
"""Data to train on: flcog's data modules, and types that are wrapped as one."""

Verb = TypeVar("Verb", bound=Callable[..., Any])


def verb(function: Verb) -> Verb:
    """Run a verb in the run's precision. If a process dies meanwhile, the others say so.

    A verb that takes data takes loaders, too: ``fit(model, train_loader, val_loader)``, as ``lightning.Trainer`` does.
    """
    takes_data = "datamodule" in inspect.signature(function).parameters

    @functools.wraps(function)
    def wrapped(self: "FederatedTrainer", *args: Any, **kwargs: Any) -> Any:
        if takes_data:
            from flcog.datamodules.loaders import with_datamodule

            some = self.settings.clients_per_round
            last = self._trained[1] if self._trained is not None and self._session is not None else None
            args, kwargs = with_datamodule(function.__name__, args, kwargs, some if isinstance(some, int) else 1, last)
        with self.settings.in_force(), lost_processes.watched(self._how_to_go_on):
            return function(self, *args, **kwargs)

    return cast(Verb, wrapped)


class FederatedTrainer(TopicList):
    """Trains a client module on a federation.

    Args:
        rounds: the total number of communication rounds, including the rounds of a resumed checkpoint. ``max_epochs`` is the same.
        clients_per_round: the clients of a round: a count (int), or a fraction of all clients (float in (0, 1]).
        local_steps: optimiser steps of each client in a round, instead of ``local_epochs``.
        local_epochs: passes of each client over its own data in a round (fractions are allowed). By default one.
        executor: ``loop`` trains one client after another, ``vmap`` many clients as one batched program, ``vmap-patches`` the same with
            convolutions as matrix products, ``lightning`` one after another in Lightning's own loops. ``auto`` applies a rule.
        chunk_size: the number of clients at a time: in a batched program under vmap, on threads under loop. None chooses.
        compile: whether ``torch.compile`` makes one program of a local step (gradient, the hooks of methods, optimiser). Results are
            equal up to rounding, and compiling takes up to half a minute once. ``graphs`` also captures the step as a CUDA graph; under
            ``loop`` it replays the plain step for several clients at a time. A step that cannot be compiled runs uncompiled, with a
            warning.
        keep_optimizers: whether each client keeps its optimisers' state (momentum, Adam's moments) from round to round. Its clients train
            in Lightning's loops.
        callbacks: methods, which act in this order, observers, and Lightning's callbacks.
        logger: trackers; True is W&B (offline without a login), False none. ``metrics.csv`` is always written.
        eval_every: rounds between evaluations. The last round is always evaluated. 0 evaluates no round.
        default_root_dir: the folder of the runs' directories.
        accelerator, strategy, devices, num_nodes, precision: as for ``lightning.Trainer``. Processes share the clients of a round.
            Under torchrun, ``devices="auto"`` means all processes that it has started.
        client_strategy: one of Lightning's strategies, such as ``ddp``, for clients that are larger than a device. All processes then
            train each client together. Each process takes an equal part of each batch, in Lightning's loops.
        tf32: whether GPUs multiply float32 on their tensor cores, with factors rounded to 11 binary digits: ``true`` in all products,
            ``false`` in none. None keeps torch's setting, which by default uses them in convolutions.
        processes_per_device: the number of processes on each device, for a GPU that one process does not fill. Each process holds a
            copy of the data.
        seed: fixes cohorts, batches and noise, for any executor and number of processes.
        on_bad_update: if a client sends NaN or infinite values, ``raise`` an error, or ``drop`` the client. Dropping runs the
            round again as if the client had stayed away, which takes time but no memory for single clients' updates.
        resume_changed: whether a resumed run may have other settings than its checkpoint (see :meth:`fit`).
        fast_dev_run: a trial of the program: this number of rounds (True is 1) with one local step for each client and one batch of each
            evaluation, without trackers and checkpoints.
        limit_train_batches: how much of its data each client reads in a pass: a number of batches (int) or a fraction (float).
        limit_val_batches, limit_test_batches: how much of the central validation and test set is evaluated, in the same way.
        limit_predict_batches: how much :meth:`predict` predicts, in the same way.
        overfit_batches: how much of the training data each client has, in the same way, in its order and without shuffling: to see
            whether a model can learn a few batches by heart. It is also ``limit_val_batches``. 0 leaves all data.
        accumulate_grad_batches: the number of batches of each optimiser step, whose gradients are averaged: large steps with the memory of
            small batches. Clients train one at a time. ``local_steps`` counts the steps. A pass over a client's data ends a step.
        inference_mode: whether evaluations run in torch's inference mode. False lets a ``test_step`` use ``torch.enable_grad()``.
        num_sanity_val_steps: the number of batches of each central set that are evaluated before round 1, so that a fault in an evaluation
            shows at once.
        gradient_clip_val: the largest norm (or value) of each client's gradient, after the corrections of all methods.
        gradient_clip_algorithm: ``norm`` or ``value``.
        enable_progress_bar, enable_checkpointing, enable_model_summary: whether a run shows its progress, writes checkpoints and prints its
            summary.
        lightning: all other arguments of ``lightning.Trainer``, such as ``max_time``, ``profiler`` or ``deterministic``.

    Example:
        >>> import flcog
        >>> from flcog.datamodules import Digits
        >>> trainer = flcog.FederatedTrainer(rounds=1, logger=False)
    """

    config: dict[str, Any] | None = None
    """The full configuration, if the command line knows it."""
    _clients: RemoteClients | None = None
    _session: Session | None = None
    _measured: Session | None = None
    """The run that :meth:`test` or :meth:`validate` has evaluated last, if that was after the last training."""
    _trained: tuple[nn.Module, Any] | None = None
    """The model and the data of the last run."""
    _launched = _has_fitted = False

    def __init__(
        self,
        rounds: int = 50,
        clients_per_round: int | float = 1.0,
        local_steps: int | None = None,
        local_epochs: float | None = None,
        executor: Literal["auto", "loop", "vmap", "vmap-patches", "lightning"] = "auto",
        chunk_size: int | None = None,
        compile: bool | Literal["graphs"] = False,
        keep_optimizers: bool = False,
        callbacks: list[Callback | L.Callback | OtherCallback] | None = None,  # type: ignore[valid-type]
        logger: Logger | list[Logger] | bool | None = True,
        eval_every: int = 1,
        default_root_dir: str = "runs",
        accelerator: str = "auto",
        strategy: str = "auto",
        client_strategy: str | Strategy | None = None,
        devices: int | str = 1,
        num_nodes: int = 1,
        processes_per_device: int = 1,
        precision: int | str = "32-true",
        tf32: bool | None = None,
        seed: int = 0,
        on_bad_update: Literal["raise", "drop"] = "raise",
        resume_changed: bool = False,
        fast_dev_run: bool | int = False,
        limit_train_batches: int | float = 1.0,
        limit_val_batches: int | float = 1.0,
        limit_test_batches: int | float = 1.0,
        limit_predict_batches: int | float = 1.0,
        overfit_batches: int | float = 0.0,
        accumulate_grad_batches: int = 1,
        inference_mode: bool = True,
        num_sanity_val_steps: int = 0,
        gradient_clip_val: float | None = None,
        gradient_clip_algorithm: Literal["norm", "value"] = "norm",
        enable_progress_bar: bool = True,
        enable_checkpointing: bool = True,
        enable_model_summary: bool = True,
        **lightning: Any,
    ) -> None:
        rounds, eval_every = _in_rounds(lightning, rounds, eval_every)
        default_root_dir = os.path.expanduser(default_root_dir)
        local_epochs = 1 if local_steps is None and local_epochs is None else local_epochs
        if fast_dev_run:
            logger, enable_checkpointing = False, False
            rounds, local_steps, local_epochs = int(fast_dev_run), 1, None
            limit_val_batches = limit_test_batches = limit_predict_batches = 1
        given = locals()
        settings = Settings(**{field.name: given[field.name] for field in dataclasses.fields(Settings)})
        self.methods, observers, others = _by_kind(callbacks or [])
        devices, num_nodes = as_torchrun_started(devices, num_nodes, processes_per_device)
        checks.one_of(None, ("auto", "ddp", "single_device"), strategy=strategy)
        if isinstance(logger, str):
            raise ValueError(f"logger must be one of Lightning's loggers, a list of them, true or false; got {logger!r}")
        if client_strategy is not None and processes_per_device > 1:
            raise ValueError(
                f"processes_per_device={processes_per_device} divides the clients, and under client_strategy={client_strategy} all "
                "processes train each client together: leave one of them out"
            )
        self.fabric = make_fabric(accelerator, strategy, devices, num_nodes, processes_per_device)
        with one_line(""):
            self.lightning = RoundsTrainer(
                callbacks=others,
                max_epochs=rounds,
                check_val_every_n_epoch=max(1, eval_every),
                limit_val_batches=overfit_batches or limit_val_batches,
                limit_test_batches=limit_test_batches,
                limit_predict_batches=limit_predict_batches,
                accumulate_grad_batches=accumulate_grad_batches,
                inference_mode=inference_mode,
                num_sanity_val_steps=num_sanity_val_steps,
                gradient_clip_val=gradient_clip_val,
                gradient_clip_algorithm=gradient_clip_algorithm,
                precision=precision,
                accelerator=accelerator,
                client_strategy=client_strategy,
                devices=devices,
                num_nodes=num_nodes,
                default_root_dir=default_root_dir,
                enable_progress_bar=enable_progress_bar,
                enable_checkpointing=enable_checkpointing,
                **lightning,
            )
            """The run as modules and Lightning's callbacks see it. Its attributes are also those of this trainer."""
        self.settings = replace(settings, precision=self.lightning.precision)
        if gradient_clip_val is not None:
            self.methods.append(GradientClip(max_value=gradient_clip_val, algorithm=gradient_clip_algorithm))
        check_methods(self.methods)
        switches = enable_progress_bar, enable_checkpointing, enable_model_summary
        self.observers = default_observers(observers, self.lightning, *switches)
        self.given_logger, self.resume_changed, self.default_root_dir = logger, resume_changed, default_root_dir
        self.fast_dev_run, self.num_sanity_val_steps = fast_dev_run, num_sanity_val_steps
        self._num_nodes = num_nodes

    # Verbs ------------------------------------------------------------------------------------------------------------------------

    @verb
    @never_failing()
    def fit(
        self,
        model: nn.Module,
        datamodule: Data,
        ckpt_path: str | None = None,
        init_from: str | None = None,
    ) -> None:
        """Train for ``rounds`` rounds, or resume from a checkpoint.

        One run, with every hook where it fires (observers' hooks begin with ``on_``)::

            configure_model                                   once: methods extend the model
            prepare_data                                      once: exchanges of data before round 1
            init_server                                       once: each method's server state
            on_note                                           once per note; later notes come before on_round_end
            on_fit_start
            for each round:
                select the cohort                         uniformly, or as a Selection does
                on_round_start
                for each client of the cohort:
                    plan                                      its number of steps, or that it drops out
                broadcast                                     server -> clients: the model, and a part of each server state
                for each client of the cohort:
                    init_client                               once in its life: its state, and its message to the server
                weights                                       aggregation weights of the cohort
                for each client of the cohort:
                    draw                                      its randomness of this round
                for each client (looped, vmapped in chunks, or spread over processes):
                    start                                     its first parameters, and data made for it
                    for each local step:
                        wrap_gradient
                        loss                                  inside the gradient: task loss + sum of terms
                        correct_gradient
                        (the optimiser steps)
                        after_step
                    finish_client                             clients -> server: delta and messages; its new state
                server_step                                   the server's change of the model, from the mean delta
                evaluate_at                                   where the global model is evaluated
                personal                                      each client's own model, if a method keeps one
                on_evaluation_end
                on_round_metrics                              the row is about to be written
                on_round_end
            on_fit_end

        Args:
            model: a :class:`flcog.ClientModule`, or any network, around which the module for the data's task is built, or any
                LightningModule with ``training_step`` and ``configure_optimizers``; its ``validation_step`` and ``test_step`` evaluate
                it. An epoch is a round: ``docs/lightning.md`` says in which loops the clients train.
            datamodule: the federation's data. A map-style torch data set, a ``DataLoader`` of one or a plain
                ``LightningDataModule`` is divided over ten clients at random, which the summary says; a list has one data set for each
                client. As for ``lightning.Trainer``, it may be a loader and a second one for validation (``train_dataloaders=...,
                val_dataloaders=...``).
            ckpt_path: a checkpoint, a run's directory, or ``last`` for the newest run under ``default_root_dir`` that has this
                trainer's methods, or ``auto``, which resumes the run of the same configuration under ``default_root_dir`` and starts
                one if there are no runs. A resumed run must be the same experiment: another seed, list of methods, model, data set or
                partition is refused. So is any other changed setting, unless ``resume_changed`` is true. These may change freely: the
                number of rounds, devices and processes, trackers and observers.
            init_from: a checkpoint that ``lightning.Trainer`` or flcog wrote, or a file with a ``state_dict``. The model begins with its
                weights; everything else in the file is ignored. A run that resumes with ``auto`` must have the
                ``init_from`` of its first rounds.

        Ctrl-C, SIGUSR1, SIGUSR2 and SIGHUP end the run after the current round, and save it. SIGTERM and a second Ctrl-C end it at once.
        Then fit raises a KeyboardInterrupt after Ctrl-C, and a SystemExit with status 75 after the other signals.
        """
        if self.fast_dev_run and ckpt_path is not None:
            raise ValueError(f"fast_dev_run tries a program and resumes no run; got ckpt_path={ckpt_path}: leave one of them out")
        resumes = ckpt_path not in (None, "auto")
        origin = None if init_from is None else load_initial_weights(model, init_from, resumes)
        self._session = self._measured = None
        with Lifecycle(self.fabric, [*self.methods, *self.observers], self.lightning) as life:
            run = self._open(model, datamodule, "fit", ckpt_path=ckpt_path, lock=life.lock, init_from=origin)
            self._session, self._trained = run, (model, datamodule)
            with life.rounds(run, self.evaluate, self.num_sanity_val_steps):
                while life.goes_on(run):
                    life.train_round(run, self.evaluate)

    @verb
    def validate(
        self, model: nn.Module | None = None, datamodule: Data | None = None, ckpt_path: str | None = None, verbose: bool = True
    ) -> Figures:
        """Evaluate on the validation sets, from a checkpoint or as the model is.

        Args:
            model: without one, the last run's as it is, or the best of a Lightning ``ModelCheckpoint``; see ``ckpt_path="best"``.
            verbose: whether to print the figures.
        """
        return self._measure("val", verbose, model, datamodule, ckpt_path, False)

    @verb
    def test(
        self,
        model: nn.Module | None = None,
        datamodule: Data | None = None,
        ckpt_path: str | None = None,
        verbose: bool = True,
        new_clients: bool = False,
    ) -> Figures:
        """Evaluate on the test sets, from a checkpoint or as the model is.

        Args:
            model: without one, the last run's as it is, or the best of a Lightning ``ModelCheckpoint``; see ``ckpt_path="best"``.
            verbose: whether to print the figures.
            new_clients: whether to measure the clients that ``new_clients`` of the data has kept out of the training, in place of the
                others: the global model as it is (``test/client_...``) and, if a method keeps personal models, each client's own
                (``test/personal_...``), after a round of training that changes nothing at the server. For a global model with local
                fine-tuning list :class:`~flcog.callbacks.FineTune`.
        """
        return self._measure("test", verbose, model, datamodule, ckpt_path, new_clients)

    @verb
    def check(self, model: nn.Module, datamodule: Data) -> list[Finding]:
        """Advice on this combination of methods, model and data, as by ``flcog check``. Nothing is trained or written.

        Client hooks run on random numbers, and a round runs with one local step per client. If :meth:`fit` would refuse the run, or
        a hook fails in that round, its error is raised. Files that runs share, such as generated images, are kept as by ``fit``.
        """
        if self._clients is not None:
            raise ValueError("check calls clients' hooks in this process: use a trainer that is not connected to other processes")
        brief = replace(self.settings, local_steps=1, local_epochs=None, executor="loop", chunk_size=None, compile=False)
        run = self._open(copy.deepcopy(model), datamodule, "by hand", settings=brief)
        return advise(run.engine, run.server)

    @verb
    def predict(
        self,
        model: nn.Module | None = None,
        datamodule: Data | None = None,
        ckpt_path: str | None = None,
        inputs: Any = None,
        client: int | None = None,
    ) -> Predictions | list[Any]:
        """What the model says of the test set, by name: ``prediction``, ``probability``, ``target``; all on the CPU. A module's own
        ``predict_step`` returns a list with one result for each batch, of the loader of ``predict_dataloader`` if there is one.
        ``sample`` has the names of new inputs: the index or the id, the file, or the number of each.

        Args:
            model, datamodule: as :meth:`fit` had them; those of the last run by default, as for :meth:`test`.
            ckpt_path: the checkpoint to predict from.
            inputs: predict these instead, prepared as the training set is: a data frame, a list of texts or of images' paths, a file (.csv,
                .tsv, .parquet, .txt, an image) or a folder of images; or arrays as the data set stores them, or in an .npy or .npz file.
            client: the number of a client, whose own model predicts; by default the global one does.
        """
        with self._evaluation(TrainerFn.PREDICTING, model, datamodule, ckpt_path) as run:
            if inputs is None:
                return predict(run, client=client)
            from flcog.datamodules.new_inputs import read_new

            return predict(run, read_new(run.datamodule, inputs), client)

    def export(
        self,
        path: str | Path,
        format: Format | None = None,
        model: nn.Module | None = None,
        datamodule: Data | None = None,
        ckpt_path: str | None = None,
        client: int | None = None,
    ) -> None:
        """Write the trained network for others: a ``state_dict`` that the plain torch module loads, ``safetensors`` or ``onnx``.

        ``peft`` writes a folder with LoRA's adapters alone.

        Args:
            path: the file.
            format: by default that of its suffix (.pt, .safetensors, .onnx).
            model, datamodule: as :meth:`fit` had them; those of the last run by default, as for :meth:`test`.
            ckpt_path: the checkpoint to export.
            client: the number of a client, whose own model is written; by default the global one is.
        """
        export(self._run_to_evaluate(TrainerFn.TESTING, model, datamodule, ckpt_path), Path(path), format, client)

    def plot(self, *columns: str) -> Any:
        """A matplotlib figure of the history: the main score and the losses, or the columns that are named, in one chart.

        ``clients`` draws the rows of :attr:`clients`, and ``confusion`` the shares of predicted classes in each class of the test set.
        """
        # matplotlib takes half a second to import
        from flcog.run.pictures import client_figure, confusion_figure, history_figure

        if columns == ("confusion",):
            return confusion_figure(self.predict(), self.run.federation.class_names)
        if columns == ("clients",):
            return client_figure({name: column.to_numpy() for name, column in self.clients.items()}, self.history)
        return history_figure(self.history, columns)

    @verb
    def prepare(self, model: nn.Module, datamodule: Data, ckpt_path: str | None = None, keep_files: bool = False) -> None:
        """Everything before the first round but the run's directory: to drive rounds by hand with :meth:`train_round`.

        Args:
            model, datamodule: the arguments of :meth:`fit`.
            ckpt_path: a checkpoint to resume from.
            keep_files: whether methods may keep files that runs share, under ``default_root_dir``.
        """
        self._session = self._open(model, datamodule, "by hand", ckpt_path=ckpt_path, keep_files=keep_files)
        self._trained, self._measured = (model, datamodule), None

    @verb
    def train_round(self) -> dict[str, float]:
        """One round of training alone: no evaluation, observers, trackers or checkpoint. Returns its figures."""
        run = self.run
        self.lightning.resume_at(run.round, run.server.steps)
        row = rounds.advance(run.engine, run.server)
        self.lightning.end_clients(run.server.steps)
        return row

    @verb
    def collect(self, round: int | None = None) -> tuple[Aggregate, Ledger]:
        """One round's client side alone, after :meth:`prepare`: the server's sums, and the bytes sent. The run stays as it is.

        Args:
            round: the round, counted from 0; the next one by default.
        """
        engine, server = self.run.engine, self.run.server.copy(self.run.round if round is None else round)
        planned = rounds.plan(engine, server, rounds.select(engine, server))
        aggregate = rounds.train(engine, server, planned, directions=False)[1]
        engine.clients.commit([])
        return aggregate, server.ledger

    @verb
    def evaluate(self) -> dict[str, float]:
        """The figures of an evaluation of the run as it stands."""
        return evaluate(self.run.engine, self.run.server)

    @verb
    def sample(self, round: int) -> list[int]:
        """The clients of a round, counted from 0. A selection with a state takes the state as it is now."""
        return list(rounds.select(self.run.engine, self.run.server.copy(round)).clients)

    # The last run -----------------------------------------------------------------------------------------------------------------

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

    def model_of(self, client: int) -> nn.Module:
        """A copy of the network with the weights of a client's own model."""
        return trained_network(self.run, client)

    @property
    def history(self) -> list[dict[str, float]]:
        """One row per round: the rows of ``metrics.csv``."""
        return self._session.history if self._session is not None else []

    @property
    def clients(self) -> Any:
        """One row for each client, as a pandas DataFrame: the rows of ``clients.csv``, with the scores of the last evaluation."""
        import pandas  # which takes a third of a second

        run = self._measured or self.run
        return pandas.DataFrame(client_table(run.engine, run.server)).rename_axis("client")

    @property
    def run_dir(self) -> Path | None:
        """The directory of the run, or None if it has none."""
        return None if self._session is None else self._session.folder

    @property
    def loggers(self) -> list[Logger]:
        """The run's trackers."""
        if self._session is not None:
            return self._session.trackers.loggers
        given = self.given_logger if isinstance(self.given_logger, Sequence) else [self.given_logger]
        return [logger for logger in given if isinstance(logger, Logger)]

    @property
    def logger(self) -> Logger | None:
        """The first tracker, as ``lightning.Trainer`` has it."""
        return next(iter(self.loggers), None)

    @logger.setter
    def logger(self, given: Logger | list[Logger] | bool | None) -> None:
        self.given_logger = given

    @property
    def callbacks(self) -> tuple[Callback | L.Callback, ...]:
        """Methods, observers and Lightning's callbacks, which a trainer is given when it is made."""
        return (*self.methods, *self.observers, *self.lightning.callbacks)

    @property
    def checkpoint_callback(self) -> L.Callback | Callback:
        """Lightning's ``ModelCheckpoint`` if one is listed, and otherwise flcog's ``Checkpoint``; both have ``best_model_path``."""
        return self.lightning.checkpoint_callback or next(each for each in self.observers if isinstance(each, Checkpoint))

    @property
    def should_stop(self) -> bool:
        """Whether the run ends after the round in hand."""
        return self.lightning.should_stop

    @should_stop.setter
    def should_stop(self, value: bool) -> None:
        self.lightning.should_stop = value

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or "lightning" not in vars(self) or not hasattr(self.lightning, name):
            raise AttributeError(f"{type(self).__name__} has no attribute {name!r}")
        return getattr(self.lightning, name)

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

    # Opening ----------------------------------------------------------------------------------------------------------------------

    def connect(self, clients: RemoteClients) -> None:
        """Let the clients of all later runs of this trainer live in other processes.

        Args:
            clients: sends the trainer's messages to the processes of :func:`flcog.run.hosting.host_clients`, which train, evaluate and keep
                the data. ``docs/scaling.md`` has an example.
        """
        self._clients = clients

    def _open(
        self,
        model: nn.Module,
        datamodule: Any,
        reason: Literal["fit", "by hand", "evaluate"],
        stage: TrainerFn = TrainerFn.FITTING,
        new_clients: bool = False,
        settings: Settings | None = None,
        **given: Any,
    ) -> Session:
        """Start the processes, and open a run."""
        check_model(model)
        if not isinstance(datamodule, FederatedDataModule):
            from flcog.datamodules.loaders import federated

            datamodule = federated(adopt(datamodule))
        adopt(datamodule.hooked)
        if new_clients:  # of this process's data, all in a round
            datamodule, settings = datamodule.newcomers, replace(self.settings, clients_per_round=1.0)
        if not self._launched:
            lost_processes.launch(self.fabric, self._num_nodes)
            self._launched = True
        if stage == TrainerFn.FITTING and self._has_fitted:
            self.lightning.renew()
        self._has_fitted = self._has_fitted or stage == TrainerFn.FITTING
        return Opening(
            reason=reason,
            settings=settings or self.settings,
            methods=self.methods,
            observers=self.observers,
            fabric=self.fabric,
            root=self.default_root_dir,
            config=self.config,
            model=model,
            datamodule=datamodule,
            trainer=self.lightning,
            clients=None if new_clients else self._clients,
            stage=stage,
            new_clients=new_clients,
            resume_changed=self.resume_changed,
            logger=self.given_logger,
            **given,
        ).open()

    def _measure(self, split: Split, verbose: bool, *given: Any) -> Figures:
        stage = TrainerFn.VALIDATING if split == "val" else TrainerFn.TESTING
        *_, new_clients = given
        with self._evaluation(stage, *given) as run:
            if new_clients and method_of(run.methods, Personalisation) is not None and run.engine.clients.stateful:
                rounds.join(run.engine, run.server)
            figures, self._measured = measure(run, self.lightning, split), run
        if verbose and self.fabric.is_global_zero:
            for name, value in figures.items():
                print(f"{name:<32} {value:.6g}")
        return figures

    @contextmanager
    def _evaluation(self, stage: TrainerFn, *given: Any) -> Iterator[Session]:
        """A run to evaluate in the stage of a verb, with the hooks around it."""
        run = self._run_to_evaluate(stage, *given)
        with self.lightning.verb(run, stage, again=run is self._session):
            yield run

    def _run_to_evaluate(
        self,
        stage: TrainerFn,
        model: nn.Module | None,
        datamodule: Data | None,
        ckpt_path: str | None,
        new_clients: bool = False,
    ) -> Session:
        """Open a run to evaluate a checkpoint or a model as it is. A model or data that are left out are those of the last run.

        As in Lightning, ``best``, or neither a model nor a checkpoint, is the best checkpoint of a ``ModelCheckpoint``, if there is one.
        """
        if ckpt_path == "best" or (ckpt_path is None and model is None):
            ckpt_path = getattr(self.lightning.checkpoint_callback, "best_model_path", None) or ckpt_path
        as_it_is = model is None and datamodule is None and ckpt_path is None
        if as_it_is and not new_clients:
            return self.run
        if model is None or datamodule is None:
            self.run.engine.hand_over(self.run.server, self.run.evaluated_params())
            assert self._trained is not None
            model, datamodule = model or self._trained[0], self._trained[1] if datamodule is None else datamodule
        opened = self._open(model, datamodule, "evaluate", stage, new_clients, ckpt_path=ckpt_path)
        if as_it_is:
            for name in ("params", "buffers", "servers", "round", "steps", "rates"):
                setattr(opened.server, name, getattr(self.run.server, name))
        return opened

    def _how_to_go_on(self) -> str:
        """The advice about a run that was cut off."""
        if self.run_dir is None or not (self.run_dir / LAST).is_file():
            return "start again, for there is no checkpoint yet"
        return "go on with " + next_command("fit", self.run_dir, self.run_dir, self.config)


CONTRADICTIONS = {
    "val_check_interval": (None, 1.0, "clients do not validate: eval_every is the number of rounds between evaluations"),
    "reload_dataloaders_every_n_epochs": (0, 0, "each client reads its samples anew in every round"),
}
"""Arguments of ``lightning.Trainer`` with the values that a federation can have, and the reason."""


def _in_rounds(options: dict[str, Any], rounds: int, eval_every: int) -> tuple[int, int]:
    """Take the options that count epochs out of Lightning's: the number of rounds, and of rounds between evaluations."""
    known = inspect.signature(FederatedTrainer).parameters | inspect.signature(L.Trainer).parameters
    for name in options.keys() - known.keys():
        raise TypeError(f"FederatedTrainer has no argument {name!r}.{guess(name, known)}")
    for name, (*possible, reason) in CONTRADICTIONS.items():
        if options.get(name, possible[0]) not in possible:
            raise ValueError(f"trainer.{name} is {options[name]}: {reason}; leave it out")
    epochs, every = options.pop("max_epochs", None), options.pop("check_val_every_n_epoch", None)
    return rounds if epochs is None else epochs, eval_every if every in (None, 1) else every


def _by_kind(callbacks: Any) -> tuple[list[Method], list[Callback], list[L.Callback]]:
    """Divide one callback or several into methods, observers and Lightning's callbacks."""
    methods, observers, lightning = list[Method](), list[Callback](), list[L.Callback]()
    alone = isinstance(callbacks, Callback | str) or not isinstance(callbacks, Iterable)
    for callback in [callbacks] if alone else callbacks:  # as in Lightning, one callback needs no list
        if isinstance(callback, Method):
            methods.append(callback)
        elif isinstance(callback, Callback):
            observers.append(callback)
        elif isinstance(adopt(callback), BatchSizeFinder | LearningRateFinder):
            name = type(callback).__name__
            raise ValueError(
                f"{name} trains with one loader and no clients: call it with lightning.Trainer, and set the value it finds"
            )
        elif isinstance(callback, L.Callback):
            lightning.append(callback)
        else:
            raise ValueError(
                f"callbacks are methods or observers of flcog, or Lightning's; got {callback!r}: give objects, and no classes or names"
            )
    return methods, observers, lightning


def check_model(model: Any) -> None:
    """Refuse what is no network, and modules that cannot train."""
    if not isinstance(model, nn.Module):
        raise ValueError(
            "the model must be a network, a flcog.ClientModule, such as flcog.Classifier(network), or a LightningModule; got "
            f"{type(model).__name__}"
        )
    if isinstance(adopt(model), L.LightningModule) and not overrides(model, "LightningModule", "training_step"):
        raise ValueError(
            f"{type(model).__name__} has no training_step: add a training_step that returns the loss, or use a flcog.ClientModule"
        )
