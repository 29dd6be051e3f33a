"""One method's server step: what it needs is there, what it returns is whole, and what earlier methods have made is not lost."""

import warnings
from collections.abc import Collection, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from flcog.core.types import Params, Slot
from flcog.method import Cohort, Messages, Method, ParameterMask
from flcog.server.aggregate import BadUpdate
from flcog.server.state import ServerState


def _looking(name: str) -> Any:
    """A method of dict that tells of itself."""

    def look(self: "Watched", *args: Any) -> Any:
        self.read |= set(args[:1]) if name in ("__getitem__", "get", "pop") else set(self.keys())
        return getattr(dict, name)(self, *args)

    return look


class Watched(dict[str, Tensor]):
    """A change of the model that knows which of its values somebody has looked at."""

    def __init__(self, values: Params) -> None:
        super().__init__(values)
        self.read: set[str] = set()

    def __iter__(self) -> Iterator[str]:  # which makes dict(...) and {**...} ask for each value
        return super().__iter__()

    __getitem__, get, values, items, copy, pop, __or__, __ror__ = map(
        _looking, ("__getitem__", "get", "values", "items", "copy", "pop", "__or__", "__ror__")
    )


pytree.register_pytree_node(
    Watched, lambda d: (list(d.values()), list(d)), lambda values, names: dict(zip(names, values, strict=True))
)


def take_server_step(
    method: Method,
    methods: Sequence[Method],
    server: ServerState,
    delta: Params,
    messages: Messages,
    cohort: Cohort,
    sent: Collection[str],
) -> tuple[Params, Slot, Params]:
    """The change that one method makes of the change so far, its new state, and the new buffers.

    Args:
        method: which acts.
        methods: those of the round, in the order in which they act.
        server: the state before the step.
        delta: the change, as the methods before this one have made it.
        messages: what the clients sent to the method.
        cohort: the clients.
        sent: the parameters whose changes clients sent.
    """
    earlier = [other for other in methods[: methods.index(method)] if other.overrides("server_step")]
    watched = Watched(delta) if earlier and _first_round_of(method, earlier) == cohort.round else None
    try:
        result: Sequence[Any] = method.server_step(
            server.servers[method.name], server.params, delta if watched is None else watched, messages, cohort
        )
        change, state, buffers = *result[:2], cohort.buffers | dict(*result[2:])
    except KeyError as error:
        if error.args and _is_unsent(method, error.args[0], server, sent):
            raise ValueError(_unsent(method, methods, error.args[0], server.params)) from error
        raise
    missing = next((name for name in server.params if name not in change), None)
    if missing is not None:
        text = f"{method.name}.server_step must return a change of every parameter; it returned none of {missing}"
        raise ValueError(_unsent(method, methods, missing, server.params) if _is_unsent(method, missing, server, sent) else text)
    lost = [] if watched is None or change is watched else [name for name in watched if name not in watched.read]
    if lost:
        names, of = " and ".join(one.name for one in earlier), "" if len(lost) == len(delta) else f" of {_some(lost)}"
        text = f"{method.name} is listed after {names} and replaces the server's step{of}: what {names} makes of it is lost"
        warnings.warn(text, stacklevel=2)
    if not sent and cohort.round == method.start_round and _does_nothing(method, delta, change):
        others = " and ".join(other.name for other in methods if other is not method and other.overrides("finish_client"))
        text = f"{method.name} gets no change of the model, of which clients send none beside {others}: its server's step does nothing"
        warnings.warn(text, stacklevel=2)
    return change, state, buffers


def check_model(params: Params, methods: Sequence[str], round: int) -> None:
    """Raise if the methods' server steps have made of the clients' sound updates a model that is not made of numbers.

    Else a run would end with such a model, or the next round would blame a client for it.
    """
    norm = torch.stack([norm.float() for norm in torch._foreach_norm(list(params.values()))]).norm()
    # A norm may be infinite where all values are finite.
    if torch.isfinite(norm) or all(torch.isfinite(value).all() for value in params.values()):
        return
    raise BadUpdate(
        f"the model is NaN or infinite after the server's step of {' and '.join(methods)} in round {round + 1}, though what clients "
        "sent is not: lower the server's learning rate or its other step sizes"
    )


def _does_nothing(method: Method, delta: Params, change: Params) -> bool:
    return method.overrides("server_step") and not any(bool(value.any()) for value in (*delta.values(), *change.values()))


def _some(names: Sequence[str]) -> str:
    return names[0] + (f" and {len(names) - 1} more" if len(names) > 1 else "")


def _first_round_of(method: Method, earlier: Sequence[Method]) -> int:
    """The first round in which all of them act."""
    return max(one.start_round for one in (method, *earlier))


def _is_unsent(method: Method, name: object, server: ServerState, sent: Collection[str]) -> bool:
    return method.individual_uploads and name in server.params and name not in sent


def _unsent(method: Method, methods: Sequence[Method], name: str, params: Params) -> str:
    others = [other for other in methods if other is not method]
    keepers = [other.name for other in others if isinstance(other, ParameterMask) and name in other.mask(params, 0)]
    names = " or ".join(keepers or [other.name for other in others if other.overrides("finish_client")])
    return f"{method.name} looks at each client's change of {name}, which clients do not send beside {names}: remove one of them"
