"""What hooks are given: dicts of their own, with the tensors of the run, which must stay as they are."""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext

import torch
from torch import Tensor
from torch._C._functorch import get_unwrapped, is_functorch_wrapped_tensor

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
    with model_stays(method, "init_client", params, buffers):
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
    with model_stays(method, "broadcast", server=server):
        return method.broadcast(containers_copied(server))


def unchanged(method: Method, hook: str, ctx: Context, **own: Params) -> AbstractContextManager[None]:
    """Refuse a client's hook that changes in place what it is given, in a client's first step, before it and after the last one.

    Of what all clients receive, executors would differ otherwise: clients that train one after another start from changed values,
    and stacked clients do not. The client's own model would move without the optimiser.

    Args:
        method: whose hook is called.
        hook: its name.
        ctx: the context that the hook receives.
        own: the client's models among the hook's other arguments, by the argument's name.
    """
    if not is_checked(ctx.step) and hook != "finish_client":
        return UNWATCHED
    shared = ctx.received.params, ctx.received.buffers
    models = [("{}, which all clients receive,", tensors) for tensors in shared]
    models += [(f"{name}['{{}}']", tensors) for name, tensors in own.items()]
    return _staying(method, hook, *models, ("ctx.broadcast, which all clients receive,", ctx.broadcast))


def model_stays(method: Method, hook: str, *models: Params, server: Slot = None) -> AbstractContextManager[None]:
    """Refuse a hook outside a client's steps that changes the global model in place, which would stay changed unnoticed.

    Args:
        method: whose hook is called.
        hook: its name.
        models: parameters and buffers of the global model.
        server: the method's state at the server, if the hook must leave it alone, too.
    """
    return _staying(method, hook, *(("{} of the global model", model) for model in models), ("its state at the server", server))


@contextmanager
def _staying(method: Method, hook: str, *kept: tuple[str, Slot]) -> Iterator[None]:
    """Refuse a hook that changes one of these tensors in place, as torch's counters of their changes tell.

    Args:
        method: whose hook is called.
        hook: its name.
        kept: trees of tensors, each with its description. In that of a dict, {} stands for the name of a tensor.
    """
    counted = [[(value, _changes(value)) for value in leaves(tree) if isinstance(value, Tensor)] for _, tree in kept]
    yield
    for (what, tree), tensors in zip(kept, counted, strict=True):
        for place, (value, count) in enumerate(tensors):
            if _changes(value) != count:
                named = what.format(*list(tree)[place:]) if "{}" in what else what
                raise ValueError(
                    f"{method.name}.{hook} changed {named} in place: return new tensors, such as value * 0.9 instead of value.mul_(0.9)"
                )


def _changes(value: Tensor) -> int:
    """How often a tensor was changed in place. Tensors of vmap do not count it, and the tensors inside them do."""
    while is_functorch_wrapped_tensor(value):
        value = get_unwrapped(value)
    return 0 if value.is_inference() else value._version
