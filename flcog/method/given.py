"""What hooks are given: dicts of their own, with the tensors of the run, which must stay as they are."""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext

import torch
from torch import Tensor

from flcog.core.trees import containers_copied, leaves
from flcog.core.types import Params, Slot
from flcog.method.client_view import ClientView
from flcog.method.context import Context, FirstContact, GlobalModel
from flcog.method.method import Method
from flcog.method.returned import check_tensors, is_checked

UNWATCHED = nullcontext()
"""Surrounds the hooks of a client's other steps, of which there are many."""


def given(ctx: Context) -> Context:
    """The context as a hook receives it, which may assign into its dicts."""
    received, server, state, draws, inputs, buffers, *facts = ctx
    model, trees = GlobalModel(dict(received.params), dict(received.buffers)), (server, state, draws, inputs)
    return type(ctx)._make((model, *map(containers_copied, trees), dict(buffers), *facts))


def first_contact(method: Method, params: Params, buffers: Params, client: ClientView) -> FirstContact:
    """A new client's state and its message to the server, or None for methods without a message."""
    returned = method.init_client(dict(params), dict(buffers), client)
    contact = returned if isinstance(returned, FirstContact) else FirstContact(returned)
    return contact._replace(state=check_tensors(method, "init_client", contact.state, "state"))


def drawn(method: Method, rng: torch.Generator, client: ClientView) -> Slot:
    """A client's random numbers of a round."""
    draws = method.draw(rng, client)
    if draws is None:
        raise ValueError(f"{method.name}.draw returned None, and must return a dict or another tree of tensors and numbers")
    return check_tensors(method, "draw", draws, "draws")


def broadcast_of(method: Method, server: Slot) -> Slot:
    """The part of a method's server state that clients receive."""
    return method.broadcast(containers_copied(server))


def shared_stay(method: Method, hook: str, ctx: Context) -> AbstractContextManager[None]:
    """Refuse a hook that changes in place what all clients receive, in a client's first step, before it and after the last one.

    Executors would differ otherwise: clients that train one after another start from changed values, and stacked clients do not.

    Args:
        method: whose hook is called.
        hook: its name.
        ctx: the context that the hook receives.
    """
    return _staying(method, hook, ctx) if is_checked(ctx.step) or hook == "finish_client" else UNWATCHED


@contextmanager
def _staying(method: Method, hook: str, ctx: Context) -> Iterator[None]:
    shared = [*ctx.received.params.items(), *ctx.received.buffers.items()]
    shared += [("ctx.server", value) for value in leaves(ctx.server) if isinstance(value, Tensor)]
    before = [value._version for _, value in shared]
    yield
    for (name, value), version in zip(shared, before, strict=True):
        if value._version != version:
            raise ValueError(
                f"{method.name}.{hook} changed {name}, which all clients receive, in place: return new tensors, such as value * 0.9 "
                "instead of value.mul_(0.9)"
            )
