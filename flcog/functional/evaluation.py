"""Evaluate a model on central sets and on each client's held-out part."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn

from flcog.client_module import ClientModule
from flcog.core.global_streams import kept
from flcog.core.precision import float64_device, to_float64_device
from flcog.core.processes import Processes
from flcog.core.trees import Tree, first_leaf, form, num_rows
from flcog.core.types import Params
from flcog.data import Federation, Partition, Samples
from flcog.data.reading import Reader
from flcog.functional.apply import OwnForward
from flcog.functional.model_function import ModelFunction, forward
from flcog.metrics import SetFigures, pooled_figures

Kind = Literal["validation", "test"]


class Evaluator:
    """Evaluates models on a federation's sets. Every process evaluates its share of the rows."""

    def __init__(
        self,
        model: ModelFunction,
        reader: Reader,
        batch_size: int,
        processes: Processes,
        limits: Mapping[str, int | float],
        own: Any,
        inference_mode: bool = True,
    ) -> None:
        self._without_gradients = torch.inference_mode if inference_mode else torch.no_grad
        self.own = own
        """Evaluates by the module's own steps: ``flcog.lightning.evaluation.OwnSteps``."""
        self.joins: dict[str, tuple[str, float]] = {}
        """Of :meth:`on_set`'s last figures that are no means over all rows: the reduction, and the weight per row of the set."""
        self._limits = dict(limits)
        self.model, self.reader, self.batch_size, self.processes = model, reader, batch_size, processes
        self.federation = reader.federation
        check_limits(self._limits, self.federation, batch_size)
        module = model.module
        metrics = module.all_metrics(self.federation.num_classes) if isinstance(module, ClientModule) else None
        self._metrics = metrics and metrics.to(processes.device)

    @property
    def have_figures(self) -> bool:
        """Whether an evaluation may have figures."""
        return self._metrics is not None or self.own.takes("validation") or self.own.takes("test")

    def batches(self, samples: Samples, indices: np.ndarray, loader: int = 0) -> Iterator[tuple[Tree, Tree]]:
        """Inputs and targets of samples in batches, after the hooks that change batches."""
        starts = range(0, len(indices), self.batch_size)
        read = self.reader.each(samples, ((indices[first : first + self.batch_size], None) for first in starts))
        return read if not self.own.changes_batches else (self.own.changed(batch, loader) for batch in read)

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
        """The loss and the metrics on some rows of a set, or on all.

        The split selects a module's own ``validation_step`` or ``test_step``. ``lasting``, the module keeps what its step leaves, such
        as a ``MaxMetric`` of all rounds.
        """
        kind: Kind = "validation" if split == "val" else "test"
        loaders, self.joins, found = self._loaders(samples, indices, split), {}, dict[str, float]()
        if count := sum(map(len, loaders)):
            with self._without_gradients():
                found = self._by_metrics(params, buffers, samples, loaders)
            pooled = pooled_figures(self._metrics, found) if self._metrics else set[str]()
            self.joins = dict.fromkeys(sorted(pooled), ("pooled", 1.0))
        if self.own.takes(kind) and (lasting or self._metrics is None):
            whole = self._loaders(samples, indices, split, limited=False)  # Lightning's loop has the same limits
            found |= self.own.figures(params, buffers, samples, whole, kind, lasting)
            self.joins |= self.own.joins
        return found if count else {}

    def _loaders(self, samples: Samples, indices: np.ndarray | None, split: str, limited: bool = True) -> list[np.ndarray]:
        """The rows to evaluate, of each loader that provides the set."""
        rows = np.arange(len(samples)) if indices is None else indices
        ends = np.cumsum(samples.loaders[:-1]) if indices is None else ()
        limit = self._limits.get(split, 1.0) if limited else 1.0
        return [part[: rows_within(limit, len(part), self.batch_size)] for part in np.split(rows, ends)]

    def number_predicted(self, samples: Samples) -> int:
        """The number of a set's samples to predict."""
        count = rows_within(self._limits.get("predict", 1.0), len(samples), self.batch_size)
        if not count:
            raise ValueError(f"limit_predict_batches={self._limits['predict']} leaves no sample to predict: raise it")
        return count

    @contextmanager
    def limited_to(self, batches: int) -> Iterator[None]:
        """Evaluate only this number of batches of each set."""
        with kept(self, "_limits"):
            self._limits = {"val": batches, "test": batches}
            yield

    def _by_metrics(self, params: Params, buffers: Params, samples: Samples, loaders: Sequence[np.ndarray]) -> dict[str, float]:
        """A client module's loss and metrics."""
        if self._metrics is None:
            return {}
        figures = SetFigures(self._metrics, list(map(len, loaders)), self.processes.device)
        for loader, rows in enumerate(loaders):
            for inputs, targets in self.batches(samples, rows[self._mine(len(rows))], loader):
                outputs = self._outputs(params, buffers, inputs)
                losses: Tensor = self.model.module.per_example_loss(outputs, targets)  # type: ignore[operator,union-attr]
                figures.update(outputs, targets, losses, loader)
        return figures.compute(self.processes.total)

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

        ``alone``, this process evaluates all rows, because other processes do not have the model. ``own`` makes the outputs of a
        personal model that are not those of one model alone.
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
        """The buffers with the means of BatchNorm's statistics over some rows of the training set, computed with these parameters."""
        norms = [layer for layer in self.model.module.modules() if isinstance(layer, nn.modules.batchnorm._BatchNorm)]
        momenta = [norm.momentum for norm in norms]
        fresh = {name: torch.zeros_like(b) if name.endswith("num_batches_tracked") else b.clone() for name, b in buffers.items()}
        self.model.renew_buffers()
        try:
            for norm in norms:
                norm.momentum = None  # the mean over batches
            for inputs, _ in self.batches(self.federation.train, rows):
                if num_rows(inputs) > 1:
                    self.model.training(params, fresh, forward, inputs)
        finally:
            for norm, momentum in zip(norms, momenta, strict=True):
                norm.momentum = momentum
        return fresh

    @torch.no_grad()
    def on_rows(self, params: Params, buffers: Params, rows: np.ndarray, own: OwnForward | None = None) -> float:
        """A model's mean score on some rows of the training set, computed by this process alone."""
        total = 0.0
        for inputs, targets in self.batches(self.federation.train, rows):
            outputs = self._outputs(params, buffers, inputs, own)
            total += float(self.model.module.per_example_score(outputs, targets).sum())  # type: ignore[operator,union-attr]
        return total / len(rows)

    def _outputs(self, params: Params, buffers: Params, inputs: Tree, own: OwnForward | None = None) -> Tensor:
        def apply(params: Params, inputs: Tree) -> Tensor:
            return self.model.frozen(params, buffers, forward, inputs)

        outputs = apply(params, inputs) if own is None else own(apply, params, inputs)
        if not isinstance(outputs, Tensor):
            raise ValueError(
                f"{type(self.model.module).__name__}.forward returns {form(outputs)}, and outputs are one tensor: write a predict_step, "
                "whose results trainer.predict returns as they are"
            )
        return outputs.float()


def rows_within(limit: int | float, count: int, batch_size: int) -> int:
    """The number of rows that a limit leaves of a set."""
    batches = -(-count // batch_size)
    return min(count, batch_size * (limit if isinstance(limit, int) else int(limit * batches)))


def check_limits(limits: Mapping[str, int | float], federation: Federation, batch_size: int) -> None:
    """Refuse a part of a central set that is less than one batch, as Lightning does. A limit of 0 leaves the set out."""
    for split, samples in (("val", federation.val), ("test", federation.test)):
        limit = limits.get(split, 1.0)
        for count in (samples.loaders or (len(samples),)) if samples is not None and limit else ():
            if count and not rows_within(limit, count, batch_size):
                option = f"limit_{split}_batches" + " (or overfit_batches)" * (split == "val")
                raise ValueError(
                    f"{option} must leave one batch; got {limit:g} of {-(-count // batch_size)} with up to {batch_size} samples of the "
                    f"{split} set: give a number of batches, or lower data.eval_batch_size"
                )
