"""The client's model as a function of its parameters, for hooks, executors and evaluations."""

import copy
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any, TypeVar

import lightning as L
import torch
from torch import Tensor, nn

from flcog.client_module import ClientModule, trains_itself
from flcog.core.precision import number_dtype
from flcog.core.randomness import have_moved, put_back, streams
from flcog.core.trees import Tree, call, first_leaf, map_leaves
from flcog.core.types import Batch, Params
from flcog.manual_steps import loss_without_steps
from flcog.own_steps import call_step, loss_of
from flcog.step_log import StepLog

Copied = TypeVar("Copied")


def masked_mean(values: Tensor, mask: Tensor | None) -> Tensor:
    """The mean over the rows that the mask does not set to 0."""
    dtype = number_dtype(values.dtype)
    if mask is None:
        return values.mean(dtype=dtype)
    return (values * mask).sum(dtype=dtype) / mask.sum(dtype=dtype).clamp(min=1)


class _Dispatch(nn.Module):
    """Lets ``torch.func.functional_call``, which only calls ``forward``, call any method of a module."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, function: Callable[..., Any], *args: Any) -> Any:
        return function(self.module, *args)


class ModelFunction:
    """A module as a function of (parameters, buffers, inputs). The module is called directly if the parameters are its own.

    Args:
        module: the client's module, on its device.
        autocast: the precision plugin's context for forward passes.
    """

    def __init__(self, module: L.LightningModule, autocast: Callable[[], AbstractContextManager[Any]] = nullcontext) -> None:
        self.module = module.train()
        self.trains_itself = trains_itself(module)
        """Whether the user's module defines its own ``training_step``, so that only this step can compute the loss."""
        self.takes_steps_itself: tuple[int, int] | None = None
        """The numbers of optimisers and schedulers of a module with manual optimisation; None for all others."""
        self.takes_whole_batches = not isinstance(module, ClientModule)
        """Whether its steps receive a data set's batches as they are, and not always pairs of inputs and targets."""
        self.autocast = autocast
        self.params: Params = {name: p for name, p in module.named_parameters() if p.requires_grad}
        self.constants: Params = _constants(module)
        """Tensors that no client changes. They are never averaged and never sent, and all copies of the module share them."""
        self.buffers: Params = {name: buffer for name, buffer in module.named_buffers() if name not in self.constants}
        persistent = set(module.state_dict(keep_vars=True))
        self.shared_buffers = [name for name in self.buffers if name in persistent]
        """Buffers that clients upload and the server averages. Other buffers, such as dropout keys, are temporary."""
        self.log = StepLog(module)
        """The values that the module's own ``training_step`` logs."""
        self.eval_module = self.copy_of(module).eval().requires_grad_(False)
        self._train_dispatch, self._eval_dispatch = _Dispatch(self.module), _Dispatch(self.eval_module)
        self._keys = {name: f"module.{name}" for name in (*self.params, *self.buffers)}

    def copy_of(self, tree: Copied) -> Copied:
        """Copy the module, or an object that contains it, deeply, but share the constants."""
        return copy.deepcopy(tree, {id(constant): constant for constant in self.constants.values()})

    @property
    def mixes_rows(self) -> bool:
        """Whether one row's output depends on other rows in training (BatchNorm), so that padding rows would change it."""
        return any(isinstance(m, nn.modules.batchnorm._BatchNorm) and m.training for m in self.module.modules())

    @property
    def feels_padding(self) -> bool:
        """Whether padding rows would change the result: through BatchNorm, or the module's own ``training_step`` without a mask."""
        return self.mixes_rows or self.trains_itself

    @property
    def convolves(self) -> bool:
        """Whether it has convolutions, which read channels-last images faster. Other layers read contiguous images faster."""
        return any(isinstance(m, nn.modules.conv._ConvNd) for m in self.module.modules())

    @torch.no_grad()
    def draws(self, sample: Tree) -> bool:
        """Whether its forward pass in training uses torch's global random generators, as ``nn.Dropout`` does.

        Args:
            sample: one input, [1, ...].
        """
        device = first_leaf(sample).device
        before, buffers = streams(device), {name: buffer.clone() for name, buffer in self.buffers.items()}
        try:
            # Repeat the row, because BatchNorm needs more than one.
            self.training(self.params, buffers, forward, map_leaves(lambda leaf: torch.cat([leaf, leaf]), sample))
            return have_moved(device, before)
        finally:
            put_back(device, before)

    def training(self, params: Params, buffers: Params, function: Callable[..., Any], *args: Any) -> Any:
        """Call ``function(module, *args)`` in training mode, with these parameters and buffers instead of the module's own."""
        return self._call(self._train_dispatch, params, buffers, function, *args)

    def frozen(self, params: Params, buffers: Params, function: Callable[..., Any], *args: Any) -> Any:
        """The same in evaluation mode."""
        return self._call(self._eval_dispatch, params, buffers, function, *args)

    def _call(self, dispatch: nn.Module, params: Params, buffers: Params, function: Callable[..., Any], *args: Any) -> Any:
        state = {self._keys[name]: value for part in (params, buffers) for name, value in part.items()}
        with self.autocast():
            return torch.func.functional_call(dispatch, state, (function, *args))


def _constants(module: nn.Module) -> Params:
    """Frozen parameters (``requires_grad`` is False), and buffers of layers that are in evaluation mode during training."""
    still = {name for name, layer in module.named_modules() if not layer.training}
    buffers = {name: buffer for name, buffer in module.named_buffers() if name.rpartition(".")[0] in still}
    return {name: p for name, p in module.named_parameters() if not p.requires_grad} | buffers


class Apply:
    """The client's model in training mode, for hooks: ``apply(params, inputs)``, ``apply.features(...)``, ``apply.loss(...)``.

    Each pass updates BatchNorm's statistics in the model's buffers. ``apply.frozen(params, buffers)`` is another model, or this model in
    evaluation mode, as in ``apply.frozen(ctx.received.params, ctx.received.buffers)(inputs)``.

    Each pass is cached for the local step: a method gets the features of the task loss's batch without another pass.
    """

    logged: Params = {}
    """The values that the module's own ``training_step`` has logged in the last pass of :meth:`loss`."""

    def __init__(self, model: ModelFunction, buffers: Params, live: bool = False) -> None:
        self.model, self.buffers, self._live = model, buffers, live
        self._seen: list[tuple[Params, Tree, Tensor, Tensor]] = []

    def _call(self, params: Params, function: Callable[..., Any], *args: Any) -> Any:
        if self._live and params is self.model.params:
            with self.model.autocast():
                return function(self.model.module, *args)
        return self.model.training(params, self.buffers, function, *args)

    def __call__(self, params: Params, inputs: Tree) -> Tensor:
        if seen := self._recall(params, inputs):
            return seen[1]
        if not self.model.module.has_features:  # type: ignore[union-attr]
            return self._call(params, forward, inputs)
        features, outputs = self._call(params, _features_and_outputs, inputs)
        self._seen.append((params, inputs, features, outputs))
        return outputs

    def _recall(self, params: Params, inputs: Tree) -> tuple[Tensor, Tensor] | None:
        """Features and outputs of an earlier pass of this step over the same tensors."""
        return next((seen[2:] for seen in self._seen if seen[0] is params and seen[1] is inputs), None)

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
        """The task loss: the mean over the batch's rows that count."""
        return masked_mean(self.per_example_loss(self(params, batch.inputs), batch.targets), batch.mask)

    def with_buffers(self, buffers: Params) -> "Apply":
        """The same model in training mode with other buffers, for a second pass in the same local step."""
        return type(self)(self.model, buffers)

    def frozen(self, params: Params, buffers: Params) -> "Frozen":
        """A model in evaluation mode, whose buffers stay as they are."""
        return Frozen(self.model, params, buffers)


def apply_of(model: ModelFunction, buffers: Params, live: bool = False, step: int = 0) -> Apply:
    """Make the :class:`Apply` of a model, for every kind of module.

    Args:
        model: the client's model.
        buffers: the model's buffers, which change in training.
        live: whether the module may be called directly with its own parameters.
        step: the client's local step.
    """
    return PlainApply(model, buffers, live, step) if model.trains_itself else Apply(model, buffers, live)


class Frozen:
    """A model in evaluation mode, as a function of its inputs."""

    def __init__(self, model: ModelFunction, params: Params, buffers: Params) -> None:
        self._model, self._params, self._buffers = model, params, buffers

    def _call(self, function: Callable[..., Any], *args: Any) -> Any:
        return self._model.frozen(self._params, self._buffers, function, *args)

    def __call__(self, inputs: Tree) -> Tensor:
        if not self._model.module.has_features:  # type: ignore[union-attr]
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
        losses: Tensor = self._model.module.per_example_loss(self(batch.inputs), batch.targets)  # type: ignore[operator,union-attr]
        return masked_mean(losses, batch.mask)


class PlainApply(Apply):
    """The model of a module with its own ``training_step``, which returns the loss.

    Args:
        step: the client's local step, which ``training_step`` receives as ``batch_idx``.
    """

    def __init__(self, model: ModelFunction, buffers: Params, live: bool = False, step: int = 0) -> None:
        super().__init__(model, buffers, live)
        self.step, self.returned = step, None
        """``returned`` is the result of the first ``training_step``."""

    def __call__(self, params: Params, inputs: Tree) -> Tensor:
        return self._call(params, forward, inputs)

    def loss(self, params: Params, batch: Batch) -> Tensor:
        if self.model.takes_steps_itself:
            raise ValueError(
                f"{type(self.model.module).__name__} takes its steps itself (automatic_optimization = False), and a method of this run "
                "differentiates its loss: remove the method, or let training_step return the loss"
            )
        with self.model.log.of_a_step() as self.logged:
            result = self._call(params, call_step, "training_step", batch.given, self.step)
        self.returned = result if self.returned is None else self.returned
        return loss_of(self.model.module, result)

    def with_buffers(self, buffers: Params) -> "Apply":
        return PlainApply(self.model, buffers, step=self.step)

    def frozen(self, params: Params, buffers: Params) -> "Frozen":
        return PlainFrozen(self.model, params, buffers, self.step)


class PlainFrozen(Frozen):
    """The same in evaluation mode."""

    def __init__(self, model: ModelFunction, params: Params, buffers: Params, step: int) -> None:
        super().__init__(model, params, buffers)
        self._step = step

    def __call__(self, inputs: Tree) -> Tensor:
        return self._call(forward, inputs)

    def loss(self, batch: Batch) -> Tensor:
        counts = self._model.takes_steps_itself
        if counts:
            return loss_of(self._model.module, self._call(loss_without_steps, batch.given, self._step, counts))
        result = self._call(call_step, "training_step", batch.given, self._step)
        return loss_of(self._model.module, result)


OwnForward = Callable[[Callable[[Params, Tree], Tensor], Params, Tree], Tensor]
"""The outputs of a personal model, given the model as a function, the model's own parameters, and the inputs."""


def forward(module: Any, inputs: Tree) -> Tensor:
    """Call a module on its inputs, for :meth:`ModelFunction.frozen` and :meth:`ModelFunction.training`."""
    outputs: Tensor = call(module, inputs)
    return outputs


def _features(module: Any, inputs: Tree) -> Tensor:
    return module.features(inputs)


def _head(module: Any, features: Tensor) -> Tensor:
    return module.head(features)


def _features_and_outputs(module: Any, inputs: Tree) -> tuple[Tensor, Tensor]:
    features = module.features(inputs)
    return features, module.head(features)
