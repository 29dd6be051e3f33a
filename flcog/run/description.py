"""The description of a run in the first lines of its summary."""

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from flcog.client.model import describe_optimizer
from flcog.client_module import ClientModule
from flcog.core.files import short
from flcog.core.masking import masked_text
from flcog.data.batching import Batching
from flcog.method import Method, Selection, expected_cohort, method_of
from flcog.server.engine import Engine
from flcog.server.state import ServerState
from flcog.settings import Settings


def describe(engine: Engine, server: ServerState, experiment: dict[str, Any], directory: Path) -> list[tuple[str, str]]:
    everybody, test, module, settings = engine.population, engine.central["test"], engine.model.module, engine.settings
    network, count = module.model if isinstance(module, ClientModule) else module, engine.processes.together
    num_parameters, num_constants = sizes(engine, server)
    frozen = f" trained, {num_constants:,} frozen" if num_constants else ""
    tests = f", {len(test):,} test samples" if test is not None else ""
    classes = f", {everybody.num_classes} classes" if everybody.task in ("classification", "multilabel") else ""
    where = "in other processes" if engine.clients.here is None else f"partition {engine.federation.split.hash}"
    shared = f", {engine.processes.per_device} on each device" if engine.processes.per_device > 1 else ""
    shared += ", which train each client together" if engine.processes.replicas > 1 else ""
    origin = f", from {short(Path(experiment['init_from']))}" if "init_from" in experiment else ""
    going_on = f", going on after round {server.round}" if server.round else ""
    selection, expected = method_of(engine.methods, Selection), expected_cohort(engine.methods, engine.cohort_size)
    cohort = f"{expected:,}" if selection is None else f"about {selection.expected(expected, engine.num_clients):,}"
    return [
        ("task", f"{everybody.task}{classes}"),
        ("model", f"{type(network).__name__}, {num_parameters:,} parameters{frozen}{origin}"),
        ("data", f"{engine.data_name}, {everybody.num_samples:,} samples{tests}"),
        ("clients", f"{everybody.num_clients:,} ({where}), {cohort} a round"),
        ("local work", f"{local_work(engine.batching)}, batches of {engine.batching.batch_size}"),
        ("optimizer", describe_optimizer(engine.optimizer)),
        ("methods", "\n".join(map(describe_method, engine.methods)) or "none: plain FedAvg"),
        ("processes", f"{count} process{'es' * (count > 1)} on {engine.processes.device.type}{shared}"),
        ("rounds", f"{settings.rounds}{going_on}"),
        ("run", str(short(directory))),
    ]


def sizes(engine: Engine, server: ServerState) -> tuple[int, int]:
    """The numbers of trained and of frozen parameters."""
    return sum(p.numel() for p in server.params.values()), sum(p.numel() for p in engine.model.constants.values())


def local_work(batching: Batching | Settings) -> str:
    if batching.local_steps is not None:
        return f"{batching.local_steps} local step{'s' * (batching.local_steps != 1)}"
    return f"{batching.local_epochs:g} local epoch{'s' * (batching.local_epochs != 1)}"


def acting_rounds(methods: Sequence[Method], rounds: int) -> list[int]:
    """Return the first and the last round, counted from 1, when all methods act that ever act. All rounds if there are none."""
    methods = [method for method in methods if method.start_round < rounds]
    first = max((method.start_round for method in methods), default=0)
    last = min([rounds, *(method.stop_round for method in methods if method.stop_round is not None)])
    return [first + 1, last] if first < last else [1, rounds]


def describe_method(method: Method) -> str:
    """A method with its hyper-parameters: ``FedProx(mu=0.01)``. Its rounds are shown only where it does not act in all."""
    fields = [
        f"{field.name}={getattr(method, field.name)!r}"
        for field in dataclasses.fields(method)
        if field.name not in ("start_round", "stop_round") or getattr(method, field.name) != field.default
    ]
    return masked_text(f"{method.name}({', '.join(fields)})")
