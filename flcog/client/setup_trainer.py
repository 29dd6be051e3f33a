"""The trainer as a module sees it before round 1, in ``setup``, ``configure_model`` and ``configure_optimizers``."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import lightning as L
from lightning.pytorch.trainer.states import TrainerFn

from flcog.core.processes import Processes
from flcog.data import FederatedDataModule
from flcog.data.batching import Batching
from flcog.settings import Settings
from flcog.trainer_view import RUNNING, TrainerView


class SetupTrainer(TrainerView):
    """The attributes of ``lightning.Trainer`` that are known before round 1.

    Schedulers with the interval ``step`` restart in each round, so that ``estimated_stepping_batches`` is a client's number of steps in a
    round, and ``num_training_batches`` its number of batches: those of the client with the largest data set.

    Args:
        settings: the user's.
        datamodule: the user's data, set up.
        processes: of the run.
        callbacks: the run's callbacks of Lightning's.
        default_root_dir: the folder of the runs' directories.
        directory: makes or finds the run's directory. None for a run that writes nothing.
    """

    stage = "fit"
    current_epoch, global_step, should_stop, logger, loggers = 0, 0, False, None, ()

    def __init__(
        self,
        settings: Settings,
        datamodule: FederatedDataModule,
        processes: Processes,
        callbacks: Sequence[L.Callback] = (),
        default_root_dir: str = "runs",
        directory: Callable[[], Path | None] = lambda: None,
    ) -> None:
        super().__init__()
        self._federated, self.datamodule, self.callbacks = datamodule, datamodule.hooked, list(callbacks)
        self.max_epochs, self.precision = settings.rounds, settings.precision
        self.accumulate_grad_batches = settings.accumulate_grad_batches
        self.world_size = self.num_devices = processes.count
        self.global_rank, self.is_global_zero = processes.rank, processes.is_first
        self._settings, self.default_root_dir, self._directory = settings, default_root_dir, directory

    def enter(self, stage: TrainerFn) -> None:
        """Show the stage of the trainer's verb, if it is not ``fit``."""
        self.state.fn, self.state.stage, self.stage = stage, RUNNING[stage], stage.value

    @property
    def log_dir(self) -> str:
        """The run's directory, or ``default_root_dir``. As in Lightning, all processes must ask for it, or none."""
        return str(self._directory() or self.default_root_dir)

    @property
    def estimated_stepping_batches(self) -> int:
        return self._batching.num_steps(self._largest)

    @property
    def num_training_batches(self) -> int:
        return len(self._batching.layout(self._largest, self.estimated_stepping_batches)[0])

    @property
    def _largest(self) -> int:
        if self._federated.seen_in_setup is self:
            raise ValueError(
                "a data module asked its trainer for numbers of batches or steps in setup, and no client has data yet: read "
                "estimated_stepping_batches and num_training_batches in configure_optimizers"
            )
        return int(self._federated.federation.partition.sizes.max())

    @property
    def _batching(self) -> Batching:
        settings, data = self._settings, self._federated
        work = settings.local_steps, settings.local_epochs
        return Batching(data.batch_size, *work, data.drop_last, settings.accumulate_grad_batches)

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(
            f"a module asked its trainer for {name!r} before round 1, when it is not known yet: use it in on_fit_start, or leave it out"
        )
