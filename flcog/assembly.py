"""Build a run in one process: the clients' exchanges of data before round 1, the clients, and the server."""

import dataclasses
from collections.abc import Sequence
from pathlib import Path

from flcog.client.model import ClientModel
from flcog.core.processes import Processes
from flcog.core.randomness import make_rng
from flcog.data import Exchange, FederatedDataModule, Federation
from flcog.hosting import HostedData, check_data, make_runtime, placed
from flcog.method import Method, Note, Notes, Selection
from flcog.server.engine import Engine
from flcog.server.round_schedules import RoundSchedules
from flcog.server.state import ServerState
from flcog.settings import Settings
from flcog.wire.ledger import Ledger


def set_up(
    settings: Settings,
    methods: Sequence[Method],
    client: ClientModel,
    datamodule: FederatedDataModule,
    processes: Processes,
    workspace: Path | None = None,
) -> tuple[Engine, ServerState]:
    """Make the engine, and the state before round 1.

    Args:
        settings: the user's settings of the training.
        methods: the run's methods in their order.
        client: the model that clients train, and its optimiser.
        datamodule: the user's data, prepared and set up.
        processes: the processes of the run.
        workspace: a folder where methods may keep files that runs share; None to write no files.
    """
    function, optimizer = client.function, client.optimizer
    notes = Notes()
    notes.add(*client.notes, *map(Note, datamodule.notes))
    if settings.tf32 is not None and processes.device.type != "cuda":
        notes.add(Note(f"tf32={settings.tf32} has no effect here: {processes.device.type} has no TF32"))
    server = ServerState(
        params={name: value.detach().clone() for name, value in function.params.items()},
        buffers={name: function.buffers[name].detach().clone() for name in function.shared_buffers},
        servers={},
    )
    federation = placed(datamodule.federation, processes.device)
    check_data(settings, methods, function, federation, processes.device)
    federation, exchanges = _exchanged(settings, methods, federation, server.ledger, workspace)
    for method in methods:
        if isinstance(method, Selection):
            server.servers[method.name] = method.init_selection(federation.num_clients)
        else:
            server.servers[method.name] = method.init_server(server.params)
    data = HostedData.of(datamodule)._replace(federation=federation, exchanges=exchanges)
    clients = make_runtime(settings, methods, client, data, processes, notes)
    engine = Engine(
        settings=settings,
        methods=methods,
        model=function,
        optimizer=optimizer,
        schedules=RoundSchedules(function.module, optimizer, client.hooks.configured.schedulers),
        roll_call=clients.roll_call(),
        central={"val": federation.val, "test": federation.test},
        reweighted_test=federation.reweighted_test,
        exchanges=exchanges,
        batching=clients.batching,
        reader=clients.reader,
        evaluator=clients.evaluator,
        clients=clients,
        processes=processes,
        data_name=type(datamodule).__name__,
        notes=notes,
    )
    return engine, server


def _exchanged(
    settings: Settings, methods: Sequence[Method], federation: Federation, ledger: Ledger, workspace: Path | None
) -> tuple[Federation, dict[str, Exchange]]:
    """Run each method's exchange before round 1, count its bytes, and return the new data and the exchanges."""
    exchanges = {}
    for method in methods:
        if not method.overrides("prepare_data") or method.start_round >= settings.rounds:
            continue
        exchange = method.prepare_data(federation, make_rng(settings.seed, "prepare_data", method.name), workspace)
        if not isinstance(exchange, Exchange):
            got = type(exchange).__name__
            raise ValueError(f"{method.name}.prepare_data must return a flcog.Exchange; got {got}: return Exchange(federation)")
        if exchange.bytes_sent is not None:
            ledger.add(method.name, *exchange.bytes_sent)
        exchanges[method.name], federation = exchange, exchange.federation
    return federation, exchanges


def data_modules(methods: Sequence[Method]) -> list[FederatedDataModule]:
    """The data modules of methods, such as public data for training on the server."""
    values = [getattr(method, field.name) for method in methods for field in dataclasses.fields(method)]
    return [value for value in values if isinstance(value, FederatedDataModule)]
