"""Server steps that discard the steps of earlier methods or have nothing to act on, found by trying a round."""

import functools
from collections.abc import Collection, Iterator, Sequence
from typing import Any

from torch import Tensor
from torch.utils import _pytree as pytree

from flcog.advice.finding import Finding
from flcog.advice.global_randomness import noticing_draws
from flcog.core.types import Params, Slot
from flcog.method import Cohort, Messages, Method
from flcog.server import round as rounds
from flcog.server.engine import Engine
from flcog.server.state import ServerState
from flcog.server.step import ServerSteps


def lost_server_steps(engine: Engine, server: ServerState) -> Iterator[Finding]:
    """Try the first round, and each round where another server step begins. Errors of such a round are raised."""
    starts = {method.start_round for method in engine.methods if method.overrides("server_step")}
    for number in sorted({0} | starts):
        if number < engine.settings.rounds:
            yield from _tried(engine, server.copy(number))


def _tried(engine: Engine, server: ServerState) -> list[Finding]:
    planned = rounds.plan(engine, server, rounds.select(engine, server))
    findings: list[Finding] = []
    if planned.plans:
        planned, aggregate = rounds.train(engine, server, planned, directions=False)
        engine.clients.commit([])
        rounds.step(engine, server, planned, aggregate, functools.partial(WatchedSteps, findings))
    return findings


class WatchedSteps(ServerSteps):
    """Takes methods' server steps and adds to ``findings`` which of them ignore their input."""

    def __init__(self, findings: list[Finding], methods: Sequence[Method], server: ServerState, sent: Collection[str]) -> None:
        super().__init__(methods, server, sent)
        self.findings = findings

    def take(self, method: Method, delta: Params, messages: Messages, cohort: Cohort) -> tuple[Params, Slot, Params]:
        """Take the step with a change that remembers which of its values were read."""
        if not method.overrides("server_step"):
            return super().take(method, delta, messages, cohort)
        watched = WatchedChange(delta)
        with noticing_draws(method, "server_step", self.findings):
            result = super().take(method, watched, messages, cohort)
        earlier = [other for other in self.methods[: self.methods.index(method)] if other.overrides("server_step")]
        unread = [] if result[0] is watched else [name for name in delta if name not in watched.read]
        if earlier and unread:
            names, of = " and ".join(one.name for one in earlier), "" if len(unread) == len(delta) else f" of {_some(unread)}"
            consequence = f"replaces the server's step{of}, so the step of {names} is lost"
            self.findings.append(Finding(method.name, "server_step", consequence, f"list {method.name} before {names}"))
        if not self.sent and not any(bool(value.any()) for value in (*delta.values(), *result[0].values())):
            others = " and ".join(
                other.name for other in self.methods if other is not method and other.overrides("finish_client")
            )
            consequence = f"does nothing, because clients send no change of the model beside {others}"
            self.findings.append(Finding(method.name, "server_step", consequence, f"list it after {others}, or remove it"))
        return dict(result[0]), *result[1:]


def _some(names: Sequence[str]) -> str:
    return names[0] + (f" and {len(names) - 1} more" if len(names) > 1 else "")


def _reading(name: str) -> Any:
    """A method of dict that records which keys it returns."""

    def read(self: "WatchedChange", *args: Any) -> Any:
        self.read |= set(args[:1]) if name in ("__getitem__", "get", "pop") else set(self.keys())
        return getattr(dict, name)(self, *args)

    return read


class WatchedChange(dict[str, Tensor]):
    """A change of the model that records which of its values were read."""

    def __init__(self, values: Params) -> None:
        super().__init__(values)
        self.read: set[str] = set()

    def __iter__(self) -> Iterator[str]:  # makes dict(...) and {**...} ask for each value
        return super().__iter__()

    __getitem__, get, values, items, copy, pop, __or__, __ror__ = map(
        _reading, ("__getitem__", "get", "values", "items", "copy", "pop", "__or__", "__ror__")
    )


pytree.register_pytree_node(
    WatchedChange, lambda d: (list(d.values()), list(d)), lambda values, names: dict(zip(names, values, strict=True))
)
