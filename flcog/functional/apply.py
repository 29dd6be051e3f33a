"""The client's model as hooks call it: in training mode, or frozen."""

import operator
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from flcog.core.precision import number_dtype
from flcog.core.trees import Tree
from flcog.core.types import Batch, Params
from flcog.functional.model_function import ModelFunction, forward
from flcog.functional.own_steps import logging_to, loss_of, step_of


def masked_mean(values: Tensor, mask: Tensor | None) -> Tensor:
    """The mean over the rows that the mask does not set to 0."""
    dtype = number_dtype(values.dtype)
    if mask is None:
        return values.mean(dtype=dtype)
    return (values * mask).sum(dtype=dtype) / mask.sum(dtype=dtype).clamp(min=1)


class Apply:
    """The client's model in training mode, for hooks: ``apply(params, inputs)``, ``apply.features(...)``, ``apply.loss(...)``.

    Each pass updates BatchNorm's statistics in the model's buffers. ``apply.frozen(params, buffers)`` is another model, or this model in
    evaluation mode, as in ``apply.frozen(ctx.received.params, ctx.received.buffers)(inputs)``.

    Each pass is cached for the local step: a method gets the features of the task loss's batch without another pass.
    """

    logged: Params = {}
    """The values that the module's own ``training_step`` has logged in the last pass of :meth:`loss`."""

    def __init__(self, model: ModelFunction, buffers: Params, live: bool = False, step: int = 0) -> None:
        # Live, the module is called directly with its own parameters. A module's own training_step gets the step as batch_idx.
        self.model, self.buffers, self._live, self._step = model, dict(buffers), live, step
        self._seen: list[tuple[Params, Tree, Tensor, Tensor]] = []

    received: tuple[Params, Params] = ({}, {})
    """The parameters and buffers that the client has received, in ``over_data``."""

    own: Params = {}
    """The parameters that the client keeps, which complete those that a hook gives."""

    def _whole(self, params: Params) -> Params:
        return {name: params[name] if name in params else self.own[name] for name in self.model.params} if self.own else params

    def _call(self, params: Params, function: Callable[..., Any], *args: Any) -> Any:
        params = self._whole(params)
        if self._live and _are_same(params, self.model.params):
            with self.model.autocast():
                return function(self.model.module, *args)
        return self.model.training(params, self.buffers, function, *args)

    def __call__(self, params: Params, inputs: Tree) -> Tensor:
        if seen := self._recall(params, inputs):
            return seen[1]
        if not _has_features(self.model):
            return self._call(params, forward, inputs)
        features, outputs = self._call(params, _features_and_outputs, inputs)
        self._seen.append((dict(self._whole(params)), inputs, features, outputs))  # a hook may assign into its dict
        return outputs

    def _recall(self, params: Params, inputs: Tree) -> tuple[Tensor, Tensor] | None:
        """Features and outputs of an earlier pass of this step over the same tensors."""
        params = self._whole(params)
        return next((seen[2:] for seen in self._seen if seen[1] is inputs and _are_same(seen[0], params)), None)

    def features(self, params: Params, inputs: Tree) -> Tensor:
        """Penultimate activations."""
        if seen := self._recall(params, inputs):
            return seen[0]
        return self._call(params, _features, inputs)

    def head(self, params: Params, features: Tensor) -> Tensor:
        """From penultimate activations to outputs."""
        return self._call(params, _head, features)

    def per_example_loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """The client module's loss of each row."""
        return self.model.module.per_example_loss(outputs, targets)  # type: ignore[operator,union-attr]

    def loss(self, params: Params, batch: Batch) -> Tensor:
        """The task loss: the mean over the batch's rows that count, or what the module's own ``training_step`` returns."""
        module: Any = self.model.module
        if not self.model.trains_itself:
            return masked_mean(module.per_example_loss(self(params, batch.inputs), batch.targets), batch.mask)
        with self.model.log.of_a_step() as self.logged, logging_to(module, self.model.log.take):
            return loss_of(module, self._call(params, step_of(module, batch.given, self._step)))

    def scratch(self) -> "Apply":
        """The same model with copies of its buffers, for a further pass in a local step that leaves the buffers as they are. Call it
        inside of a function that ``torch.func`` transforms.
        """
        apply = type(self)(self.model, {name: buffer.clone() for name, buffer in self.buffers.items()}, step=self._step)
        apply.own = self.own
        return apply

    def gradient(self, params: Params, batch: Batch) -> Params:
        """The gradient of the task loss at some parameters, by a further pass that leaves the buffers as they are."""
        return torch.func.grad(lambda params: self.scratch().loss(params, batch))(params)

    def frozen(self, params: Params, buffers: Params) -> "Frozen":
        """A model in evaluation mode, whose buffers stay as they are."""
        kept = {name: value.detach() for name, value in self.own.items()}
        return Frozen(self.model, {**kept, **params}, buffers, self._step)


class Frozen:
    """A model in evaluation mode, as a function of its inputs."""

    def __init__(self, model: ModelFunction, params: Params, buffers: Params, step: int = 0) -> None:
        self._model, self._params, self._buffers, self._step = model, params, buffers, step

    def _call(self, function: Callable[..., Any], *args: Any) -> Any:
        return self._model.frozen(self._params, self._buffers, function, *args)

    def __call__(self, inputs: Tree) -> Tensor:
        if not _has_features(self._model):
            return self._call(forward, inputs)
        return self._call(_features_and_outputs, inputs)[1]

    def features(self, inputs: Tree) -> Tensor:
        """Penultimate activations."""
        return self._call(_features, inputs)

    def head(self, features: Tensor) -> Tensor:
        """From penultimate activations to outputs."""
        return self._call(_head, features)

    def loss(self, batch: Batch) -> Tensor:
        """The task loss: the mean over the batch's rows that count."""
        module: Any = self._model.module
        if not self._model.trains_itself:
            return masked_mean(module.per_example_loss(self(batch.inputs), batch.targets), batch.mask)
        with logging_to(module, lambda *value, **options: None):
            return loss_of(module, self._call(step_of(module, batch.given, self._step)))


OwnForward = Callable[[Callable[[Params, Tree], Tensor], Params, Tree], Tensor]
"""The outputs of a personal model, given the model as a function, the model's own parameters, and the inputs."""


def _are_same(one: Params, other: Params) -> bool:
    """Whether two dicts hold the same tensors: each hook is given a dict of its own."""
    return one is other or (list(one) == list(other) and all(map(operator.is_, one.values(), other.values())))


def _has_features(model: ModelFunction) -> bool:
    return not model.trains_itself and bool(model.module.has_features)


def _features(module: Any, inputs: Tree) -> Tensor:
    return module.features(inputs)


def _head(module: Any, features: Tensor) -> Tensor:
    return module.head(features)


def _features_and_outputs(module: Any, inputs: Tree) -> tuple[Tensor, Tensor]:
    features = module.features(inputs)
    return features, module.head(features)
