"""Evaluates the global model by a module's own steps, in Lightning's evaluation loops and on the module itself."""

from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
from torch import Tensor
from torch.utils import _pytree as pytree

from flcog.core.types import Params, changed, given
from flcog.data import Samples
from flcog.data.reading import Reader
from flcog.functional.model_function import ModelFunction
from flcog.functional.own_steps import columns_of
from flcog.lightning.contract import OF_A_BATCH, has_step, is_users
from flcog.lightning.loops import Batches
from flcog.lightning.trainer import RoundsTrainer

Kind = Literal["validation", "test"]
"""The kind of a set, and of the step that evaluates it."""


class OwnSteps:
    """Evaluates sets in the loops of the run's ``lightning.Trainer``. Every process evaluates whole sets."""

    def __init__(self, trainer: RoundsTrainer, model: ModelFunction, reader: Reader, batch_size: int) -> None:
        self._trainer, self._model, self._reader, self._batch_size = trainer, model, reader, batch_size
        module = model.module
        self._steps: list[Kind] = [kind for kind in ("validation", "test") if has_step(module, kind)]
        self.joins: dict[str, tuple[str, float]] = {}
        """Of the last figures that are no means over all rows: the reduction, and the weight per row of the set."""
        self.logs = model.trains_itself or bool(trainer.reason_for_its_loops(False))
        """Whether clients may log values."""
        self.changes_batches = any(is_users(owner, hook) for owner in (module, trainer.datamodule) for hook in OF_A_BATCH)
        """Whether the user's hooks change batches."""

    def step_for(self, kind: Kind) -> Kind | None:
        """The kind of the user's step for a set, if there is any. A single step serves both kinds of sets."""
        return kind if kind in self._steps else next(iter(self._steps), None)

    def takes(self, kind: Kind) -> bool:
        """Whether Lightning's loop runs over such a set: for the user's steps, or for hooks of its batches."""
        hooks = [f"on_{kind}_batch_start", f"on_{kind}_batch_end"]
        hooks += ["on_test_start", "on_test_epoch_start", "on_test_epoch_end", "on_test_end"] if kind == "test" else []
        owners = [self._model.module, *self._trainer.callbacks]
        return self.step_for(kind) is not None or any(is_users(owner, hook) for owner in owners for hook in hooks)

    def changed(self, batch: tuple[Any, Any], loader: int) -> tuple[Any, Any]:
        """Inputs and targets after the user's hooks that change batches."""
        module = self._trainer.lightning_module
        moved = module._on_before_batch_transfer(given(*batch), dataloader_idx=loader)
        return changed(self._trainer.strategy.batch_to_device(moved, dataloader_idx=loader), batch[1])

    def figures(
        self, params: Params, buffers: Params, samples: Samples, loaders: Sequence[np.ndarray], kind: Kind, lasting: bool
    ) -> dict[str, float]:
        """The values that are logged on the rows of a set's loaders, by column. Callbacks see ``lasting`` evaluations, the run's own."""
        step = self.step_for(kind) or kind
        sets = [self._batches(samples, rows) for rows in loaders]
        self.hold(params, buffers)
        with self._trainer.in_stage(step, apart=not lasting or step != kind, of_tests=kind == "test") as loop:
            logged = loop.measure(sets if len(sets) > 1 else sets[0])
            columns, count = columns_of(logged), sum(map(len, loaders))
            self.joins = {columns[name]: join for name, join in loop.joins(count).items() if name in columns}
        return {columns[name]: value for name, value in logged.items()}

    def predictions(self, params: Params, buffers: Params, samples: Samples, rows: np.ndarray) -> list[Any]:
        """The results of ``predict_step`` for each batch, on the CPU."""
        self.hold(params, buffers)
        loop = self._trainer.predict_loop
        loop._data_source.instance, loop.return_predictions = self._batches(samples, rows), True
        return [pytree.tree_map_only(Tensor, Tensor.cpu, result) for result in loop.run() or ()]

    def _batches(self, samples: Samples, rows: np.ndarray) -> Batches:
        parts = [(rows[first : first + self._batch_size], None) for first in range(0, len(rows), self._batch_size)]
        return Batches(len(parts), lambda: self._reader.each(samples, parts))

    def hold(self, params: Params, buffers: Params) -> None:
        """Load a model into the module."""
        self._model.find_tensors()
        self._model.renew_buffers()
        self._model.load(params | buffers)
