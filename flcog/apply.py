"""The client's model as a function of its parameters: what hooks, executors and evaluations call."""

import copy
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any, TypeVar

import lightning as L
import torch
from torch import Tensor, nn

from flcog.client_module import trains_itself
from flcog.core.precision import number_dtype
from flcog.core.randomness import have_moved, put_back, streams
from flcog.core.trees import Tree, call, first_leaf, map_leaves
from flcog.core.types import Batch, Params
from flcog.own_steps import call_step, loss_of

Copied = TypeVar("Copied")


def masked_mean(values: Tensor, mask: Tensor | None) -> Tensor:
    """The mean over the rows that the mask keeps."""
    dtype = number_dtype(values.dtype)
    if mask is None:
        return values.mean(dtype=dtype)
    return (values * mask).sum(dtype=dtype) / mask.sum(dtype=dtype).clamp(min=1)


class _Dispatch(nn.Module):
    """Lets ``torch.func.functional_call``, which only knows ``forward``, call any method of a module."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, function: Callable[..., Any], *args: Any) -> Any:
        return function(self.module, *args)


class ModelFunction:
    """A module as a function of (parameters, buffers, inputs); called directly where the parameters are the module's own.

    Args:
        module: the client's module, on its device.
        autocast: the precision plugin's context for forward passes.
    """

    def __init__(self, module: L.LightningModule, autocast: Callable[[], AbstractContextManager[Any]] = nullcontext) -> None:
        self.module = module.train()
        self.trains_itself = trains_itself(module)
        """Whether the user's module has a ``training_step`` of its own, which alone knows the loss."""
        self.autocast = autocast
        self.params: Params = {name: p for name, p in module.named_parameters() if p.requires_grad}
        self.constants: Params = _constants(module)
        """What no client changes: never averaged, never sent, and the same tensors in every copy of the module."""
        self.buffers: Params = {name: buffer for name, buffer in module.named_buffers() if name not in self.constants}
        persistent = set(module.state_dict(keep_vars=True))
        self.shared_buffers = [name for name in self.buffers if name in persistent]
        """Buffers that clients upload and the server averages; the others are a client's scratch (dropout keys)."""
        self.eval_module = self.copy_of(module).eval().requires_grad_(False)
        self._train_dispatch, self._eval_dispatch = _Dispatch(self.module), _Dispatch(self.eval_module)
        self._keys = {name: f"module.{name}" for name in (*self.params, *self.buffers)}

    def copy_of(self, tree: Copied) -> Copied:
        """A deep copy of something that holds the module, or of the module itself, with the same constants."""
        return copy.deepcopy(tree, {id(constant): constant for constant in self.constants.values()})

    @property
    def mixes_rows(self) -> bool:
        """Whether one row's output depends on the others in training (BatchNorm), so that padding rows would be felt."""
        return any(isinstance(m, nn.modules.batchnorm._BatchNorm) and m.training for m in self.module.modules())

    @property
    def feels_padding(self) -> bool:
        """Whether padding rows would be felt: by BatchNorm, or by a ``training_step`` of the module's own, which knows no mask."""
        return self.mixes_rows or self.trains_itself

    @property
    def convolves(self) -> bool:
        """Whether it has convolutions, which read channels-last images faster; all else reads contiguous ones faster."""
        return any(isinstance(m, nn.modules.conv._ConvNd) for m in self.module.modules())

    @torch.no_grad()
    def draws(self, sample: Tree) -> bool:
        """Whether its forward pass in training draws from torch's global streams, as ``nn.Dropout`` does.

        Args:
            sample: one input, [1, ...].
        """
        device = first_leaf(sample).device
        before, buffers = streams(device), {name: buffer.clone() for name, buffer in self.buffers.items()}
        try:
            # Twice, for BatchNorm asks for more than one.
            self.training(self.params, buffers, forward, map_leaves(lambda leaf: torch.cat([leaf, leaf]), sample))
            return have_moved(device, before)
        finally:
            put_back(device, before)

    def training(self, params: Params, buffers: Params, function: Callable[..., Any], *args: Any) -> Any:
        """``function(module, *args)`` in training mode, with these parameters and buffers in the module's place."""
        return self._call(self._train_dispatch, params, buffers, function, *args)

    def frozen(self, params: Params, buffers: Params, function: Callable[..., Any], *args: Any) -> Any:
        """The same in evaluation mode."""
        return self._call(self._eval_dispatch, params, buffers, function, *args)

    def _call(self, dispatch: nn.Module, params: Params, buffers: Params, function: Callable[..., Any], *args: Any) -> Any:
        state = {self._keys[name]: value for part in (params, buffers) for name, value in part.items()}
        with self.autocast():
            return torch.func.functional_call(dispatch, state, (function, *args))


def _constants(module: nn.Module) -> Params:
    """Frozen parameters (``requires_grad`` is False), and the buffers of layers that stay in evaluation mode while the module trains."""
    still = {name for name, layer in module.named_modules() if not layer.training}
    buffers = {name: buffer for name, buffer in module.named_buffers() if name.rpartition(".")[0] in still}
    return {name: p for name, p in module.named_parameters() if not p.requires_grad} | buffers


class Apply:
    """The client's model in training mode, as hooks see it: ``apply(params, inputs)``, ``apply.features(...)``, ``apply.loss(...)``.

    BatchNorm's statistics, in its own buffers, move with each pass. Another model, or this one in evaluation mode, is
    ``apply.frozen(params, buffers)``, as in ``apply.frozen(ctx.received.params, ctx.received.buffers)(inputs)``.

    Passes are kept for the step: a method that asks for the features of the batch on which the task loss was just computed pays
    nothing.
    """

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
        """Features and outputs of an earlier pass of this step over the very same tensors."""
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
        """The client module's own loss of each row."""
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
    """The model as hooks see it, whatever kind of module it is made from.

    Args:
        model: the client's model.
        buffers: its own, which move as it trains.
        live: whether the module's own parameters may be called as they are.
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
    """The model of a module with a ``training_step`` of its own, whose return value is the loss.

    Args:
        step: the client's local step, which ``training_step`` gets as ``batch_idx``.
    """

    def __init__(self, model: ModelFunction, buffers: Params, live: bool = False, step: int = 0) -> None:
        super().__init__(model, buffers, live)
        self.step = step

    def __call__(self, params: Params, inputs: Tree) -> Tensor:
        return self._call(params, forward, inputs)

    def loss(self, params: Params, batch: Batch) -> Tensor:
        result = self._call(params, call_step, "training_step", (batch.inputs, batch.targets), self.step)
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
        result = self._call(call_step, "training_step", (batch.inputs, batch.targets), self._step)
        return loss_of(self._model.module, result)


def forward(module: Any, inputs: Tree) -> Tensor:
    """Call a module on its inputs; for :meth:`ModelFunction.frozen` and :meth:`ModelFunction.training`."""
    outputs: Tensor = call(module, inputs)
    return outputs


def _features(module: Any, inputs: Tree) -> Tensor:
    return module.features(inputs)


def _head(module: Any, features: Tensor) -> Tensor:
    return module.head(features)


def _features_and_outputs(module: Any, inputs: Tree) -> tuple[Tensor, Tensor]:
    features = module.features(inputs)
    return features, module.head(features)
