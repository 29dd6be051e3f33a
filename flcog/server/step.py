"""Run one method's server step, which must return a change of every parameter."""

from collections.abc import Collection, Sequence
from typing import Any

from flcog.core.types import Params, Slot
from flcog.method import Cohort, Messages, Method, ParameterMask
from flcog.server.state import ServerState


def take_server_step(
    method: Method,
    methods: Sequence[Method],
    server: ServerState,
    delta: Params,
    messages: Messages,
    cohort: Cohort,
    sent: Collection[str],
) -> tuple[Params, Slot, Params]:
    """Run one method's server step, and return the changed delta, the method's new state and the new buffers.

    Args:
        method: the method.
        methods: all methods of the round in their order.
        server: the state before the step.
        delta: the change of the model after the earlier methods.
        messages: the clients' messages to the method.
        cohort: the clients.
        sent: the parameters whose changes clients sent.
    """
    try:
        result: Sequence[Any] = method.server_step(server.servers[method.name], server.params, delta, messages, cohort)
        change, state, buffers = *result[:2], cohort.buffers | dict(*result[2:])
    except KeyError as error:
        if error.args and _is_unsent(method, error.args[0], server, sent):
            raise ValueError(_unsent(method, methods, error.args[0], server.params)) from error
        raise
    missing = next((name for name in server.params if name not in change), None)
    if missing is not None:
        text = f"{method.name}.server_step must return a change of every parameter; it returned none of {missing}"
        raise ValueError(_unsent(method, methods, missing, server.params) if _is_unsent(method, missing, server, sent) else text)
    return change, state, buffers


def _is_unsent(method: Method, name: object, server: ServerState, sent: Collection[str]) -> bool:
    return method.individual_uploads and name in server.params and name not in sent


def _unsent(method: Method, methods: Sequence[Method], name: str, params: Params) -> str:
    others = [other for other in methods if other is not method]
    keepers = [other.name for other in others if isinstance(other, ParameterMask) and name in other.mask(params, 0)]
    names = " or ".join(keepers or [other.name for other in others if other.overrides("finish_client")])
    return f"{method.name} looks at each client's change of {name}, which clients with {names} do not send: remove one of these methods"
