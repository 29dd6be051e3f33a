"""Evaluate a model on central sets and on each client's held-out part."""

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Literal

import lightning as L
import numpy as np
import torch
from torch import Tensor

from flcog.apply import OwnForward
from flcog.batchnorm_statistics import recomputed_statistics
from flcog.client_module import ClientModule
from flcog.core.precision import float64_device, to_float64_device
from flcog.core.processes import Processes
from flcog.core.trees import Tree, first_leaf, num_rows
from flcog.core.types import Params, changed, given
from flcog.data import Partition, Samples
from flcog.evaluation_hooks import EvaluationHooks
from flcog.evaluation_limits import check_limits, rows_within
from flcog.evaluation_log import EvaluationLog, joins_of
from flcog.metrics import SetFigures, pooled_figures
from flcog.model_function import ModelFunction, forward, one_tensor
from flcog.own_steps import among_rounds, step_for
from flcog.reading import Reader
from flcog.trainer_view import TrainerView


class Evaluator:
    """Evaluates models on a federation's sets. Every process evaluates its share of the rows.

    Args:
        model: the client's model.
        reader: reads the federation's samples.
        batch_size: the number of rows per forward pass.
        processes: the processes, which divide the rows among themselves.
        limits: for each split the number of batches to evaluate (int), or their fraction (float); all of them by default.
        hooks: Lightning's hooks around an evaluation.
        inference_mode: whether the central sets are evaluated in torch's inference mode.
    """

    def __init__(
        self,
        model: ModelFunction,
        reader: Reader,
        batch_size: int,
        processes: Processes,
        limits: Mapping[str, int | float] | None = None,
        hooks: EvaluationHooks | None = None,
        inference_mode: bool = True,
    ) -> None:
        self._without_gradients = torch.inference_mode if inference_mode else torch.no_grad
        self.hooks = hooks or EvaluationHooks(model.module, L.LightningDataModule())
        self._stage, self._log = "testing", EvaluationLog()
        self.joins: dict[str, tuple[str, float]] = {}
        """Of :meth:`on_set`'s last figures that are no means over all rows: the reduction, and the weight per row of the set."""
        self._limits = dict(limits or {})
        self.model, self.reader, self.batch_size, self.processes = model, reader, batch_size, processes
        self.federation = reader.federation
        check_limits(self._limits, self.federation, batch_size)
        module = model.module
        metrics = module.metrics(self.federation.num_classes) if isinstance(module, ClientModule) else None
        self._metrics = metrics and metrics.to(processes.device)

    def batches(self, samples: Samples, indices: np.ndarray, loader: int = 0) -> Iterator[tuple[Tree, Tree]]:
        """Inputs and targets of samples in batches, after the hooks that change batches."""
        starts = range(0, len(indices), self.batch_size)
        read = self.reader.each(samples, ((indices[first : first + self.batch_size], None) for first in starts))
        return (self._changed(batch, loader) for batch in read) if self.hooks.batches.exist else read

    def _changed(self, read: tuple[Tree, Tree], loader: int) -> tuple[Tree, Tree]:
        """The batch after the hooks that change it."""
        with self.in_stage(self._stage) as trainer, self.hooks.batches.show(trainer):
            return changed(self.hooks.batches(self.model.eval_module, given(*read), self.processes.device, loader), read[1])

    def in_stage(self, stage: str) -> AbstractContextManager[TrainerView]:
        """Show the module a trainer in this stage, in the epoch of the run's trainer."""
        self._stage, module = stage, self.model.eval_module
        return among_rounds(module, getattr(module._trainer, "current_epoch", 0), stage)

    def _mine(self, count: int) -> np.ndarray:
        """Return this process's share of ``count`` rows."""
        return np.arange(count)[self.processes.rank :: self.processes.count]

    def on_set(
        self,
        params: Params,
        buffers: Params,
        samples: Samples,
        indices: np.ndarray | None = None,
        split: Literal["val", "test"] = "test",
        lasting: bool = False,
    ) -> dict[str, float]:
        """Compute loss and metrics on a set.

        Args:
            params, buffers: the model's.
            samples: the set.
            indices: some of its rows, if not all.
            split: the purpose of the set, which selects a module's own ``validation_step`` or ``test_step``.
            lasting: whether the module keeps what its step leaves, such as a ``MaxMetric`` of all rounds.
        """
        loaders, self.joins = self._loaders(samples, indices, split), {}
        counts = [len(rows) for rows in loaders]
        if not (count := sum(counts)):
            return {}
        mine = [rows[self._mine(len(rows))] for rows in loaders]
        total = sum(len(rows) for rows in mine)
        self._stage = "validating" if split == "val" else "testing"
        module, kind = self.model.eval_module, "validation" if split == "val" else "test"
        step = step_for(module, kind, len(loaders))
        self._log = log = EvaluationLog(self.model.log.names.of(split)) if step == kind else EvaluationLog()
        with self.hooks.state_of(self.model, lasting, step == kind) if step else nullcontext():
            with self.hooks.around_set(self.model, params, buffers, split, log, total), self._without_gradients():
                figures = self._by_metrics(params, buffers, samples, mine, counts, "" if step else f"on_{kind}_batch")
                pooled = pooled_figures(self._metrics, figures) if self._metrics else set()
                if step:
                    self._by_own_step(params, buffers, samples, mine, step, kind)
            logged = log.over_processes(module, total, self.processes) if step or self.hooks.has_callbacks else {}
        self.joins = joins_of(logged, pooled, count)
        return figures | {name: each.value for name, each in logged.items()}

    def _callbacks_with(self, params: Params, buffers: Params) -> Callable[..., None]:
        """Calls a hook of the callbacks, for the model with these weights."""
        return functools.partial(self.hooks.of_callbacks, self.model, params, buffers)

    def _loaders(self, samples: Samples, indices: np.ndarray | None, split: str) -> list[np.ndarray]:
        """The rows to evaluate, of each loader that provides the set."""
        rows = np.arange(len(samples)) if indices is None else indices
        ends = np.cumsum(samples.loaders[:-1]) if indices is None else ()
        limit = self._limits.get(split, 1.0)
        return [part[: rows_within(limit, len(part), self.batch_size)] for part in np.split(rows, ends)]

    def num_batches(self, samples: Samples, split: str) -> list[int]:
        """The number of batches to evaluate, of each loader that provides the set."""
        return [-(-len(rows) // self.batch_size) for rows in self._loaders(samples, None, split)]

    def number_predicted(self, samples: Samples) -> int:
        """The number of a set's samples to predict."""
        count = rows_within(self._limits.get("predict", 1.0), len(samples), self.batch_size)
        if not count:
            raise ValueError(f"limit_predict_batches={self._limits['predict']} leaves no sample to predict: raise it")
        return count

    @contextmanager
    def limited_to(self, batches: int) -> Iterator[None]:
        """Evaluate only this number of batches of each set."""
        before, self._limits = self._limits, {"val": batches, "test": batches}
        try:
            yield
        finally:
            self._limits = before

    def _by_metrics(
        self, params: Params, buffers: Params, samples: Samples, loaders: Sequence[np.ndarray], counts: Sequence[int], hook: str
    ) -> dict[str, float]:
        """A client module's loss and metrics. ``hook`` begins the names of the callbacks' hooks of batches, if they fire here."""
        if self._metrics is None:
            return {}
        figures = SetFigures(self._metrics, counts, self.processes.device)
        watched, call = bool(hook) and self.hooks.watches_batches, self._callbacks_with(params, buffers)
        for loader, place, (inputs, targets) in self._each_of(samples, loaders):
            with self._log.of(self.model.eval_module, num_rows(inputs), False, *place[1:]) if watched else nullcontext():
                if watched:
                    call(f"{hook}_start", given(inputs, targets), *place)
                outputs = self._outputs(params, buffers, inputs)
                losses: Tensor = self.model.module.per_example_loss(outputs, targets)  # type: ignore[operator,union-attr]
                figures.update(outputs, targets, losses, loader)
                if watched:
                    call(f"{hook}_end", losses.mean(), given(inputs, targets), *place)
        return figures.compute(self.processes.total)

    def _each_of(
        self, samples: Samples, loaders: Sequence[np.ndarray]
    ) -> Iterator[tuple[int, tuple[int, ...], tuple[Tree, Tree]]]:
        """The batches of each loader, with its index and the hooks' arguments for the batch's place."""
        for loader, rows in enumerate(loaders):
            place = (loader,) if len(loaders) > 1 else ()
            yield from ((loader, (index, *place), batch) for index, batch in enumerate(self.batches(samples, rows, loader)))

    def _by_own_step(
        self, params: Params, buffers: Params, samples: Samples, loaders: Sequence[np.ndarray], kind: str, of: str
    ) -> None:
        """Call the user's ``validation_step`` or ``test_step``, and collect the values that it logs. ``of`` is the kind of the set."""
        module, log = self.model.eval_module, self._log
        call = functools.partial(self.hooks.of_module, self.model, params, buffers)
        watch = self._callbacks_with(params, buffers)
        count = sum(len(rows) for rows in loaders)
        with self.in_stage(self._stage):
            with log.of(module, count, whole=True):
                for when in ("model_zero_grad", "model_eval", "start", "epoch_start"):
                    call(f"on_{kind}_{when}")
            for loader, place, batch in self._each_of(samples, loaders):
                size = min(self.batch_size, len(loaders[loader]) - place[0] * self.batch_size)
                with log.of(module, size, False, *place[1:]):
                    watch(f"on_{of}_batch_start", given(*batch), *place)
                    call(f"on_{kind}_batch_start", given(*batch), *place)
                    result = self.hooks.step(self.model, params, buffers, f"{kind}_step", given(*batch), *place)
                    log.take_result(result, size)
                    watch(f"on_{of}_batch_end", result, given(*batch), *place)
                    call(f"on_{kind}_batch_end", result, given(*batch), *place)
            with log.of(module, count, whole=True):
                for when in ("epoch_end", "end", "model_train"):
                    call(f"on_{kind}_{when}")
        module.eval()

    @torch.no_grad()
    def outputs(self, params: Params, buffers: Params, samples: Samples) -> Tensor:
        """The model's outputs on the samples of a set, in order, on the CPU of every process."""
        count = self.number_predicted(samples)
        mine = [self._outputs(params, buffers, inputs).cpu() for inputs, _ in self.batches(samples, self._mine(count))]
        parts = [part for part in self.processes.gather(torch.cat(mine) if mine else None) if part is not None]
        outputs = parts[0].new_empty(count, *parts[0].shape[1:])
        for rank, part in enumerate(parts):  # processes without a row come last
            outputs[rank :: self.processes.count] = part
        return outputs

    @torch.no_grad()
    def on_clients(self, params: Params, buffers: Params, parts: Partition) -> Tensor:
        """The model's mean score on each client's part, [num_clients], in one pass over all parts; NaN for clients without a part."""
        counts, rows = parts.sizes, self._mine(len(parts.indices))
        owners = np.repeat(np.arange(parts.num_clients), counts)[rows]
        sums = self._sums("per_example_score", params, buffers, parts.indices[rows], owners, parts.num_clients)
        totals = self.processes.total(torch.from_numpy(sums).to(float64_device(self.processes.device))).cpu()
        return totals / torch.from_numpy(np.where(counts > 0, counts, np.nan))

    @torch.no_grad()
    def losses(self, params: Params, buffers: Params, clients: Sequence[int]) -> list[float]:
        """The model's mean loss on each of these clients' training data, computed by this process alone."""
        parts = [self.federation.partition.client(client) for client in clients]
        owners = np.repeat(np.arange(len(parts)), [len(part) for part in parts])
        rows = np.concatenate([np.empty(0, np.int64), *parts])
        sums = self._sums("per_example_loss", params, buffers, rows, owners, len(parts))
        return [float(total) / len(part) for total, part in zip(sums, parts, strict=True)]

    def _sums(
        self, measure: str, params: Params, buffers: Params, rows: np.ndarray, owners: np.ndarray, num_owners: int
    ) -> np.ndarray:
        """The sums of a measure over some rows of the training set, by owner."""
        sums, done = np.zeros(num_owners), 0
        for inputs, targets in self.batches(self.federation.train, rows):
            outputs = self._outputs(params, buffers, inputs)
            values: Tensor = getattr(self.model.module, measure)(outputs, targets)
            sums += np.bincount(owners[done : done + len(values)], values.cpu().double().numpy(), num_owners)
            done += len(values)
        return sums

    @torch.no_grad()
    def on_classes(
        self, params: Params, buffers: Params, samples: Samples, alone: bool = False, own: OwnForward | None = None
    ) -> Tensor:
        """The mean score on each class of a set, [num_classes]; NaN for classes without samples.

        Args:
            params, buffers: the model's.
            samples: the set.
            alone: whether this process evaluates all rows, because other processes do not have the model.
            own: the outputs of a personal model that are not those of one model alone.
        """
        num_classes = self.federation.num_classes
        sums = torch.zeros(2, num_classes, dtype=torch.float64, device=float64_device(self.processes.device))
        for inputs, targets in self.batches(samples, np.arange(len(samples)) if alone else self._mine(len(samples))):
            outputs = self._outputs(params, buffers, inputs, own)
            scores = self.model.module.per_example_score(outputs, targets)  # type: ignore[operator,union-attr]
            scores, labels = to_float64_device(scores), to_float64_device(first_leaf(targets))
            sums[0].index_add_(0, labels, scores.double())
            sums[1].index_add_(0, labels, torch.ones_like(scores, dtype=torch.float64))
        total, count = (sums if alone else self.processes.total(sums)).cpu()
        return total / count

    @torch.no_grad()
    def statistics(self, params: Params, buffers: Params, rows: np.ndarray) -> Params:
        """Return the buffers with BatchNorm's statistics recomputed for these parameters on some rows of the training set."""
        batches = (inputs for inputs, _ in self.batches(self.federation.train, rows))
        return recomputed_statistics(self.model, params, buffers, batches)

    @torch.no_grad()
    def on_rows(self, params: Params, buffers: Params, rows: np.ndarray, own: OwnForward | None = None) -> float:
        """A model's mean score on some rows of the training set, computed by this process alone.

        Args:
            params, buffers: the model's.
            rows: of the training set.
            own: the outputs of a personal model that are not those of one model alone.
        """
        total = 0.0
        for inputs, targets in self.batches(self.federation.train, rows):
            outputs = self._outputs(params, buffers, inputs, own)
            total += float(self.model.module.per_example_score(outputs, targets).sum())  # type: ignore[operator,union-attr]
        return total / len(rows)

    def _outputs(self, params: Params, buffers: Params, inputs: Tree, own: OwnForward | None = None) -> Tensor:
        def apply(params: Params, inputs: Tree) -> Tensor:
            return self.model.frozen(params, buffers, forward, inputs)

        return one_tensor(self.model.module, apply(params, inputs) if own is None else own(apply, params, inputs)).float()
