"""Records the arguments and results of ``server_step``, for tests that repeat the step by the paper."""

from typing import Any, NamedTuple

import pytest

from flcog.method import Cohort, Messages, Method, Params, Slot


class ServerStep(NamedTuple):
    """One call of a method's ``server_step``."""

    server: Slot
    params: Params
    delta: Params
    messages: Messages
    cohort: Cohort
    new_delta: Params
    new_server: Slot


def recorded_server_steps(monkeypatch: pytest.MonkeyPatch, method: type[Method]) -> list[ServerStep]:
    """Returns a list that receives every later call of this method's ``server_step``."""
    steps: list[ServerStep] = []
    original = method.server_step

    def server_step(self: Method, *given: Any) -> tuple[Params, Slot]:
        returned = original(self, *given)
        steps.append(ServerStep(*given, *returned))
        return returned

    monkeypatch.setattr(method, "server_step", server_step)
    return steps
