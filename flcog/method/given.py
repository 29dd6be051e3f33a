"""What hooks are given: dicts of their own, with the tensors of the run, which must stay as they are."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor
from torch._C._functorch import get_unwrapped, is_functorch_wrapped_tensor

from flcog.core.trees import containers_copied, leaves
from flcog.core.types import Params, Slot
from flcog.method.client_view import ClientView
from flcog.method.context import Context, FirstContact, GlobalModel
from flcog.method.method import Method
from flcog.method.returned import as_tensors


def as_given(ctx: Context) -> Context:
    """The context as a hook receives it, which may assign into its dicts."""
    received, broadcast, state, draws, inputs, buffers, *facts = ctx
    model, trees = GlobalModel(dict(received.params), dict(received.buffers)), (broadcast, state, draws, inputs)
    return type(ctx)._make((model, *map(containers_copied, trees), dict(buffers), *facts))


def first_contact(method: Method, params: Params, buffers: Params, client: ClientView) -> FirstContact:
    """A new client's state and its message to the server, or None for methods without a message."""
    with untouched(method, "init_client", params, buffers):
        returned = method.init_client(dict(params), dict(buffers), client)
    contact = returned if isinstance(returned, FirstContact) else FirstContact(returned)
    return contact._replace(state=as_tensors(method, "init_client", contact.state, "its state"))


def drawn(method: Method, rng: torch.Generator, client: ClientView) -> Slot:
    """A client's random numbers of a round."""
    return as_tensors(method, "draw", method.draw(rng, client), "its random numbers")


def broadcast_of(method: Method, server: Slot) -> Slot:
    """The part of a method's server state that clients receive."""
    with untouched(method, "broadcast", server):
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
