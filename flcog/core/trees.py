"""Trees of inputs or targets: a tensor, or a dict, tuple or list of trees. The first axis of every tensor is the samples.

A strategy of Lightning's may have divided a tensor among processes (``torch.distributed.tensor.DTensor``).
"""

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Any, Protocol, runtime_checkable

import torch
from lightning_utilities.core.apply_func import apply_to_collection
from torch import Tensor, nn
from torch.utils import _pytree as pytree

Tree = Any
"""A tensor or a dict, tuple or list of trees; data sets may store arrays instead of tensors."""


def map_leaves(function: Callable[[Any], Any], tree: Tree) -> Tree:
    """Apply ``function`` to each leaf of a tree. A single tensor, the usual case, costs only the call.

    >>> map_leaves(len, {"words": torch.zeros(3, 7), "mask": torch.zeros(3)})
    {'words': 3, 'mask': 3}
    """
    return function(tree) if isinstance(tree, Tensor) else pytree.tree_map(function, tree)


def distinct(tree: Tree) -> tuple[list[Any], Callable[[Sequence[Any]], Tree]]:
    """The leaves of a tree, each once if it appears twice, and a function that makes the tree of other leaves in their places.

    >>> w = torch.ones(2)
    >>> found, tree_of = distinct({"delta": w, "sum": {"delta": w, "steps": torch.zeros(1)}})
    >>> len(found), tree_of([1, 2])
    (2, {'delta': 1, 'sum': {'delta': 1, 'steps': 2}})
    """
    values, spec = pytree.tree_flatten(tree)
    places: dict[int, int] = {}
    order = [places.setdefault(id(value), len(places)) for value in values]
    found = list({id(value): value for value in values}.values())
    return found, lambda others: pytree.tree_unflatten([others[place] for place in order], spec)


def map_once(function: Callable[[Any], Any], tree: Tree) -> Tree:
    """Apply ``function`` to each leaf of a tree, once to a leaf that appears twice, so that its results are one object, too."""
    found, tree_of = distinct(tree)
    return tree_of([function(value) for value in found])


def copied_from(tree: Any, live: Iterable[Tensor]) -> Any:
    """Copy the tensors of a tree that share memory with ``live``, whose tensors will change in place."""
    storages = {tensor.untyped_storage().data_ptr() for tensor in live if not is_sharded(tensor)}

    def separate(value: Any) -> Any:
        shares = isinstance(value, Tensor) and value.untyped_storage().data_ptr() in storages
        return value.clone() if shares else value

    return map_once(separate, tree)


def containers_copied(tree: Tree) -> Tree:
    """The tree with dicts and lists of its own, so that an assignment into them changes no other tree. The tensors are the same.

    >>> state = {"momentum": {"weight": 1}}
    >>> copy = containers_copied(state)
    >>> copy["momentum"]["weight"] = 2
    >>> state
    {'momentum': {'weight': 1}}
    """
    if type(tree) is dict:
        return {key: part if isinstance(part, Tensor) else containers_copied(part) for key, part in tree.items()}
    return type(tree)(map(containers_copied, tree)) if type(tree) in (list, tuple) else tree


def leaves(tree: Tree) -> list[Any]:
    return [tree] if isinstance(tree, Tensor) else pytree.tree_leaves(tree)


def first_leaf(tree: Tree) -> Any:
    return tree if isinstance(tree, Tensor) else pytree.tree_leaves(tree)[0]


def rows(tree: Tree, which: Any) -> Tree:
    """The rows of some samples, selected by a slice or by indices."""
    return tree[which] if isinstance(tree, Tensor) else pytree.tree_map(lambda leaf: leaf[which], tree)


def num_rows(tree: Tree) -> int:
    return len(first_leaf(tree))


def num_bytes(tree: Tree) -> int:
    return sum(leaf.numel() * leaf.element_size() for leaf in leaves(tree) if isinstance(leaf, Tensor))


def floats_to(dtype: torch.dtype, tree: Tree) -> Tree:
    """Convert the floating-point tensors of a tree to this dtype. Integers (token ids, masks) stay as they are."""
    return map_leaves(lambda leaf: leaf.to(dtype) if leaf.is_floating_point() else leaf, tree)


def unlike_structures(trees: Sequence[Tree]) -> str:
    """Describe two different structures among trees that should have the same. Empty if all are equal.

    >>> unlike_structures([{"image": torch.zeros(4)}, {"image": torch.zeros(4), "mask": torch.zeros(4)}])
    'batches have different structures: a dict of image and a dict of image, mask'
    """
    first, *others = [pytree.tree_structure(tree) for tree in trees]
    odd = next((k for k, other in enumerate(others, 1) if other != first), None)
    return "" if odd is None else f"batches have different structures: {form(trees[0])} and {form(trees[odd])}"


def equal(one: Tree, other: Tree) -> bool:
    """Whether two pytrees have the same structure, and equal leaves of the same types."""
    (own, spec), (others, other_spec) = pytree.tree_flatten(one), pytree.tree_flatten(other)

    def same(a: Any, b: Any) -> bool:
        both = isinstance(a, Tensor) and isinstance(b, Tensor)
        return a.dtype == b.dtype and torch.equal(a, b) if both else a == b

    return spec == other_spec and all(map(same, own, others))


def has_rows(tree: Tree, count: int) -> bool:
    """Whether all parts of a batch are tensors with one row for each of ``count`` samples.

    >>> has_rows({"image": torch.zeros(4, 2), "name": ["a", "b", "c", "d"]}, 4), has_rows(torch.zeros(3, 2), 4)
    (False, False)
    """
    return all(isinstance(leaf, Tensor) and leaf.shape[:1] == (count,) for leaf in leaves(tree))


def form(value: Any) -> str:
    """Describe a container in words.

    >>> form((1, 2, 3)), form({"image": 1})
    ('a tuple of 3 parts', 'a dict of image')
    """
    if isinstance(value, Mapping):
        return f"a {type(value).__name__} of {', '.join(map(str, value))}" if value else f"an empty {type(value).__name__}"
    return f"a {type(value).__name__}" + (f" of {len(value)} parts" if isinstance(value, tuple | list) else "")


@runtime_checkable
class Movable(Protocol):
    """A tensor, or an object with a method ``to``, such as a graph of PyTorch Geometric."""

    def to(self, *args: Any) -> Any: ...


def moved(tree: Tree, move: Callable[[Any], Any]) -> Tree:
    """Apply ``move`` to all that can be moved in a batch, which may contain dataclasses, too."""
    return apply_to_collection(tree, Movable, move)


def call(network: Callable[..., Any], inputs: Tree) -> Any:
    """Call ``network(inputs)``, or ``network(**inputs)`` if the inputs are a dict of the parameters of the network's forward.

    >>> call(lambda words, mask=None: words, {"words": 1})
    1
    >>> call(lambda batch: sorted(batch), {"words": 1, "mask": 2})
    ['mask', 'words']
    >>> call(lambda words, mask=None: words, {"words": 1, "kind": 2})
    Traceback (most recent call last):
    TypeError: <lambda>() got an unexpected keyword argument 'kind'
    """
    if isinstance(inputs, dict) and _by_name(_function_of(network), tuple(inputs)):
        return network(**inputs)
    return network(inputs)


def _function_of(network: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that can be cached for a network: its class's function, not a method that is bound to a single copy."""
    function = network.forward if isinstance(network, nn.Module) else network
    return getattr(function, "__func__", function)


@lru_cache(maxsize=256)
def _by_name(function: Callable[..., Any], names: tuple[str, ...]) -> bool:
    """Whether inputs with these names are passed as keywords: the function takes any of them."""
    parameters = inspect.signature(function).parameters
    takes_all = any(parameter.kind is inspect.Parameter.VAR_KEYWORD for parameter in parameters.values())
    return takes_all or not parameters.keys().isdisjoint(names)


def is_sharded(value: Any) -> bool:
    """Whether this process holds a part of the tensor alone."""
    return hasattr(value, "full_tensor")


def whole(value: Tensor) -> Tensor:
    """The whole tensor. Of a divided one all processes must ask for it at once."""
    divided: Any = value
    return divided.full_tensor() if is_sharded(value) else value  # type: ignore[no-any-return]


def divide_again(module: nn.Module) -> None:
    """Let torch's ``fully_shard`` divide the parameters that a forward pass without a backward pass has left whole."""
    layer: Any
    for layer in module.modules():
        if hasattr(layer, "reshard"):
            layer.reshard()


def load(target: Tensor, value: Tensor) -> None:
    """Copy a whole tensor, which every process has, into one that may be divided."""
    if is_sharded(target):
        from torch.distributed.tensor import distribute_tensor  # takes 0.3 s

        divided: Any = target
        value = distribute_tensor(value.to(divided.device), divided.device_mesh, divided.placements, src_data_rank=None)
    with torch.no_grad():
        target.copy_(value)
