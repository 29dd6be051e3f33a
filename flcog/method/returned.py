"""What a method's hooks are given, and checks of what they return: names and shapes of parameters, and the parts of a result.

A mistake gets one line with the method, the hook and the expected result. The checks run no operator of torch, so that they also work
under ``torch.func.vmap`` and ``torch.func.grad``.
"""

import difflib
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch._C._functorch import get_unwrapped, is_functorch_wrapped_tensor
from torch.utils import _pytree as pytree

from flcog.core.trees import containers_copied, leaves
from flcog.core.types import Params, Slot
from flcog.method.client_view import ClientView
from flcog.method.context import Context, FirstContact, GlobalModel, Upload
from flcog.method.method import Method


def is_checked(step: Tensor | int) -> bool:
    """Whether parameters that a hook returns in each local step are checked: in a client's first step, because shapes take microseconds.

    The number of the step is a tensor if the step is being compiled, which happens once.
    """
    return isinstance(step, Tensor) or step == 0


def check_params(method: Method, hook: str, values: Any, like: Params, some: bool = False, kind: str = "parameter") -> Params:
    """Refuse anything but a dict with a tensor of the right shape for every parameter, or for some of them."""
    if not isinstance(values, Mapping):
        raise wrong_result(method, hook, values, f"a dict of tensors by {kind}")
    for name, value in values.items():
        if name not in like:
            close = [known for known in like if known.endswith(f".{name}")] or difflib.get_close_matches(str(name), like, n=1)
            hint = f"; did you mean {close[0]!r}?" if close else f": return tensors for {', '.join(like)}"
            raise ValueError(f"{method.name}.{hook} returned {name!r}, which is no {kind}{hint}")
        if not isinstance(value, Tensor) or value.shape != like[name].shape:
            raise wrong_result(method, hook, value, f"a tensor of shape {list(like[name].shape)}", f" for {name}")
    if not some and len(values) < len(like):
        missing = next(name for name in like if name not in values)
        raise ValueError(f"{method.name}.{hook} returned nothing for {missing}, and must return a tensor for every {kind}")
    return values  # type: ignore[return-value]


def check_parts(method: Method, hook: str, values: Any, wanted: str, counts: Collection[int] = (2,)) -> Any:
    """Refuse anything but a tuple with one of these numbers of parts, which ``wanted`` names."""
    if not isinstance(values, tuple | list) or len(values) not in counts:
        raise wrong_result(method, hook, values, wanted)
    return values


def check_pair(method: Method, hook: str, values: Any, like: Params, second: str) -> tuple[Params, Slot]:
    """Refuse anything but a tuple of parameters and a tree, which ``second`` names."""
    first, slot = check_parts(method, hook, values, f"(params, {second})")
    return check_params(method, hook, first, like), slot


def check_scalar(method: Method, hook: str, value: Any) -> Tensor:
    """Refuse anything but a number, or a tensor without axes."""
    if not isinstance(value, int | float) and not (isinstance(value, Tensor) and value.ndim == 0):
        raise wrong_result(method, hook, value, "a scalar (a tensor of shape [])")
    return value  # type: ignore[return-value]


def check_upload(method: Method, value: Any, like: Params) -> Upload:
    """Refuse anything but an upload whose change of the model, if it has one, has names and shapes of parameters."""
    if not isinstance(value, Upload):
        raise wrong_result(method, "finish_client", value, "flcog.Upload(delta, state)")
    if value.delta is not None:
        check_params(method, "finish_client", value.delta, like, some=True)
    for part in ("mean", "sum"):
        as_tensors(method, "finish_client", dict(getattr(value, part)), f"Upload.{part}")
    return value._replace(state=as_tensors(method, "finish_client", {} if value.state is None else value.state, "Upload.state"))


def as_tensors(method: Method, hook: str, tree: Any, part: str) -> Slot:
    """Convert the Python numbers of a client's state, messages or random numbers to tensors, and refuse anything else but tensors."""
    for leaf in pytree.tree_leaves(tree):
        if not isinstance(leaf, Tensor | int | float):
            raise wrong_result(
                method, hook, leaf, "tensors and numbers there (torch.as_tensor makes one of a NumPy array)", f" in {part}"
            )
    return pytree.tree_map_only((int, float), torch.as_tensor, tree)


def wrong_result(method: Method, hook: str, got: Any, wanted: str, where: str = "") -> ValueError:
    """The error that names a hook's result and the expected one."""
    form = f"a tensor of shape {list(got.shape)}" if isinstance(got, Tensor) else f"a value of type {type(got).__name__}"
    count = f" with {len(got)} parts" if isinstance(got, tuple | list) else ""
    return ValueError(f"{method.name}.{hook} returned {'None' if got is None else form}{count}{where}, and must return {wanted}")


def as_given(ctx: Context) -> Context:
    """The context as a hook receives it, which may assign into its dicts."""
    received, broadcast, state, draws, inputs, buffers, *facts = ctx
    model, trees = GlobalModel(dict(received.params), dict(received.buffers)), (broadcast, state, draws, inputs)
    return type(ctx)._make((model, *map(containers_copied, trees), dict(buffers), *facts))


def first_contact(method: Method, params: Params, buffers: Params, client: ClientView) -> FirstContact:
    """A new client's state and its message to the server, or None for methods without a message."""
    returned = method.init_client(dict(params), dict(buffers), client)
    contact = returned if isinstance(returned, FirstContact) else FirstContact(returned)
    return contact._replace(state=as_tensors(method, "init_client", contact.state, "its state"))


def drawn(method: Method, rng: torch.Generator, client: ClientView) -> Slot:
    """A client's random numbers of a round."""
    return as_tensors(method, "draw", method.draw(rng, client), "its random numbers")


def broadcast_of(method: Method, server: Slot) -> Slot:
    """The part of a method's server state that clients receive."""
    return method.broadcast(containers_copied(server))


@contextmanager
def untouched(method: Method, hook: str, *kept: Slot) -> Iterator[None]:
    """Refuse a hook that changes one of these trees of tensors in place, as torch's counters of changes tell.

    The change would reach the global model or the next client unnoticed, and executors would differ: clients that train one after
    another start from changed values, and stacked clients do not.
    """
    tensors = [value for value in leaves(kept) if isinstance(value, Tensor)]
    before = [_changes(value) for value in tensors]
    yield
    if before != [_changes(value) for value in tensors]:
        raise ValueError(
            f"{method.name}.{hook} changed a tensor that it was given in place: return new tensors, such as value * 0.9 instead of "
            "value.mul_(0.9)"
        )


def _changes(value: Tensor) -> int:
    """How often a tensor was changed in place. Tensors of vmap do not count it, and the tensors inside them do."""
    while is_functorch_wrapped_tensor(value):
        value = get_unwrapped(value)
    return 0 if value.is_inference() else value._version
