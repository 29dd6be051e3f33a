"""The client's module as a function of its parameters and buffers, for executors and evaluations."""

import copy
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any, TypeVar

import lightning as L
import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from flcog.client_module import ClientModule, trains_itself
from flcog.core.trees import Tree, call, copied_from, divide_again, load
from flcog.core.types import Params
from flcog.functional.own_steps import StepLog

Copied = TypeVar("Copied")


class _Dispatch(nn.Module):
    """Lets ``torch.func.functional_call``, which only calls ``forward``, call any method of a module."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, function: Callable[..., Any], *args: Any) -> Any:
        return function(self.module, *args)


class ModelFunction:
    """A module as a function of (parameters, buffers, inputs). The module is called directly if the parameters are its own."""

    def __init__(self, module: L.LightningModule, autocast: Callable[[], AbstractContextManager[Any]] = nullcontext) -> None:
        self.module = module
        self._still, self._switched = _set_modes(module)
        self.trains_itself = trains_itself(module)
        """Whether the user's module defines its own ``training_step``, so that only this step can compute the loss."""
        self.reads_other_rows = False
        """Whether the probe has shown that its forward pass mixes rows by itself."""
        self.takes_whole_batches = not isinstance(module, ClientModule)
        """Whether its steps receive a data set's batches as they are, and not always pairs of inputs and targets."""
        self.autocast = autocast
        self.params: Params = {name: p for name, p in module.named_parameters() if p.requires_grad}
        self.constants: Params = _constants(module, self._still)
        """Tensors that no client changes. They are never averaged and never sent, and all copies of the module share them."""
        self.buffers: Params = {name: buffer for name, buffer in module.named_buffers() if name not in self.constants}
        persistent = set(module.state_dict(keep_vars=True))
        self.shared_buffers = [name for name in self.buffers if name in persistent]
        """Buffers that clients upload and the server averages. Other buffers, such as dropout keys, are temporary."""
        self.dropout_keys = [name for name in self.buffers if name.endswith("dropout_key")]
        """Buffers that are the keys of a layer's dropout. Every client gets its own."""
        others = self.buffers.keys() - {*self.shared_buffers, *self.dropout_keys}
        self.initial: Params = {n: b.detach().clone() for n, b in self.buffers.items() if n in others and is_writable(b)}
        """The values of all other temporary buffers with which each client begins a round. Copies of the model share them."""
        self._places = {name: self._place(name) for name in self.buffers}
        self.log = StepLog()
        """The values that the module's own ``training_step`` logs."""
        self._dispatch = _Dispatch(self.module)
        self._keys = {name: f"module.{name}" for name in (*self.params, *self.buffers)}

    def copy_of(self, tree: Copied, with_constants: bool = False) -> Copied:
        """Copy the module, or an object that contains it, deeply, but share the constants unless the copy is ``with_constants``.

        Results that an earlier training left in the module's attributes are copied without their gradient.
        """
        kept = [leaf for layer in self.module.modules() for leaf in pytree.tree_leaves(dict(vars(layer)))]
        results = {id(leaf): leaf.detach().clone() for leaf in kept if isinstance(leaf, Tensor) and not leaf.is_leaf}
        shared = () if with_constants else self.constants.values()
        return copy.deepcopy(tree, results | {id(constant): constant for constant in shared})

    def on_copy(self, module: L.LightningModule) -> "ModelFunction":
        """The same model on a copy of its module."""
        model = ModelFunction(module, self.autocast)
        model.initial, model.reads_other_rows, model.log = self.initial, self.reads_other_rows, self.log.beside()
        return model

    def find_tensors(self) -> None:
        """Find the module's present parameters and buffers: a hook or a step may have put others in their places."""
        divide_again(self.module)
        self.params.update({name: value for name, value in self.module.named_parameters() if name in self.params})
        self.take_assigned()

    def load(self, values: Params) -> None:
        """Copy whole tensors to the module's parameters and buffers."""
        for name, value in values.items():
            load(self.params[name] if name in self.params else self.buffers[name], value)

    def owned(self, tree: Any) -> Any:
        """The tree, with copies of tensors that share the module's memory, which the next step or client overwrites."""
        return copied_from(tree, (*self.params.values(), *self.buffers.values())) if pytree.tree_leaves(tree) else tree

    @torch.no_grad()
    def renew_buffers(self) -> None:
        """Give temporary buffers their initial values, which the last client may have changed."""
        for name, value in self.initial.items():
            buffer = self.buffers[name]
            setattr(*self._place(name), buffer)  # forward may have assigned another tensor
            buffer.copy_(value)

    @torch.no_grad()
    def take_assigned(self) -> None:
        """Copy the tensors that forward or a hook has assigned to the module's buffers (``self.t = self.t + 1``) into the buffers."""
        for name, (layer, attribute) in self._places.items():
            now, buffer = layer._buffers.get(attribute), self.buffers[name]
            if now is not buffer and now is not None:
                buffer.copy_(_assigned(now, buffer))
                layer._buffers[attribute] = buffer

    @torch.no_grad()
    def keep_buffers(self) -> None:
        """Let clients begin with the present values of temporary buffers, which a hook between clients may have changed."""
        for name, value in list(self.initial.items()):
            now = getattr(*self._place(name))
            if now.shape != value.shape:
                del self.initial[name]  # the hook has made another buffer of it
            else:
                value.copy_(now)

    def _place(self, name: str) -> tuple[nn.Module, str]:
        owner, _, attribute = name.rpartition(".")
        return self.module.get_submodule(owner), attribute

    @property
    def mixes_rows(self) -> bool:
        """Whether one row's output depends on other rows in training (BatchNorm), so that padding rows would change it."""
        return any(isinstance(m, nn.modules.batchnorm._BatchNorm) and m.training for m in self.module.modules())

    @property
    def feels_padding(self) -> bool:
        """Whether padding rows would change the result: through BatchNorm, through a forward pass that mixes rows by itself, as the probe
        has shown, or through the module's own ``training_step`` without a mask.
        """
        return self.mixes_rows or self.trains_itself or self.reads_other_rows

    @property
    def convolves(self) -> bool:
        """Whether it has convolutions, which read channels-last images faster. Other layers read contiguous images faster."""
        return any(isinstance(m, nn.modules.conv._ConvNd) for m in self.module.modules())

    def training(self, params: Params, buffers: Params, function: Callable[..., Any], *args: Any) -> Any:
        """Call ``function(module, *args)`` in training mode, with these parameters and buffers instead of the module's own.

        Buffers that the call changes in place are changed. ``buffers`` receives those to which it assigns other tensors.
        """
        state = self._state(params, buffers)
        results = self._call(state, function, *args)
        for name, buffer in buffers.items():
            # torch puts the assigned tensors into the dictionary that it was given.
            if (now := state[self._keys[name]]) is not buffer:
                buffers[name] = _assigned(now, buffer)
        return results

    def frozen(self, params: Params, buffers: Params, function: Callable[..., Any], *args: Any) -> Any:
        """The same in evaluation mode, which leaves all buffers as they are."""
        training = [layer for layer in self._switched if layer["training"]]
        try:
            for layer in training:
                layer["training"] = False
            return self._call(self._state(params, buffers), function, *args)
        finally:
            for layer in training:
                layer["training"] = True

    def _state(self, params: Params, buffers: Params) -> Params:
        return {self._keys[name]: value for part in (params, buffers) for name, value in part.items()}

    def _call(self, state: Params, function: Callable[..., Any], *args: Any) -> Any:
        with self.autocast():
            return torch.func.functional_call(self._dispatch, state, (function, *args))


def _assigned(now: Tensor, buffer: Tensor) -> Tensor:
    """The tensor that has replaced a buffer, in the buffer's precision.

    A tensor of another shape is dropped: it is usually a table for longer inputs, which forward makes again.
    """
    return now.detach().to(buffer.dtype) if now.shape == buffer.shape else buffer


def _set_modes(module: nn.Module) -> tuple[set[str], list[dict[str, Any]]]:
    """Put a client module into training mode. Layers of other modules keep their modes, as in Lightning.

    Returns the names of the layers that stay in evaluation mode although ``train()`` was called, and the attributes of all layers that
    ``eval()`` switches.
    """
    modes = {layer: layer.training for layer in module.modules()}
    module.eval()
    switched = [vars(layer) for layer in modes if not layer.training]
    module.train()
    still = {name for name, layer in module.named_modules() if not layer.training}
    if isinstance(module, ClientModule):
        return still, switched
    for layer, mode in modes.items():
        layer.training = mode
    return {name for name in still if not module.get_submodule(name).training}, switched


def _constants(module: nn.Module, still: set[str]) -> Params:
    """Frozen parameters (``requires_grad`` is False), and buffers of the layers that always stay in evaluation mode."""
    buffers = {name: buffer for name, buffer in module.named_buffers() if name.rpartition(".")[0] in still}
    return {name: p for name, p in module.named_parameters() if not p.requires_grad} | buffers


def is_writable(buffer: Tensor) -> bool:
    """Whether a buffer can be changed in place: expanded tensors cannot, because several of their numbers share one place in memory."""
    strided = buffer.layout == torch.strided
    return strided and all(stride or size < 2 for stride, size in zip(buffer.stride(), buffer.shape, strict=True))


def forward(module: Any, inputs: Tree) -> Tensor:
    """Call a module on its inputs, for :meth:`ModelFunction.frozen` and :meth:`ModelFunction.training`."""
    return call(module, inputs)


def without_negative_variances(buffers: Params) -> Params:
    """The buffers, with BatchNorm's variances raised to 0 where noise or a lossy codec has made them negative: they would give NaN.

    >>> without_negative_variances({"norm.running_mean": torch.tensor(-1.0), "norm.running_var": torch.tensor(-1.0)})
    {'norm.running_mean': tensor(-1.), 'norm.running_var': tensor(0.)}
    """
    return {name: value.clamp(min=0) if name.endswith("running_var") else value for name, value in buffers.items()}
