"""One faithful step: the module's own forward and backward pass with its hooks, inside the contributions of the methods."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from flcog.apply import PlainApply
from flcog.client.program import ClientTensors, Program
from flcog.core.gradients import gradients_of
from flcog.core.types import Batch, Params
from flcog.execute.local_trainer import LocalTrainer
from flcog.method import Context, Gradient
from flcog.model_function import ModelFunction
from flcog.own_steps import NoLoss, call_step


class Place(NamedTuple):
    """The place of a batch in a client's training.

    Args:
        number: of the batch.
        step: the number of the optimiser's step.
        first: whether it is the first batch of its step.
        last: whether the optimiser steps after it.
    """

    number: int
    step: int
    first: bool
    last: bool


class FaithfulStep:
    """One batch of one client: a step of the optimiser, or a part of a step if gradients of several batches are accumulated.

    Args:
        program: the client side of the round.
        model: the client's model.
        trainer: calls the hooks.
        batch: the batch.
        place: its place among the client's batches.
    """

    def __init__(self, program: Program, model: ModelFunction, trainer: LocalTrainer, batch: Batch, place: Place) -> None:
        self._program, self._model, self._trainer, self._batch, self._place = program, model, trainer, batch, place
        self._module: Any = model.module
        self._returned: Any = None
        self._zeroed = False
        self._reached = set[str]()
        """The parameters on which the loss depends."""
        self.gradient: Gradient | None = None
        """The gradient of the batch, in the contributions of methods; None if ``training_step`` returned no loss."""
        self.loss: Tensor | None = None
        self.sums_losses = False
        """Whether the loss is the sum of the losses of ``manual_backward``, because ``training_step`` returned no loss."""
        self.rate: float | None = None
        """The learning rate of the step; None if it had no gradient."""

    @property
    def outputs(self) -> dict[str, Any]:
        """The results of ``training_step``, as ``on_train_batch_end`` receives them."""
        if self.loss is None:
            return dict(self._returned) if isinstance(self._returned, Mapping) else {}
        others = self._returned if isinstance(self._returned, Mapping) else {}
        return {**others, "loss": self.loss / count if (count := self._trainer.accumulate_grad_batches) > 1 else self.loss}

    @property
    def logged(self) -> Params:
        """The values that ``training_step`` logged. With manual optimisation the hooks' values include them."""
        return {} if self.gradient is None else self.gradient.logged

    # Automatic optimisation -------------------------------------------------------------------------------------------------------

    def take(self, tensors: ClientTensors) -> None:
        """Take the step by the module's ``optimizer_step``, or add to the gradients of a step that later batches end."""
        if not self._place.last:
            self._closure(tensors)
            return
        optimizer, number = self._trainer.strategy._lightning_optimizers[0], self._place.number
        with torch.enable_grad():
            self._module.optimizer_step(self._trainer.current_epoch, number, optimizer, lambda: self._closure(tensors))
        self._trainer.global_step += 1

    @torch.no_grad()
    def _closure(self, tensors: ClientTensors) -> Tensor | None:
        """Compute the gradient, store it in the parameters, and return the loss."""
        program, params, buffers = self._program, self._model.params, self._model.buffers
        self._note_rate()
        contexts = program.contexts(tensors, buffers, self._place.step) if program.needs_context else []
        self._zeroed, self.gradient, self.loss, self._returned = not self._place.first, None, None, None
        self._reached.clear()

        def live(params: Params, batch: Batch) -> Gradient:
            return self._backward(params, buffers, batch, contexts)

        def elsewhere(params: Params, batch: Batch) -> Gradient:
            # A forward pass updates BatchNorm's statistics in place, so each pass needs a copy.
            leaves = _leaves(params, self._model.params)
            return self._backward(leaves, {name: buffer.clone() for name, buffer in buffers.items()}, batch, contexts)

        try:
            gradient = program.wrapped(elsewhere if program.wraps else live, params, self._batch, contexts)
        except NoLoss:
            self._zero_gradients()
            # As in Lightning, the optimiser steps along the gradients of the step's earlier batches.
            if all(parameter.grad is None for parameter in params.values()):
                self.rate = None
                return None
            values = _gradients(params)
        else:
            for name, buffer in gradient.buffers.items() if program.wraps else ():
                buffers[name].copy_(buffer)
            # Earlier batches of the step left gradients, or the module's optimizer_zero_grad keeps them.
            kept = {name: parameter.grad for name, parameter in params.items()} if program.wraps else {}
            values = {name: value if (old := kept.get(name)) is None else old + value for name, value in gradient.values.items()}
            self.gradient, self.loss = gradient, gradient.loss
        if self._place.last:
            values = program.corrected(values, params, contexts, tensors.masks)
        for name, parameter in params.items():
            if parameter.grad is None and name not in self._reached and not values[name].any():
                continue  # torch's optimisers leave such a parameter as it is, also with weight decay
            # Hooks may change gradients in place, and a method's correction may be a part of its state.
            parameter.grad = values[name].clone() if program.corrections or program.wraps else values[name]
        return self.loss

    def _note_rate(self) -> None:
        """Tell methods the learning rate, which a scheduler or a hook may have changed since the last step."""
        self.rate = float(self._trainer.optimizers[0].param_groups[0]["lr"])
        self._program.optimisation = self._program.optimisation._replace(lr=self.rate)

    def _backward(self, params: Params, buffers: Params, batch: Batch, contexts: Sequence[Context]) -> Gradient:
        """The gradient of the total loss, with the hooks around the backward pass.

        Args:
            params: the model's own, or other parameters where a method takes the gradient.
            buffers: the model's own, or copies.
            batch: of the step.
            contexts: of the methods.
        """
        own, live = self._model.params, params is self._model.params
        with torch.enable_grad():
            apply = self._program.apply(buffers, live=live)
            total, task_loss, logged = self._program.total_loss(apply, params, batch, list(contexts))
            if self._trainer.accumulate_grad_batches > 1:
                total = total / self._trainer.accumulate_grad_batches
        if self._returned is None and isinstance(apply, PlainApply):
            self._returned = apply.returned
        self._zero_gradients()
        with torch.enable_grad():
            self._trainer.call("on_before_backward", total)
            self._differentiate(total, params)
        kept = {name: parameter.grad for name, parameter in own.items()}
        if not live:
            for name, parameter in own.items():
                parameter.grad = params[name].grad
        with torch.enable_grad():
            self._trainer.call("on_after_backward")
        values = _gradients(own)
        self._reached |= {name for name, parameter in own.items() if parameter.grad is not None}
        if not live:
            for name, parameter in own.items():
                parameter.grad = kept[name]
        return Gradient(values, apply.buffers, task_loss.detach(), logged=logged)

    def _differentiate(self, total: Tensor, params: Params) -> None:
        """Add the gradient of the loss to the parameters' gradients."""
        if self._trainer.hooks.differentiates:
            self._module.backward(total)
            return
        # Not Tensor.backward, which may change the order of a gradient in memory, and with it the last digits of its norm.
        gradients = gradients_of(total, params, materialize=False)
        for name, gradient in zip(params, gradients, strict=True):
            if gradient is not None:
                parameter = params[name]
                parameter.grad = gradient if parameter.grad is None else parameter.grad + gradient
                for hook in (self._model.params[name]._post_accumulate_grad_hooks or {}).values():
                    hook(parameter)

    def _zero_gradients(self) -> None:
        """Remove the last step's gradients, once in each step."""
        if not self._zeroed:
            optimizer = self._trainer.optimizers[0]
            self._trainer.call("on_before_zero_grad", optimizer)
            self._module.optimizer_zero_grad(self._trainer.current_epoch, self._place.number, optimizer)
            self._zeroed = True

    # Manual optimisation ----------------------------------------------------------------------------------------------------------

    def take_manually(self, given: Any) -> None:
        """Call the ``training_step`` of a module that takes its steps itself."""
        losses = self._trainer.strategy.differentiated
        losses.clear()
        self._note_rate()
        with torch.enable_grad(), self._model.autocast():
            self._returned = call_step(self._module, "training_step", given, self._place.number)
        loss = self._returned.get("loss") if isinstance(self._returned, Mapping) else self._returned
        self.sums_losses = not isinstance(loss, Tensor)
        self.loss = loss.detach() if isinstance(loss, Tensor) else torch.stack(losses).sum() if losses else None


def _leaves(params: Params, own: Params) -> Params:
    """Tensors with these values to differentiate by, with the hooks of the model's own parameters."""
    leaves = {name: value.detach().requires_grad_() for name, value in params.items()}
    for name, parameter in own.items():
        for hook in (parameter._backward_hooks or {}).values():
            leaves[name].register_hook(hook)
    return leaves


def _gradients(params: Params) -> Params:
    """The gradients that the parameters hold."""
    return {name: torch.zeros_like(value) if value.grad is None else value.grad for name, value in params.items()}
