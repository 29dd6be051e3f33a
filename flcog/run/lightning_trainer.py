"""The trainer as Lightning's callbacks see it: the attributes of ``lightning.Trainer`` that have a meaning in federated training."""

import os
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from operator import attrgetter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import lightning as L
import torch
from lightning.pytorch.loggers import Logger
from torch import Tensor
from torch.nn.modules.batchnorm import _NormBase
from torch.nn.utils.parametrizations import _SpectralNorm

from flcog.client.optimizers import each_optimizer
from flcog.core.lightning_packages import lightning_base, overrides
from flcog.core.processes import Processes
from flcog.run.session import Session
from flcog.step_log import between_rounds
from flcog.trainer_view import TrainerView


class Strategy:
    """The part of a Lightning strategy that callbacks use: decisions that all processes share."""

    def __init__(self, processes: Processes) -> None:
        self._processes, self.root_device = processes, processes.device

    def broadcast(self, value: Any, src: int = 0) -> Any:
        """The first process's value, on every process."""
        return self._processes.agree(value)

    def reduce_boolean_decision(self, decision: bool, all: bool = True) -> bool:
        """Whether all processes, or any of them, say yes."""
        yes = int(self._processes.total(torch.tensor(int(decision), device=self.root_device)))
        return yes == self._processes.count if all else yes > 0

    def barrier(self, name: str | None = None) -> None:
        """Wait for all processes."""
        self._processes.agree(None)

    def remove_checkpoint(self, path: str | Path) -> None:
        if self._processes.is_first:
            Path(path).unlink(missing_ok=True)


def _of_run(attribute: str) -> Any:
    return property(attrgetter(f"_run.{attribute}"))


def _of_kind(name: str) -> tuple[Any, Any]:
    """Properties with the first callback of this kind of Lightning's, or None, and with all of them."""

    def every(trainer: Any) -> list[L.Callback]:
        return [callback for callback in trainer.callbacks if lightning_base(callback, name)]

    return property(lambda trainer: next(iter(every(trainer)), None)), property(every)


class LightningTrainer(TrainerView):
    """A federated run with the attributes of ``lightning.Trainer``.

    An epoch is a round, and a step of the global model is a round, too: ``current_epoch`` counts rounds from 0, and ``global_step`` is
    the number of completed rounds.

    Args:
        run: the run.
        callbacks: Lightning's callbacks, in their order.
        datamodule: the user's data module.
        default_root_dir, fast_dev_run: the arguments of the federated trainer.
    """

    val_check_interval, num_training_batches, ckpt_path, enable_validation = 1.0, 1, None, True

    def __init__(
        self,
        run: Session,
        callbacks: Sequence[L.Callback],
        datamodule: L.LightningDataModule,
        default_root_dir: str,
        fast_dev_run: bool | int = False,
    ) -> None:
        super().__init__()
        self._run, self.callbacks, self.datamodule = run, list(callbacks), datamodule
        self.default_root_dir, self.fast_dev_run = default_root_dir, fast_dev_run
        self.strategy = Strategy(run.processes)
        self.metrics: dict[str, float] = {}
        """The row of the round in hand. Callbacks and modules may add figures."""
        self._earlier: dict[str, float] = {}
        self._fit, self._given, self._used = run, list[Logger](), list[Logger]()
        self.shown = run.model.log.in_progress_bar
        """The columns that a module or callback logs with ``prog_bar=True``."""
        self.current_epoch = run.round
        self.attached: tuple[Any, Any, Any] = None, [], []
        """The trainer, the callbacks and the module's hooks of this run for its observer, because a later run may have others."""

    def begin_row(self, metrics: dict[str, float]) -> None:
        """Replace the row in hand, and remember its figures for callbacks."""
        self._earlier |= self.metrics
        self.metrics = metrics

    def follow(self, last: Session | None, loggers: list[Logger]) -> None:
        """Let an evaluation show the progress, the directory and the trackers of the trainer's last run.

        Args:
            last: the last run, if there is one.
            loggers: the user's loggers, which an evaluation without a run before it uses as they are.
        """
        if last is None:
            self._given = loggers
        else:
            self._fit, self.current_epoch = last, last.round

    # Progress ---------------------------------------------------------------------------------------------------------------------

    global_step = property(attrgetter("_fit.round"))
    max_epochs = estimated_stepping_batches = _of_run("settings.rounds")
    accumulate_grad_batches = _of_run("settings.accumulate_grad_batches")

    @property
    def check_val_every_n_epoch(self) -> int:
        return max(1, self._run.settings.eval_every)

    @property
    def should_stop(self) -> bool:
        return self._run.should_stop

    @should_stop.setter
    def should_stop(self, value: bool) -> None:
        self._run.should_stop = value

    # Metrics ----------------------------------------------------------------------------------------------------------------------

    @property
    def callback_metrics(self) -> dict[str, Tensor]:
        """The newest value of each column, under its own name (``val/loss``), as it was logged, with an underscore and alone (``loss``).

        ``loss`` alone, if the module has not logged this name, is the column of the validation set, or of the training without one.
        """
        names, now = self._run.model.log.names, getattr(self.state.stage, "dataloader_prefix", None)
        found = names.named(self._earlier, now) | names.named(self.metrics, now)
        alone = {
            name.partition("/")[2]: value
            for split in ("train/", "val/")
            for name, value in found.items()
            if name.startswith(split)
        }
        return {name: torch.tensor(float(value)) for name, value in (alone | found).items()}

    logged_metrics = callback_metrics

    @property
    def progress_bar_metrics(self) -> dict[str, float]:
        shown = self.shown
        return {name: value for name, value in self.metrics.items() if name in shown or name.endswith(("/loss", "/accuracy"))}

    # Where ------------------------------------------------------------------------------------------------------------------------

    @property
    def loggers(self) -> list[Logger]:
        self._fit.trackers.open()
        self._used = [*self._fit.trackers.loggers, *self._given]
        return self._used

    def save_logs(self) -> None:
        """Let the loggers that a module or callback has asked for write the values that they hold."""
        for logger in self._used:
            logger.save()

    @property
    def logger(self) -> Logger | None:
        return next(iter(self.loggers), None)

    @property
    def log_dir(self) -> str:
        """The run's directory. A run that writes nothing has none, and its files belong into ``default_root_dir``."""
        return str(self._fit.directory) if self._fit.has_directory else self.default_root_dir

    is_global_zero = _of_run("processes.is_first")
    world_size = num_devices = _of_run("processes.count")
    global_rank = _of_run("processes.rank")
    precision = _of_run("settings.precision")

    @property
    def local_rank(self) -> int:
        return int(os.environ.get("LOCAL_RANK", 0))

    # Parts ------------------------------------------------------------------------------------------------------------------------

    lightning_module = model = _of_run("model.module")
    trained = _of_run("params")

    @property
    def optimizers(self) -> list[torch.optim.Optimizer]:
        """The clients' optimizer, with the learning rates of the round."""
        engine = self._run.engine
        for group, rate in zip(engine.optimizer.param_groups, engine.rates(self.current_epoch), strict=True):
            group["lr"] = rate
        return each_optimizer(engine.optimizer)

    @property
    def lr_scheduler_configs(self) -> Sequence[Any]:
        """The schedulers that advance once per round."""
        return self._run.engine.schedules.configs if self.optimizers else ()

    checkpoint_callback, checkpoint_callbacks = _of_kind("Checkpoint")
    early_stopping_callback, early_stopping_callbacks = _of_kind("EarlyStopping")
    progress_bar_callback, _ = _of_kind("ProgressBar")

    @property
    def train_dataloader(self) -> Any:
        """The loader of the user's data module; clients read its data set in their own order. None for flcog's data modules."""
        return self._loader("train_dataloader")

    @property
    def val_dataloaders(self) -> Any:
        """The loader of the user's data module for validation, or None."""
        return self._loader("val_dataloader")

    @property
    def test_dataloaders(self) -> Any:
        """The loader of the user's data module for tests, or None."""
        return self._loader("test_dataloader")

    def _loader(self, hook: str) -> Any:
        return getattr(self.datamodule, hook)() if overrides(self.datamodule, "LightningDataModule", hook) else None

    def load_global_model(self) -> None:
        """Load the global weights into the module, which otherwise contains a client's weights."""
        self._run.engine.hand_over(self._run.server)

    @contextmanager
    def kept(self, hooked: bool) -> Iterator[None]:
        """Let clients and evaluations begin with the attributes and temporary buffers as hooks have left them, and refuse clients' metrics.

        Args:
            hooked: whether the hooks include a user's.
        """
        model = self._run.model
        with ExitStack() as contexts:
            if hooked:
                contexts.enter_context(model.copies.follow())
                contexts.enter_context(between_rounds(model.module, model.copies.training))
            yield
        self._run.model.keep_buffers()

    def changed_parameter(self) -> str | None:
        """The name of a parameter of the module that differs from the global model's, if there is any."""
        now = dict(self.lightning_module.named_parameters())
        return next((name for name, value in self._run.params.items() if not torch.equal(now[name], value)), None)

    def changed_buffer(self) -> str | None:
        """The same of a persistent buffer, unless its layer changes it in each forward pass, such as a hook's on some samples."""
        now, layers = dict(self.lightning_module.named_buffers()), dict(self.lightning_module.named_modules())
        for name, value in self._run.buffers.items():
            changes_it = isinstance(layers.get(name.rpartition(".")[0]), _NormBase | _SpectralNorm)
            if not changes_it and (name not in now or not torch.equal(now[name], value.to(now[name]))):
                return name
        return None

    def save_checkpoint(self, filepath: str | Path, weights_only: bool | None = None, storage_options: Any = None) -> None:
        """Write the global model. A run resumes from its own ``last.ckpt``, which also holds the clients' states."""
        path = Path(filepath)
        if self.is_global_zero:
            path.parent.mkdir(parents=True, exist_ok=True)
        self._run.save(path, resumable=False)

    # Internals that some of Lightning's own callbacks read --------------------------------------------------------------------------

    num_val_batches = num_test_batches = num_sanity_val_batches = num_predict_batches = (1,)

    @property
    def fit_loop(self) -> Any:
        evaluated = SimpleNamespace(_has_run=any(name.startswith(("val/", "test/")) for name in self._earlier | self.metrics))
        epoch = SimpleNamespace(_batches_that_stepped=self._run.round, val_loop=evaluated)
        return SimpleNamespace(total_batch_idx=self._run.round, epoch_loop=epoch)

    @property
    def _logger_connector(self) -> Any:
        return SimpleNamespace(should_update_logs=True)

    @property
    def _accelerator_connector(self) -> Any:
        return SimpleNamespace(is_distributed=self.world_size > 1)

    @property
    def accelerator(self) -> Any:
        from lightning.pytorch.accelerators import CPUAccelerator, CUDAAccelerator, MPSAccelerator

        kinds = {"cuda": CUDAAccelerator, "mps": MPSAccelerator}
        return kinds.get(self.strategy.root_device.type, CPUAccelerator)()

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(
            f"a Lightning callback or module asked the trainer for {name!r}, which federated training does not have: docs/lightning.md "
            "lists the attributes that exist"
        )
