"""Compare a client's state that was read from a file with the initial state of this run's methods."""

from pathlib import Path
from typing import Any

from torch import Tensor

from flcog.client.runtime import TRAINING
from flcog.client.store import residual_stages
from flcog.run.checkpoint_contents import check_alike
from flcog.server.engine import Engine
from flcog.server.state import ServerState


def check_client_states(file: Path, client: int, states: dict[str, Any], engine: Engine, server: ServerState) -> None:
    """Refuse states of other methods, and states whose structure or values cannot be this client's.

    Args:
        file: the file that held them.
        client: the client's number.
        states: its states, by method.
        engine, server: the run.
    """
    residuals = {engine.methods[i].name for i in residual_stages(engine.methods)}
    methods = {method.name: method for method in engine.methods if method.overrides("init_client") or method.name in residuals}
    for name, state in states.items():
        if name == TRAINING:
            continue  # its entries depend on the module's optimisers and schedulers
        if name not in methods:
            raise ValueError(
                f"{file} holds a state of {name}, which is no method of this run: use the list of the run that wrote it"
            )
        if name in residuals and isinstance(state, dict) and all(isinstance(value, Tensor) for value in state.values()):
            continue  # its entries depend on the methods that act in a round
        if engine.clients.here is None:
            continue  # only the clients can make a state to compare it with
        initial = engine.clients.here.initial_state(methods[name], client, (server.params, server.buffers), server.round)
        check_alike(file, f"{name}'s state of client {client}", state, initial)
