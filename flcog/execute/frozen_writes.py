"""Finds the frozen parameters that a trial of a module's step changes, and gives them their values back."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode


class _Writes(TorchDispatchMode):
    """Copies tensors before an operator of torch first writes into them, also through ``.data``. Others take no memory.

    Args:
        places: the tensors by their place in memory.
    """

    def __init__(self, places: Mapping[int, Tensor]) -> None:
        super().__init__()
        self._places = places
        self.copies: dict[int, Tensor] = {}

    def __torch_dispatch__(
        self, func: Any, types: Sequence[type], args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        for number, argument in enumerate(func._schema.arguments):
            if argument.alias_info is not None and argument.alias_info.is_write:
                given = args[number] if number < len(args) else kwargs.get(argument.name)
                for leaf in pytree.tree_leaves(given):
                    place = _place(leaf) if isinstance(leaf, Tensor) else 0
                    if place in self._places and place not in self.copies:
                        self.copies[place] = self._places[place].clone()
        return func(*args, **kwargs)


@contextmanager
def restored(module: nn.Module, frozen: Mapping[str, Tensor]) -> Iterator[Callable[[], list[str]]]:
    """Give frozen tensors of a module their values back after the context.

    Args:
        module: the module.
        frozen: its frozen parameters and buffers.

    Yields:
        A function that returns the names of the tensors that have changed.
    """
    if not frozen:
        yield list
        return
    data = {name: value.detach() for name, value in frozen.items()}
    layers = [(layer, dict(layer._parameters), dict(layer._modules)) for layer in module.modules()]
    own = {id(value): name for name, value in frozen.items()}
    writes = _Writes({place: value for value in data.values() if (place := _place(value))})

    def changed() -> list[str]:
        replaced = {name for name, value in frozen.items() if _place(value) != _place(data[name])}
        for layer, parameters, _ in layers:
            replaced |= {own[id(p)] for key, p in parameters.items() if id(p) in own and layer._parameters.get(key) is not p}
        now = {id(value) for value in module.parameters()} | {id(value) for value in module.buffers()}
        return [
            name
            for name, value in frozen.items()
            if name in replaced or id(value) not in now or _place(data[name]) in writes.copies
        ]

    try:
        with writes:
            yield changed
    finally:
        with torch.no_grad():
            for layer, parameters, children in layers:
                layer._parameters.update({key: p for key, p in parameters.items() if id(p) in own})
                layer._modules.update(children)
            for name, value in frozen.items():
                if _place(value) != _place(data[name]):
                    value.data = data[name]
            for place, copy in writes.copies.items():
                writes._places[place].copy_(copy)


def _place(tensor: Tensor) -> int:
    """The place in memory of a tensor and of its views; 0 for tensors without any."""
    try:
        return tensor.untyped_storage().data_ptr()
    except (NotImplementedError, RuntimeError):  # sparse tensors, or those of torch.func
        return 0
