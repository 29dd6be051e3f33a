"""The client's module as a function of its parameters and buffers, for executors and evaluations."""

import copy
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from types import FunctionType
from typing import Any, TypeVar

import lightning as L
import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from flcog.client_module import ClientModule, trains_itself
from flcog.core.global_streams import Streams, kept_streams
from flcog.core.trees import Tree, call, form
from flcog.core.types import Params
from flcog.module_copies import ModuleCopies
from flcog.own_steps import reset_metrics
from flcog.step_log import StepLog

Copied = TypeVar("Copied")

SMALL = 2**20
"""Temporary buffers of at most this many bytes are copied for each client, in 0.1 ms at most. Larger ones, such as causal masks, are copied
if torch has counted a change. It counts most changes, but not those through ``.data`` and by some kernels, such as BatchNorm's."""


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
        self.module = module
        self._still = _set_modes(module)
        self.trains_itself = trains_itself(module)
        """Whether the user's module defines its own ``training_step``, so that only this step can compute the loss."""
        self.takes_steps_itself: tuple[int, int] | None = None
        """The numbers of optimisers and schedulers of a module with manual optimisation; None for all others."""
        self.reads_other_rows = False
        """Whether a trial has shown that its forward pass mixes rows by itself. The trial needs a sample, so it comes later."""
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
        self._counted: dict[str, tuple[int, int]] = {}
        self._places = {name: self._place(name) for name in self.buffers}
        self.log = StepLog(module)
        """The values that the module's own ``training_step`` logs."""
        self.eval_module = self.copy_of(module).eval().requires_grad_(False)
        reset_metrics(self.eval_module)  # they may hold a client of an earlier training
        self.copies = ModuleCopies(module, {*self.constants, *self.buffers} - self.initial.keys(), self.initial.keys())
        """The copies of the module, which follow the changes that hooks make to it."""
        self.copies.add(None, self.eval_module)
        self._train_dispatch, self._eval_dispatch = _Dispatch(self.module), _Dispatch(self.eval_module)
        self._keys = {name: f"module.{name}" for name in (*self.params, *self.buffers)}

    def copy_of(self, tree: Copied) -> Copied:
        """Copy the module, or an object that contains it, deeply, but share the constants.

        Results that an earlier training left in the module's attributes are copied without their gradient.
        """
        kept = [leaf for layer in self.module.modules() for leaf in pytree.tree_leaves(dict(vars(layer)))]
        results = {id(leaf): leaf.detach().clone() for leaf in kept if isinstance(leaf, Tensor) and not leaf.is_leaf}
        return copy.deepcopy(tree, results | {id(constant): constant for constant in self.constants.values()})

    @torch.no_grad()
    def renew_buffers(self) -> None:
        """Give temporary buffers their initial values, which the last client may have changed."""
        for name, value in self.initial.items():
            buffer = self.buffers[name]
            setattr(*self._place(name), buffer)  # forward may have assigned another tensor
            if self._has_changed(name, buffer):
                buffer.copy_(value)
                self._counted[name] = (buffer._version, value._version)

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
        """Let clients begin with the present values of temporary buffers. A hook between clients may have changed them."""
        for name, value in list(self.initial.items()):
            now = getattr(*self._place(name))
            if now.shape != value.shape:
                del self.initial[name]  # the hook has made another buffer of it
            elif now is not self.buffers[name] or self._has_changed(name, now):
                value.copy_(now)

    def _has_changed(self, name: str, buffer: Tensor) -> bool:
        return buffer.nbytes <= SMALL or self._counted.get(name) != (buffer._version, self.initial[name]._version)

    def _place(self, name: str) -> tuple[nn.Module, str]:
        owner, _, attribute = name.rpartition(".")
        return self.module.get_submodule(owner), attribute

    @property
    def mixes_rows(self) -> bool:
        """Whether one row's output depends on other rows in training (BatchNorm), so that padding rows would change it."""
        return any(isinstance(m, nn.modules.batchnorm._BatchNorm) and m.training for m in self.module.modules())

    @property
    def feels_padding(self) -> bool:
        """Whether padding rows would change the result: through BatchNorm, through the statistics that an InstanceNorm tracks, through an
        Embedding that shortens the vectors that a batch looks up, through a forward pass that mixes rows by itself, or through the module's
        own ``training_step`` without a mask.
        """
        norms = [m for m in self.module.modules() if isinstance(m, nn.modules.instancenorm._InstanceNorm)]
        return (
            self.mixes_rows
            or self.trains_itself
            or self.reads_other_rows
            or any(norm.track_running_stats and norm.training for norm in norms)
            or any(
                getattr(m, "max_norm", None) is not None
                for m in self.module.modules()
                if isinstance(m, nn.Embedding | nn.EmbeddingBag)
            )
        )

    @property
    def in_eval_mode(self) -> list[str]:
        """The layers that train in evaluation mode, though they can be in training mode; the name of the module itself is empty."""
        return [name for name, layer in self.module.named_modules() if not layer.training and name not in self._still]

    @property
    def convolves(self) -> bool:
        """Whether it has convolutions, which read channels-last images faster. Other layers read contiguous images faster."""
        return any(isinstance(m, nn.modules.conv._ConvNd) for m in self.module.modules())

    @contextmanager
    def on_trial(self) -> Iterator[Streams]:
        """Restore the attributes of all layers and the global random streams on exit, so that a trial changes no run."""
        attributes = [(vars(layer), dict(vars(layer))) for layer in self.module.modules()]
        with kept_streams(next(iter(self.params.values())).device) as before:
            try:
                yield before
            finally:
                for now, kept in attributes:
                    now.clear()
                    now.update(kept)

    def training(self, params: Params, buffers: Params, function: Callable[..., Any], *args: Any) -> Any:
        """Call ``function(module, *args)`` in training mode, with these parameters and buffers instead of the module's own.

        Buffers that the call changes in place are changed. ``buffers`` receives those to which it assigns other tensors.
        """
        state = self._state(params, buffers)
        results = self._call(self._train_dispatch, state, function, *args)
        for name, buffer in buffers.items():
            # torch puts the assigned tensors into the dictionary that it was given.
            if (now := state[self._keys[name]]) is not buffer:
                buffers[name] = _assigned(now, buffer)
        return results

    def frozen(self, params: Params, buffers: Params, function: Callable[..., Any], *args: Any) -> Any:
        """The same in evaluation mode, which leaves all buffers as they are."""
        return self._call(self._eval_dispatch, self._state(params, buffers), function, *args)

    def _state(self, params: Params, buffers: Params) -> Params:
        return {self._keys[name]: value for part in (params, buffers) for name, value in part.items()}

    def _call(self, dispatch: nn.Module, state: Params, function: Callable[..., Any], *args: Any) -> Any:
        try:
            with self.autocast():
                return torch.func.functional_call(dispatch, state, (function, *args))
        except Exception as error:
            if hook := shared_hook(self.module):
                error.add_note(f"{hook}: what it stores may be another copy's. Register a method of a layer (self.keep) instead")
            raise


def shared_hook(module: nn.Module) -> str:
    """A sentence that a forward hook is a function, whose variables are not copied with the module; empty if there is none.

    Hooks of torch, as of weight_norm and pruning, are objects, and methods are copied with their layers.
    """
    for name, layer in module.named_modules():
        for hook in (*layer._forward_hooks.values(), *layer._forward_pre_hooks.values()):
            if isinstance(hook, FunctionType) and not str(hook.__module__).startswith("torch."):
                return f"copies of the model share the forward hook {hook.__qualname__} of self.{name}, which is a function"
    return ""


def _assigned(now: Tensor, buffer: Tensor) -> Tensor:
    """The tensor that has replaced a buffer, in the buffer's precision.

    A tensor of another shape is dropped: it is usually a table for longer inputs, which forward makes again.
    """
    return now.detach().to(buffer.dtype) if now.shape == buffer.shape else buffer


def _set_modes(module: nn.Module) -> set[str]:
    """Put a client module into training mode. Layers of other modules keep their modes, as in Lightning.

    Returns the names of the layers that stay in evaluation mode even if they are told to train.
    """
    modes = {name: layer.training for name, layer in module.named_modules()}
    module.train()
    still = {name for name, layer in module.named_modules() if not layer.training}
    if isinstance(module, ClientModule):
        return still
    for name, layer in module.named_modules():
        layer.training = modes[name]
    return {name for name in still if not modes[name]}


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
    return call(module, inputs) if isinstance(module, ClientModule) else call(module, inputs, "write a predict_step")


def one_tensor(module: nn.Module, outputs: Any) -> Tensor:
    """Refuse the outputs of a module that are several tensors."""
    if isinstance(outputs, Tensor):
        return outputs
    raise ValueError(
        f"{type(module).__name__}.forward returns {form(outputs)}, and outputs are one tensor: write a predict_step, "
        "whose results trainer.predict returns as they are"
    )
