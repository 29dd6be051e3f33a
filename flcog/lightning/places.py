"""The places of federated methods in the steps of Lightning's loops."""

from collections.abc import Callable, Sequence
from typing import Any

import lightning as L
import torch
from lightning.pytorch.loops.optimization.automatic import Closure, ClosureResult
from torch import Tensor
from torch.utils import _pytree as pytree

from flcog.client.program import ClientTensors, Program, with_states
from flcog.core.precision import number_dtype
from flcog.core.types import Batch, Params, changed
from flcog.functional.model_function import ModelFunction
from flcog.lightning.loops import Batches
from flcog.lightning.trainer import RoundsTrainer
from flcog.method import Context, Gradient


class Skipped(Exception):
    """``training_step`` has returned None."""


class MethodPlaces(L.Callback):
    """The contributions of methods to the steps of one client, as the first of the callbacks while it trains.

    =============================  ================================================================================================
    ``training_step``              ``loss``: the terms are added to its loss
    ``backward``                   ``wrap_gradient``: the optimiser's closure is called inside all wrappers
    ``on_before_optimizer_step``   ``correct_gradient``: before the hooks of others, and before clipping
    ``on_train_batch_end``         ``after_step``: before the hooks of others, if the optimiser has stepped
    =============================  ================================================================================================
    """

    def __init__(
        self,
        program: Program,
        model: ModelFunction,
        trainer: RoundsTrainer,
        tensors: ClientTensors,
        loader: Batches,
    ) -> None:
        self._program, self._model, self._trainer, self.tensors, self._loader = program, model, trainer, tensors, loader
        self._manual = not model.module.automatic_optimization
        self.total = torch.zeros((), device=trainer.strategy.root_device, dtype=number_dtype())
        """The sum of the batches' losses, of which there are ``losses``."""
        self.losses = 0
        self.rates: list[float] = []
        """The learning rate of each step."""
        self.begins = True
        """Whether the next batch is the first of its step."""
        self._parts: list[Batch] = []
        """The batches of the step in hand."""
        self._contexts: list[Context] = []
        self._before: Params = {}
        self._loss: Tensor | None = None
        self._backward: list[Tensor] = []
        """The losses of the backward passes in the step in hand."""
        self._rate = 0.0

    def on_train_batch_start(self, trainer: Any, module: Any, batch: Any, batch_idx: int) -> None:
        read, program = self._loader.last, self._program
        self._model.take_assigned()
        self._note_rate()
        self._parts = [] if self.begins else self._parts
        program.local_step = program.local_step if self._parts else batch_idx
        self._parts = [*self._parts, Batch(*changed(batch, read.targets), read.mask)]
        if program.needs_context:
            self._contexts = program.contexts(self.tensors, self._model.buffers, len(self.rates))
        if program.followers and self.begins:
            self._before = {name: value.detach().clone() for name, value in self._model.params.items()}
        self._counted, self._loss = trainer.global_step, None
        self._backward.clear()

    def on_before_backward(self, trainer: Any, module: Any, loss: Tensor) -> None:
        scale = self._scale
        self._backward.append(loss.detach() if scale == 1 else loss.detach() / scale)

    @property
    def _scale(self) -> float:
        """The factor of losses and gradients under ``precision=16-mixed``."""
        return float(self._trainer.scaler.get_scale()) if self._trainer.scaler is not None else 1.0

    def _note_rate(self) -> None:
        """Tell methods the learning rate, which a scheduler or a hook may have changed since the last step."""
        self._rate = next((float(group.get("lr", 0.0)) for group in self._trainer.optimizers[0].param_groups), 0.0)
        self._program.optimisation = self._program.optimisation._replace(lr=self._rate)

    def add_losses(self, result: ClosureResult) -> ClosureResult:
        """Add the methods' terms to the loss of ``training_step``."""
        self._note_rate()
        if result.closure_loss is None or result.loss is None:
            self._loss = None
            return result
        count, program = self._trainer.accumulate_grad_batches, self._program
        task = (result.closure_loss * count if count > 1 else result.closure_loss).reshape(())
        self._loss = task.detach()
        if not program.losses:
            return result
        apply = program.apply(self._model.buffers, live=True)
        total = program.with_terms(apply, self._model.params, self._parts[-1], task, self._contexts)
        return type(result)(total / count if count > 1 else total, extra=result.extra)

    def wrapped(self, closure: Closure, kwargs: dict[str, Any]) -> Closure:
        """The closure of a step inside the wrappers of gradients."""
        return _Wrapped(closure, kwargs, self) if self._program.wraps else closure

    @torch.no_grad()
    def gradient(self, once: Callable[[Any, bool], ClosureResult]) -> ClosureResult:
        """Let the methods' wrappers compute the gradient of the batch, and store it in the parameters.

        ``once`` runs Lightning's closure on a batch; for the first time in this step if its second argument is true.
        """
        params, buffers = self._model.params, self._model.buffers
        start, earlier, reached, results = _copies(buffers), Params(), set[str](), list[ClosureResult]()
        scale = self._scale

        def base(at: Params, batch: Batch) -> Gradient:
            moved = {name: params[name].clone() for name, value in at.items() if value is not params[name]}
            for name in moved:
                params[name].copy_(at[name])
            kept, self._parts[-1] = self._parts[-1], batch
            try:
                with torch.enable_grad():
                    result = once(batch.given, not results)
                self._model.take_assigned()
                if self._loss is None:
                    raise Skipped
                reached.update(name for name, value in params.items() if value.grad is not None)
                values = {n: torch.zeros_like(p) if p.grad is None else p.grad / scale for n, p in params.items()}
                after = _copies(buffers)
            finally:
                self._parts[-1] = kept
                for name, value in moved.items():
                    params[name].copy_(value)
                for name, value in start.items():
                    buffers[name].copy_(value)
                for value in params.values():
                    value.grad = None
            results.append(result)
            return Gradient(values, after, self._loss)

        self._earlier = earlier
        try:
            gradient = self._program.wrapped(base, params, self._parts[-1], self._contexts)
        except Skipped:
            gradient, results = None, [ClosureResult(None)]
        for name, parameter in params.items():
            parameter.grad = earlier.get(name)
            if gradient is not None and (name in reached or gradient.values[name].any()):
                value = gradient.values[name] * scale if scale != 1 else gradient.values[name].clone()
                parameter.grad = value if parameter.grad is None else parameter.grad + value
        if gradient is not None:
            for name, value in gradient.buffers.items():
                buffers[name].copy_(value)
            self._loss = gradient.loss
            if gradient.state:
                self.tensors = with_states(self.tensors, self._model.owned(gradient.state))
        return results[0]

    def set_aside(self) -> None:
        """Keep the gradients of the step's earlier batches apart from those of the batch in hand."""
        for name, parameter in self._model.params.items():
            if parameter.grad is not None:
                self._earlier[name], parameter.grad = parameter.grad, None

    @torch.no_grad()
    def on_before_optimizer_step(self, trainer: Any, module: Any, optimizer: Any) -> None:
        program, params = self._program, self._model.params
        if self._manual or not (program.corrections or self.tensors.masks):
            return
        values = {name: torch.zeros_like(p) if p.grad is None else p.grad for name, p in params.items()}
        values = program.corrected(values, params, self._contexts, self.tensors.masks)
        for name, parameter in params.items():
            if (
                parameter.grad is not None or values[name].any()
            ):  # torch's optimisers leave others as they are, also with weight decay
                parameter.grad = values[name].clone()  # hooks may change gradients in place

    @torch.no_grad()
    def on_train_batch_end(self, trainer: Any, module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        stepped = self._manual or trainer.global_step > self._counted
        loss = self._manual_loss(outputs) if self._manual else self._loss
        if loss is not None:
            self.total += loss
            self.losses += 1
        elif not self._manual:
            self._parts.pop()
        if stepped and self._program.followers and self._parts:
            self.tensors = self._program.follow(len(self.rates), self._before, joined(self._parts), self.tensors)
        if stepped:
            self.rates.append(self._rate)
        self.begins = stepped

    def _manual_loss(self, outputs: Any) -> Tensor | None:
        """The loss that ``training_step`` has returned, or the sum of the losses of ``manual_backward``."""
        returned, losses = (outputs or {}).get("loss"), self._backward
        if isinstance(returned, Tensor):
            return returned.detach().reshape(())
        return torch.stack(losses).sum() if losses else None


class _Wrapped(Closure):
    """Lightning's closure as the innermost of the methods' gradients."""

    def __init__(self, closure: Closure, kwargs: dict[str, Any], places: MethodPlaces) -> None:
        super().__init__(closure._step_fn, closure._backward_fn, closure._zero_grad_fn)
        self._kwargs, self._places = kwargs, places

    def closure(self, *args: Any, **kwargs: Any) -> ClosureResult:
        return self._places.gradient(self._once)

    def _once(self, given: Any, first: bool) -> ClosureResult:
        self._kwargs["batch"] = given
        result = self._step_fn()
        if first:
            if self._zero_grad_fn is not None:
                self._zero_grad_fn()
            self._places.set_aside()
        if self._backward_fn is not None and result.closure_loss is not None:
            self._backward_fn(result.closure_loss)
        return result


def joined(parts: Sequence[Batch]) -> Batch:
    """The samples of a step whose gradients come from several batches, as one batch."""
    if len(parts) == 1:
        return parts[0]
    inputs, targets = pytree.tree_map(lambda *leaves: torch.cat(leaves), *((part.inputs, part.targets) for part in parts))
    return Batch(inputs, targets)


def _copies(tensors: Params) -> Params:
    return {name: value.clone() for name, value in tensors.items()}
