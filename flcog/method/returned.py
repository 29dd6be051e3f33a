"""What a method's hooks are given, and checks of what they return: names and shapes of parameters.

The checks run no operator of torch, so that they also work under ``torch.func.vmap`` and ``torch.func.grad``.
"""

from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from types import UnionType
from typing import Any, cast

import torch
from torch import Tensor
from torch._C._functorch import get_unwrapped, is_functorch_wrapped_tensor
from torch.utils import _pytree as pytree

from flcog.core.trees import containers_copied, leaves
from flcog.core.types import Params, Slot
from flcog.method.client_view import ClientView
from flcog.method.context import Context, FirstContact, GlobalModel
from flcog.method.method import Method
from flcog.method.personal import seen_by


def is_checked(step: Tensor | int) -> bool:
    """Whether parameters that a hook returns in each local step are checked: in a client's first step, because shapes take microseconds.

    The number of the step is a tensor if the step is being compiled, which happens once.
    """
    return isinstance(step, Tensor) or step == 0


def check_type(method: Method, hook: str, value: Any, kind: type | UnionType, wanted: str) -> Any:
    """Refuse the results of the two usual slips: a part of a tuple, and None where ``return`` is missing."""
    if not isinstance(value, kind):
        got = "nothing" if value is None else f"a {type(value).__name__}"
        raise ValueError(f"{method.name}.{hook} returned {got}, and must return {wanted}")
    return value


def check_term(method: Method, term: Any) -> Tensor | float:
    """Refuse anything but a number for a term of the loss: a loss for each sample still has to be averaged."""
    check_type(method, "loss", term, Tensor | float | int, "a tensor")
    if isinstance(term, Tensor) and term.shape.numel() != 1:
        raise ValueError(f"{method.name}.loss returned the shape {list(term.shape)}, and must return one number, such as a mean")
    return cast(Tensor | float, term)


def check_params(method: Method, hook: str, values: Params, like: Params, some: bool = False) -> Params:
    """Refuse anything but a tensor of the right shape for every parameter, or for some of them: torch would broadcast others."""
    check_type(method, hook, values, Mapping, "a dict of the parameters")
    for name in values if some else values | like:
        got, wanted = (list(part[name].shape) if name in part else "nothing" for part in (values, like))
        if got != wanted:
            raise ValueError(
                f"{method.name}.{hook} returned {got} for {name}, and must return {wanted}: a dict of the parameters' shapes"
            )
    return values


def check_state(method: Method, hook: str, new: Any, old: Any, where: str = "") -> None:
    """Refuse other keys, shapes and lengths than a client's state had, except where it was empty."""
    got, wanted = _form(new), _form(old)
    if wanted and got != wanted:
        raise ValueError(f"{method.name}.{hook} returned {got or 'nothing'} for the state{where}, which had {wanted}")
    for key in old if isinstance(old, Mapping) else range(len(old)) if isinstance(old, tuple | list) else ():
        check_state(method, hook, new[key], old[key], f"{where}[{key!r}]")


def _form(part: Any) -> str:
    if isinstance(part, Tensor | int | float):
        return f"the shape {list(getattr(part, 'shape', ()))}"
    return f"the keys {sorted(part)}" if part and isinstance(part, Mapping) else f"{len(part)} entries" if part else ""


def as_tensors(tree: Any) -> Slot:
    """A client's state or random numbers, with tensors in the place of Python's numbers."""
    return pytree.tree_map_only((int, float), torch.as_tensor, tree)


def as_given(ctx: Context) -> Context:
    """The context as a hook receives it, which may assign into its dicts."""
    received, broadcast, state, draws, inputs, buffers, *facts = ctx
    model, trees = GlobalModel(dict(received.params), dict(received.buffers)), (broadcast, state, draws, inputs)
    return type(ctx)._make((model, *map(containers_copied, trees), dict(buffers), *facts))


def first_contact(
    method: Method, params: Params, buffers: Params, client: ClientView, local: Collection[str] = ()
) -> FirstContact:
    """A new client's state and its message to the server, or None for methods without a message."""
    returned = method.init_client(seen_by(method, params, local), dict(buffers), client)
    contact = returned if isinstance(returned, FirstContact) else FirstContact(returned)
    return contact._replace(state=as_tensors(contact.state))


def broadcast_of(method: Method, server: Slot) -> Slot:
    """The part of a method's server state that clients receive."""
    return method.broadcast(containers_copied(server))


@contextmanager
def untouched(method: Method, hook: str, *kept: Slot) -> Iterator[None]:
    """Name the hook in its errors, and refuse a hook that changes a tensor of these trees in place. torch counts such changes.

    The change would reach the global model or the next client unnoticed, and executors would differ: clients that train one after
    another start from changed values, and stacked clients do not.
    """
    tensors = [value for value in leaves(kept) if isinstance(value, Tensor)]
    before = [_changes(value) for value in tensors]
    try:
        yield
    except Exception as error:
        error.add_note(f"in {method.name}.{hook}")
        raise
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
