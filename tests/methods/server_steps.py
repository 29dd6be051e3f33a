"""Methods that record what their functions get and return, for tests that repeat a step by the paper, and the states of both sides."""

from collections.abc import Callable
from dataclasses import fields
from typing import Any, NamedTuple

from harness import RecordingTrainer, states_by_client

from flcog.method import Cohort, Messages, Method, Params, Slot


def gap_to_clients(trainer: RecordingTrainer, method: str, at_server: str, at_clients: str) -> Params:
    """The server's state minus the mean of all clients' states, which is 0 for clients that have not taken part."""
    states, clients = states_by_client(trainer, method, at_clients).values(), trainer.run.federation.num_clients
    server = trainer.servers[method][at_server].items()
    return {name: value - sum(state[name.removeprefix("model.")] for state in states) / clients for name, value in server}


class ServerStep(NamedTuple):
    """One call of a method's ``server_step``."""

    server: Slot
    params: Params
    delta: Params
    messages: Messages
    cohort: Cohort
    new_delta: Params
    new_server: Slot


def changed(method: Method, **functions: Callable[..., Any]) -> Any:
    """The same method with the same name and settings, but with these functions of its own."""
    name = type(method).__name__
    kind = type(f"Changed{name}", (type(method),), {"name": property(lambda self: name), **functions})
    return kind(**{field.name: getattr(method, field.name) for field in fields(method)})


def recorded(method: Method) -> tuple[Method, list[ServerStep]]:
    """The same method, and a list that receives every call of its ``server_step``."""
    steps: list[ServerStep] = []

    def server_step(self: Method, *given: Any) -> tuple[Params, Slot]:
        returned = type(method).server_step(self, *given)
        steps.append(ServerStep(*given, *returned))
        return returned

    return changed(method, server_step=server_step), steps
