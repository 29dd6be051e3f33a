"""Lightning's loops with a round as their epoch. flcog calls their parts: the training of a client is one run of the epoch loop."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, cast

from lightning.pytorch.loops.evaluation_loop import _EvaluationLoop
from lightning.pytorch.loops.fetchers import _DataFetcher
from lightning.pytorch.loops.fit_loop import _FitLoop
from lightning.pytorch.loops.optimization.automatic import Closure, ClosureResult, _AutomaticOptimization
from lightning.pytorch.loops.training_epoch_loop import _TrainingEpochLoop
from lightning.pytorch.loops.utilities import _select_data_fetcher
from lightning.pytorch.trainer.connectors.logger_connector.logger_connector import _LoggerConnector
from lightning.pytorch.trainer.connectors.logger_connector.result import _ResultCollection, _ResultMetric, _Sync
from lightning.pytorch.trainer.states import RunningStage
from lightning.pytorch.utilities import CombinedLoader

from flcog.client.messages import POOLED
from flcog.core.types import given
from flcog.functional.own_steps import columns_of


class Batches:
    """Batches for Lightning's loops, as a module's own steps receive them."""

    last: Any = None
    """The batch in hand, with its targets and its mask."""

    def __init__(self, count: int, read: Callable[[], Iterable[Any]]) -> None:
        self._count, self._read = count, read

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[Any]:
        for batch in self._read():
            self.last = batch
            inputs, targets, *_ = batch
            yield given(inputs, targets)


class RoundLoop(_FitLoop):
    """The fit loop. flcog calls ``on_run_start``, ``on_advance_start`` and ``on_advance_end`` around its rounds."""

    epoch_loop: "ClientEpoch"

    def setup_data(self) -> None:
        """Show the user's own loader. Clients have loaders of their own, and the epoch of a distributed sampler is the round."""
        if self._combined_loader is None:
            source = self._data_source
            self._combined_loader = CombinedLoader(source.dataloader() if source.is_defined() else [], "max_size_cycle")


class ClientEpoch(_TrainingEpochLoop):
    """The loop over the batches of one client. The server evaluates, so it does not validate."""

    automatic_optimization: "ClientOptimization"
    val_loop: "SetLoop"
    _results: "ClientResults"

    def __init__(self, trainer: Any, **options: Any) -> None:
        super().__init__(trainer, **options)
        self.automatic_optimization, self._results = ClientOptimization(trainer), ClientResults(training=True)
        self.trains_client = False
        """Whether a client trains. Epochs of schedulers are rounds, so that no client advances these."""
        self.ends: Any = None
        """Whether the optimiser steps after each batch of the client, if gradients are accumulated."""

    @property
    def done(self) -> bool:
        return self._num_ready_batches_reached()  # a request to stop ends the run after the round

    def train(self, loader: Any, num_batches: int) -> None:
        """Train on the batches of a loader."""
        trainer, combined = self.trainer, CombinedLoader(loader, "max_size_cycle")
        combined.limits = [num_batches]
        fetcher = _select_data_fetcher(trainer, RunningStage.TRAINING)
        fetcher.setup(combined)
        trainer.fit_loop.max_batches, self.trains_client = num_batches, True
        try:
            self.run(fetcher)
        finally:
            self.trains_client = False
            fetcher.teardown()
            trainer._logger_connector.epoch_end_reached()

    def on_run_start(self, data_fetcher: _DataFetcher) -> None:
        iter(data_fetcher)  # in every epoch, because each client has a loader of its own
        data_fetcher.fetched += self.batch_progress.current.ready
        data_fetcher._start_profiler, data_fetcher._stop_profiler = self._on_before_fetch, self._on_after_fetch

    def _accumulated_batches_reached(self) -> bool:
        return super()._accumulated_batches_reached() if self.ends is None else bool(self.ends[self.batch_idx])

    def _should_check_val_fx(self, data_fetcher: _DataFetcher) -> bool:
        return False

    def update_lr_schedulers(self, interval: str, update_plateau_schedulers: bool) -> None:
        if interval == "step" or not self.trains_client:
            super().update_lr_schedulers(interval, update_plateau_schedulers)

    def count_from(self, steps: int) -> None:
        """Let ``trainer.global_step`` be this number, and count on from it."""
        for progress in (self.automatic_optimization.optim_progress.optimizer.step, self.manual_optimization.optim_step_progress):
            progress.total.ready = progress.total.completed = steps


class ClientOptimization(_AutomaticOptimization):
    """A client's steps, with the contributions of federated methods at their places."""

    contributions: Any = None
    """``MethodPlaces`` of the client in hand."""

    def _training_step(self, kwargs: Any) -> ClosureResult:
        return cast(ClosureResult, self.contributions.add_losses(super()._training_step(kwargs)))

    def _make_zero_grad_fn(self, batch_idx: int, optimizer: Any) -> Callable[[], None] | None:
        ends = cast(ClientEpoch, self.trainer.fit_loop.epoch_loop).ends
        if ends is None:
            return super()._make_zero_grad_fn(batch_idx, optimizer)

        def zero_grad() -> None:
            self._on_before_zero_grad(optimizer)
            self._optimizer_zero_grad(batch_idx, optimizer)

        return None if self._skip_backward or (batch_idx and not ends[batch_idx - 1]) else zero_grad

    def _make_closure(self, kwargs: Any, optimizer: Any, batch_idx: int) -> Closure:
        return cast(Closure, self.contributions.wrapped(super()._make_closure(kwargs, optimizer, batch_idx), kwargs))


class _Settled(_ResultMetric):
    """A logged value that is not moved to its device again with each step, which takes a sixth of a small step's time."""

    def to(self, *args: Any, **kwargs: Any) -> Any:
        return self if self.is_tensor and args == (self.value.device,) else super().to(*args, **kwargs)


class _Results(_ResultCollection):
    def __setitem__(self, key: str, metric: Any) -> None:
        metric.__class__ = _Settled
        super().__setitem__(key, metric)


class ClientResults(_Results):
    """The logged values, and beside them the mean of each over the steps of the client in hand."""

    of_client: _ResultCollection | None = None

    def log(self, fx: str, name: str, value: Any, **options: Any) -> None:
        super().log(fx, name, value, **options)
        if self.of_client is not None:
            mean = {"on_step": False, "on_epoch": True, "batch_size": 1, "sync_dist": True, "sync_dist_fn": _Sync.no_op}
            self.of_client.log(fx, name, value, **options | mean)

    def begin_client(self) -> None:
        """Collect the values of another client."""
        self.of_client = _Results(training=True)

    def end_client(self) -> tuple[Mapping[str, Any], set[str]]:
        """The means of the client's values by name, and the names of those that are logged for steps and for epochs.

        Values of its steps are forgotten. Otherwise those of a round would be means over the batches of all clients of this process.
        """
        collected, self.of_client = self.of_client, None
        assert collected is not None
        means = collected.metrics(on_step=False)["callback"]
        forked = {self[key].meta.name for key in collected if self[key].meta.forked}
        for key in collected:
            self[key].reset()
        return means, forked


class RoundLogs(_LoggerConnector):
    """Values of single steps go to the loggers. Those of rounds and sets go into the round's row, which flcog sends to the loggers."""

    def __init__(self, trainer: Any) -> None:
        super().__init__(trainer)
        self.row: dict[str, Any] = {}
        """The values of the round that were logged since the row was taken."""
        self.withholds_steps = False
        """Whether values of single clients must stay in the process, because the run is private."""

    def log_metrics(self, metrics: Any, step: int | None = None) -> None:
        if self._first_loop_iter is None:
            self.row.update(metrics)
            self._logged_metrics.update(metrics)
        elif not self.withholds_steps:
            super().log_metrics(metrics, step)

    def log_eval_end_metrics(self, metrics: Any) -> None:
        self._logged_metrics.update(metrics)  # the set's figures have their own columns

    def take_row(self) -> dict[str, float]:
        """The values of the row, which begins anew."""
        row, self.row = self.row, {}
        return {name: float(value) for name, value in row.items()}


class SetLoop(_EvaluationLoop):
    """The evaluation loop over a set whose loaders flcog gives."""

    _weights: Mapping[str, tuple[str, float, bool]] = {}

    def measure(self, loaders: Any) -> dict[str, float]:
        """The logged values over a set, by name."""
        self._data_source.instance, self._combined_loader, self._max_batches, self._weights = loaders, None, [], {}
        outputs = {name: float(value) for part in self.run() for name, value in part.items()}
        forked = {self._results._forked_name(item, on_step=False)[::-1] for item in self._results.values() if item.meta.forked}
        names = dict(forked)
        return {names.get(name, name): value for name, value in outputs.items()}

    def _on_evaluation_epoch_end(self) -> None:
        super()._on_evaluation_epoch_end()
        self._publish()
        self._weights = {
            self._results._forked_name(item, on_step=False)[0]: (
                POOLED if not item.is_tensor else item.meta.reduce_fx.__name__,
                float(item.cumulated_batch_size) if item.is_tensor and item.meta.is_mean_reduction else 1.0,
                "batch" in item.meta.fx or "_step" in item.meta.fx,
            )
            for item in self._results.values()
            if not item.has_reset
        }

    def _publish(self) -> None:
        """Let callbacks find the values by their columns, too, such as ``val/accuracy``."""
        prefix = self._stage.dataloader_prefix
        values = {name: value for part in self._logged_outputs for name, value in part.items()}
        values |= self._results.metrics(on_step=False)["callback"]
        found = {f"{prefix}/{column}": values[name] for name, column in columns_of(values).items()}
        self.trainer._logger_connector._callback_metrics.update(found)

    def joins(self, count: int) -> dict[str, tuple[str, float]]:
        """How hosts put their last figures together that are no means over all rows: the reduction, and the weight per row."""
        return {
            name: (reduction, weight / count if reduction == "mean" else 1.0)
            for name, (reduction, weight, of_batches) in self._weights.items()
            if reduction != "mean" or (of_batches and weight != count)
        }

    def call_around(self, publish: Callable[[], None]) -> None:
        """Call the hooks of an evaluation whose figures come from elsewhere; ``publish`` shows them to the hooks after it."""
        logs = cast(RoundLogs, self.trainer._logger_connector)
        self._on_evaluation_start()
        self._on_evaluation_epoch_start()
        publish()
        self._has_run = not self.trainer.sanity_checking
        logs.epoch_end_reached()
        super()._on_evaluation_epoch_end()
        logs.row.update(logs.update_eval_epoch_metrics())
        self._on_evaluation_end()
