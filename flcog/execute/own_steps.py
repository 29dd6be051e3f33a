"""Runs a module's own ``training_step`` for many clients."""

from collections.abc import Iterator
from contextlib import contextmanager

from flcog.model_function import ModelFunction
from flcog.own_steps import among_rounds, logging_to


@contextmanager
def own_steps(model: ModelFunction, round: int) -> Iterator[None]:
    """Give a module's ``training_step`` the round number and a logger, for the training of one client or of a chunk.

    It does nothing for modules without such a step.
    """
    if not model.trains_itself:
        yield
        return
    model.log.begin_client()
    with among_rounds(model.module, round), logging_to(model.module, model.log.take):
        yield
