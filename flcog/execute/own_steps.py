"""Runs a module's own ``training_step`` for many clients."""

from contextlib import AbstractContextManager, nullcontext

from flcog.functional.model_function import ModelFunction
from flcog.functional.own_steps import among_rounds


def own_steps(model: ModelFunction, round: int) -> AbstractContextManager[None]:
    """Let a module with a ``training_step`` of its own find the round's number while a client or a chunk trains."""
    return among_rounds(model.module, round) if model.trains_itself else nullcontext()
