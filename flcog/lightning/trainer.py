"""The lightning.Trainer of a federated run: its epoch is a round, and modules and callbacks see it as their trainer."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal, cast
from weakref import proxy

import lightning as L
import torch
from lightning.fabric.plugins.environments import ClusterEnvironment, LightningEnvironment
from lightning.fabric.utilities.device_dtype_mixin import _DeviceDtypeModuleMixin
from lightning.pytorch.callbacks import BaseFinetuning, Checkpoint, ModelCheckpoint, ProgressBar
from lightning.pytorch.strategies import DeepSpeedStrategy, FSDPStrategy, Strategy
from lightning.pytorch.trainer import call
from lightning.pytorch.trainer.states import RunningStage, TrainerFn, TrainerStatus
from lightning.pytorch.utilities.exceptions import MisconfigurationException
from torch import Tensor
from torchmetrics import Metric

from flcog.client.work import ClientWork
from flcog.core.global_streams import kept
from flcog.core.output import quiet
from flcog.core.processes import Processes
from flcog.functional.own_steps import column_of
from flcog.lightning.checkpoint import restored
from flcog.lightning.contract import BETWEEN_ROUNDS, is_active, is_users, reasons_for_lightning
from flcog.lightning.loops import ClientEpoch, RoundLogs, RoundLoop, SetLoop
from flcog.lightning.strategy import ClientsAlone
from flcog.method import Callback, Withholding

RUNNING = {
    TrainerFn.FITTING: RunningStage.TRAINING,
    TrainerFn.VALIDATING: RunningStage.VALIDATING,
    TrainerFn.TESTING: RunningStage.TESTING,
    TrainerFn.PREDICTING: RunningStage.PREDICTING,
}
"""The stage of a running trainer, by its verb."""


class RoundsTrainer(L.Trainer, Callback):
    """``lightning.Trainer`` without a loop of its own: an observer that calls its hooks and the parts of its loops in flcog's rounds.

    The module has the global model while a hook runs. A hook between rounds may change it: the server goes on with the changed model.

    With a ``client_strategy``, all processes of the run train each client together. flcog has checkpoints and a progress bar of its own, so
    that none of Lightning's is added.
    """

    fit_loop: RoundLoop
    callbacks: list[L.Callback]
    datamodule: Any
    profiler: Any
    _logger_connector: RoundLogs
    run: Any = None
    """The run, once it is open: its directory, its checkpoints, and its request to stop."""

    def __init__(
        self,
        callbacks: Sequence[L.Callback] = (),
        client_strategy: str | Strategy | None = None,
        devices: Any = 1,
        num_nodes: int = 1,
        enable_checkpointing: bool = True,
        enable_progress_bar: bool = True,
        plugins: Any = None,
        **options: Any,
    ) -> None:
        allowed = {"enable_checkpointing": enable_checkpointing, "enable_progress_bar": enable_progress_bar}
        self.together = client_strategy is not None
        """Whether the processes of the run train each client together."""
        places = {"client_strategy": client_strategy, "devices": devices, "num_nodes": num_nodes}
        self._given = {"callbacks": callbacks, "plugins": plugins} | places | allowed | options
        listed = plugins if isinstance(plugins, list) else [plugins] if plugins is not None else []
        if not any(isinstance(plugin, ClusterEnvironment) for plugin in listed):
            listed = [*listed, LightningEnvironment()]  # Fabric starts the processes
        with quiet("lightning.pytorch", ".*available but not used"):
            super().__init__(
                callbacks=list(callbacks),
                enable_checkpointing=enable_checkpointing and any(isinstance(each, Checkpoint) for each in callbacks),
                enable_progress_bar=enable_progress_bar and any(isinstance(each, ProgressBar) for each in callbacks),
                enable_model_summary=False,
                strategy=ClientsAlone() if client_strategy is None else client_strategy,
                devices=devices if self.together else 1,
                num_nodes=num_nodes if self.together else 1,
                logger=False,
                plugins=listed,
                **options,
            )
        if isinstance(self.strategy, FSDPStrategy | DeepSpeedStrategy):
            raise ValueError(
                f"client_strategy={client_strategy} divides the parameters of a model in a form that clients cannot load: give a "
                "lightning.pytorch.strategies.ModelParallelStrategy, and call torch's fully_shard in configure_model"
            )
        theirs = self.fit_loop
        self.fit_loop = RoundLoop(self, theirs.min_epochs, theirs.max_epochs)
        self.fit_loop.epoch_loop = ClientEpoch(self, min_steps=theirs.min_steps, max_steps=theirs.max_steps)
        self.fit_loop.epoch_loop.val_loop = self._set_loop(theirs.epoch_loop.val_loop)
        self.validate_loop, self.test_loop = self._set_loop(self.validate_loop), self._set_loop(self.test_loop)
        self._logger_connector = RoundLogs(self)
        self._steps = 0
        """The steps of a client in all rounds."""
        self.forked: set[str] = set()
        """The names of values that clients have logged for steps and for epochs."""

    def joined(self, mean: Tensor) -> Tensor:
        """The mean over the processes that train a client together."""
        return cast(Tensor, self.strategy.reduce(mean)) if self.together else mean

    def renew(self) -> None:
        """Begin anew with the same arguments, for another run from round 1."""
        given = self._given
        vars(self).clear()
        RoundsTrainer.__init__(self, **given)

    def _set_loop(self, theirs: Any) -> SetLoop:
        return SetLoop(self, theirs._trainer_fn, theirs._stage, verbose=False, inference_mode=theirs.inference_mode)

    # Opening ----------------------------------------------------------------------------------------------------------------------

    def enter(self, verb: TrainerFn, processes: Processes) -> None:
        """Begin one of the trainer's verbs, in this process."""
        if isinstance(self.strategy, ClientsAlone):
            self.strategy.join(processes)
        self.state.fn, self.state.status, self.state.stage = verb, TrainerStatus.RUNNING, RUNNING[verb]

    def show_data(self, datamodule: L.LightningDataModule) -> None:
        """Let the user's data module see this trainer."""
        self.datamodule, datamodule.trainer = datamodule, self

    def plan(self, batches: int, steps: int) -> None:
        """Tell the trainer the batches of the largest client in a round, and its steps."""
        self.fit_loop.max_batches, self._steps = batches, steps * max(1, self.max_epochs or 1)

    def attach(self, module: L.LightningModule) -> None:
        """Let the module see this trainer, and gather its callbacks."""
        self.show(module)
        if self.together:
            self.strategy.setup_environment()
        with quiet("lightning.pytorch", ".*available but not used"):
            self._callback_connector._attach_model_callbacks()
        for layer in module.modules():
            if isinstance(layer, _DeviceDtypeModuleMixin):
                layer._device = self.strategy.root_device  # which setup may ask for, before the module is there

    def set_up(self, again: bool) -> None:
        """Call ``setup``, unless it was called ``again``, by the module's own loaders, and ``configure_model`` of the module."""
        if not again:
            call._call_lightning_module_hook(self, "setup", stage=cast(TrainerFn, self.state.fn).value)
        call._call_configure_model(self)

    def make_optimizers(self, module: L.LightningModule) -> list[Any]:
        """Take over the module after the changes of methods: its device, its precision, and its optimisers.

        An evaluation takes no step, so that a plain optimiser does if ``configure_optimizers`` needs ``setup("fit")``.
        """
        self.show(module)
        for callback in self.callbacks:
            if isinstance(callback, BaseFinetuning):
                callback.freeze_before_training(module)  # in Lightning, callbacks are set up before optimisers are made
        with one_line(type(module).__name__):
            self.strategy.setup(self)
        if self.state.fn != TrainerFn.FITTING:
            try:
                self.strategy.setup_optimizers(self)
            except Exception:
                self.optimizers = [torch.optim.SGD([value for value in module.parameters() if value.requires_grad], lr=0.01)]
        for layer in module.modules():
            if isinstance(layer, Metric):
                layer.distributed_available_fn = bool  # always False: clients of other processes have other values
        return self.optimizers

    def show(self, module: L.LightningModule) -> None:
        """Work with this module from here on."""
        self._data_connector.attach_data(module, datamodule=self.datamodule)
        self.strategy.connect(module)
        self._callback_connector._attach_model_logging_functions()
        self._logger_connector.reset_results()
        self._logger_connector.reset_metrics()

    def reason_for_its_loops(self, keeps_optimizers: bool) -> str:
        """Why clients train in Lightning's loops; empty if the module may be pure."""
        return next(filter(None, reasons_for_lightning(self, self.lightning_module, keeps_optimizers)), "")

    def has_users_hooks(self) -> bool:
        """Whether a user's hook, or a callback of Lightning's, may change the module between rounds."""
        owners = [self.lightning_module, *self.callbacks]
        own = any(is_users(owner, hook) for owner in owners for hook in BETWEEN_ROUNDS)
        return own or any(map(is_active, self.callbacks))

    def finish_opening(self, run: Any) -> None:
        """Take over the run, once it is open, and give it to the callbacks."""
        self.run, self.loggers = run, run.trackers.loggers
        self._logger_connector.row.clear()
        self._logger_connector.withholds_steps = any(isinstance(method, Withholding) for method in run.methods)
        for callback in self.callbacks:
            if isinstance(callback, ModelCheckpoint) and callback.dirpath is None and run.folder is not None:
                callback.dirpath = str(run.directory.resolve() / "checkpoints")  # its state goes on only in the same folder
        self.profiler._lightning_module = proxy(self.lightning_module)
        rank = self.local_rank if self.world_size > 1 else None
        self.profiler.setup(stage=self.state.fn, local_rank=rank, log_dir=self.log_dir)

    def tear_down(self, stage: str) -> None:
        """Call the hooks at the end of a verb."""
        self.datamodule.teardown(stage)
        self.call("teardown", stage=stage)

    # The hooks of a run -----------------------------------------------------------------------------------------------------------

    @contextmanager
    def verb(self, run: Any, stage: TrainerFn, again: bool) -> Iterator[None]:
        """Surround an evaluation or predictions outside ``fit`` with ``setup`` and ``teardown``.

        A verb that opens an open run ``again`` sets up its data and its module again.
        """
        module = run.model.module
        self.enter(stage, run.processes)
        if again:
            self.show_data(run.datamodule.hooked)
            self.show(module)
            run.load_global_model()
            run.datamodule.setup(stage.value)
            self.set_up(again=run.datamodule.loaders_of is module)
            run.model.find_tensors()
        self.call("setup", stage=stage.value, of_module=False)
        try:
            yield
        finally:
            self.state.stage = None
        self.tear_down(stage.value)
        self.state.status = TrainerStatus.FINISHED
        if again:
            run.engine.hand_over(run.server, run.evaluated_params())

    @property
    def _looks_on(self) -> bool:
        """Whether clients train outside Lightning's loops, so that its callbacks see one batch of each round."""
        return bool(self.run.engine.clients.executor.name != "lightning")

    @contextmanager
    def _global_model(self, run: Any) -> Iterator[None]:
        run.load_global_model()
        yield
        if self.has_users_hooks():
            run.take_over_module()

    def on_fit_start(self, run: Any) -> None:
        with self._global_model(run):
            self.call("setup", stage="fit", of_module=False)
            with restored(self, run.resumed_from):
                self.resume_at(run.round, run.server.steps)
                self.call("on_fit_start")
            run.resumed_from = None
        if (self.max_epochs or 0) > run.settings.rounds:
            raise ValueError(
                "StochasticWeightAveraging would compute the statistics of BatchNorm in another epoch after the last round, in which no "
                "client takes a step: use EMAWeightAveraging, which averages them with the weights, or layers without such statistics"
            )

    @contextmanager
    def sanity_check(self, run: Any) -> Iterator[None]:
        """Surround an evaluation before round 1, whose figures are forgotten."""
        self.sanity_checking = True
        with self._global_model(run):
            self.call("on_sanity_check_start", of_module=False)
            yield
            self.call("on_sanity_check_end", of_module=False)
        self._logger_connector.reset_results()
        self._logger_connector.reset_metrics()
        self.state.stage = RunningStage.TRAINING

    def on_train_start(self, run: Any) -> None:
        """The rounds begin."""
        with self._global_model(run):
            self.fit_loop.on_run_start()

    def on_round_start(self, run: Any, round: int, cohort: list[int]) -> None:
        with self._global_model(run):
            self.resume_at(round - 1, run.server.steps)
            self.fit_loop.on_advance_start()
            if self._looks_on:
                self._show_batch("on_train_batch_start")

    def on_evaluation_end(self, run: Any, round: int, metrics: dict[str, float]) -> None:
        if not run.evaluator.own.step_for("validation"):
            self.evaluated(run, metrics)

    def evaluated(self, run: Any, metrics: dict[str, float]) -> None:
        """Call the hooks of an evaluation whose figures come from elsewhere than the module's own steps."""
        with self._global_model(run), self.in_stage("validation", apart=False, of_tests=False) as loop:
            loop.call_around(lambda: self.publish(metrics))

    def on_round_metrics(self, run: Any, round: int, metrics: dict[str, float]) -> None:
        self.publish(metrics)
        with self._global_model(run):
            if self._looks_on:
                self._show_batch("on_train_batch_end", {})
            metrics.update({name: value for name, value in self._end_round().items() if name not in metrics})

    def on_fit_end(self, run: Any) -> None:
        with self._global_model(run):
            self.fit_loop.on_run_end()
            self.call("on_fit_end")
        self.tear_down("fit")
        self.state.status, self.state.stage = TrainerStatus.FINISHED, None

    def on_exception(self, run: Any, exception: BaseException) -> None:
        self.state.status = TrainerStatus.INTERRUPTED
        self.call("on_exception", exception, of_module=False)
        self.datamodule.on_exception(exception)
        self.state.stage = None

    # Rounds and clients -----------------------------------------------------------------------------------------------------------

    def call(self, hook: str, *arguments: Any, of_module: bool = True, **options: Any) -> None:
        """Call a hook of the callbacks and of the module."""
        call._call_callback_hooks(self, hook, *arguments, **options)
        if of_module:
            call._call_lightning_module_hook(self, hook, *arguments, **options)

    def begin_hosted_round(self, round: int) -> None:
        """End the last round and begin another where clients are hosted without a run."""
        if self.fit_loop.epoch_progress.current.ready:
            self._end_round()
        else:
            self.call("on_fit_start")
            self.fit_loop.on_run_start()
        self.resume_at(round, self.global_step)
        self.fit_loop.on_advance_start()

    def resume_at(self, round: int, steps: int) -> None:
        """Let the loops stand before a round."""
        for counts in (self.fit_loop.epoch_progress.total, self.fit_loop.epoch_progress.current):
            for name in vars(counts):
                setattr(counts, name, round)
        self.count_from(steps)

    def count_from(self, steps: int) -> None:
        """Let ``global_step`` be the optimiser steps of all clients in all rounds."""
        self.fit_loop.epoch_loop.count_from(steps)
        self.fit_loop.epoch_loop._batches_that_stepped = steps

    def _show_batch(self, hook: str, *arguments: Any) -> None:
        """Show the callbacks one batch of a round whose clients train without Lightning's loops."""
        self._logger_connector.on_batch_start(None)
        call._call_callback_hooks(self, hook, *arguments, None, 0)
        self._logger_connector.on_batch_end()
        self._logger_connector.epoch_end_reached()

    @contextmanager
    def client(self, round: int, steps: int, work: ClientWork, places: Any) -> Iterator[dict[str, Any]]:
        """Surround the training of a client, which may have begun in an earlier ``round``, after ``steps`` of its own.

        The yielded dict has the means of the values that its steps log, by name, at the end.
        """
        loop, epoch, logged = self.fit_loop.epoch_loop, self.fit_loop.epoch_progress.current, dict[str, Any]()
        steps_of_all, optimization = self.global_step, loop.automatic_optimization
        with (
            kept(self, "callbacks", "_steps"),
            kept(self.state, "stage"),
            kept(self.fit_loop, "max_batches"),
            kept(epoch, "completed"),
            kept(optimization, "contributions"),
            kept(loop, "ends"),
            kept(self.strategy, *["world_size"] * (not self.together)),
        ):
            if isinstance(self.strategy, ClientsAlone):
                self.strategy.world_size = 1
            self.callbacks, self._steps = [places, *self.callbacks], work.num_steps * max(1, self.max_epochs or 1)
            self.state.stage, epoch.completed = RunningStage.TRAINING, round
            optimization.contributions, loop.ends = places, work.ends
            loop.count_from(steps)
            loop._results.begin_client()
            try:
                yield logged
            finally:
                means, forked = loop._results.end_client()
                logged.update(means)
                self.forked |= forked
                loop.count_from(steps_of_all)

    @contextmanager
    def in_stage(self, step: Literal["validation", "test"], apart: bool, of_tests: bool) -> Iterator[SetLoop]:
        """Surround an evaluation, for the loop that takes it. One ``apart`` leaves out callbacks and the values that they follow."""
        state, logs, fitting = self.state, self._logger_connector, self.state.fn == TrainerFn.FITTING
        ours = self.fit_loop.epoch_loop.val_loop if fitting else self.validate_loop
        loop = cast(SetLoop, self.test_loop if step == "test" else ours)
        values = ["row", "_callback_metrics", "_logged_metrics", "_progress_bar_metrics"] if apart else []
        with (
            kept(self, "limit_val_batches", "limit_test_batches", *["callbacks"] * apart),
            kept(state, "fn", "stage"),
            kept(loop, "inference_mode"),
            kept(logs, *values),
        ):
            for name in values:
                setattr(logs, name, dict(getattr(logs, name)))
            self.callbacks = [] if apart else self.callbacks
            verb = TrainerFn.TESTING if step == "test" else TrainerFn.VALIDATING
            state.fn = state.fn if fitting and step == "validation" else verb
            if self.sanity_checking:
                self.limit_test_batches = int(self.num_sanity_val_steps)
            if not (self.sanity_checking and step == "validation"):
                state.stage = RUNNING[verb]
            loop.inference_mode = loop.inference_mode and not fitting
            self.limit_val_batches = self.limit_test_batches if of_tests else self.limit_val_batches
            yield loop

    @quiet("lightning.pytorch", r"Detected call of `lr_scheduler\.step")  # clients stepped copies of the optimiser
    def end_clients(self, steps: int) -> None:
        """End the clients' part of a round, after ``steps`` optimiser steps in all rounds: the epoch of schedulers ends here."""
        self.count_from(steps)
        self.fit_loop.epoch_loop.batch_progress.is_last_batch = True
        self.fit_loop.epoch_loop.update_lr_schedulers("epoch", update_plateau_schedulers=False)

    def _end_round(self) -> dict[str, float]:
        """Call the hooks at the end of a round. Returns the values of its row that were logged."""
        with one_line(""):
            self.fit_loop.on_advance_end()
        return self._logger_connector.take_row()

    def publish(self, row: Mapping[str, float]) -> None:
        """Let callbacks and modules find the columns of a row in ``callback_metrics``: as they are, and with an underscore."""
        found = {name: torch.tensor(float(value)) for name, value in row.items()}
        named = {name.replace("/", "_"): value for name, value in found.items()}
        columns = {name: f"train/{column_of(name)}" for name in self.forked}
        epochs = {f"{name}_epoch": found[column] for name, column in columns.items() if column in found}
        alone = {
            name.partition("/")[2]: value
            for split in ("train/", "val/")
            for name, value in found.items()
            if name.startswith(split)
        }
        self._logger_connector._callback_metrics.update(alone | named | epochs | found)

    @property
    def stops(self) -> bool:
        """Whether a callback or a module has ended the run, or its steps are done."""
        done = self.max_steps != -1 and self.global_step >= self.max_steps
        return done or (self.should_stop and self.fit_loop._can_stop_early)

    # What modules and callbacks ask for -------------------------------------------------------------------------------------------

    @property
    def estimated_stepping_batches(self) -> int | float:
        """The steps of the client in hand in all rounds; outside clients those of the largest."""
        if self._steps == 0:
            raise ValueError(
                "a data module asked its trainer for numbers of batches or steps in setup, and no client has data yet: read "
                "estimated_stepping_batches and num_training_batches in configure_optimizers"
            )
        return min(self._steps, self.max_steps) if self.max_steps != -1 else self._steps

    @property
    def log_dir(self) -> str:
        """The directory of the run."""
        return str(self.run.directory) if self.run is not None and self.run.folder is not None else self.default_root_dir

    def save_checkpoint(self, filepath: Any, weights_only: bool | None = None, storage_options: Any = None) -> None:
        """Write the global model, with the state of callbacks and loops. A run resumes from its own ``last.ckpt``."""
        self.run.save(Path(filepath), resumable=False)


@contextmanager
def one_line(name: str) -> Iterator[None]:
    """Turn Lightning's errors about a configuration into a ValueError of one line."""
    try:
        yield
    except MisconfigurationException as error:
        raise ValueError(": ".join(filter(None, [name, " ".join(str(error).split())]))) from error
