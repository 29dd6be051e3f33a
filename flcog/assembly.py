"""Builds a run's server and clients: the model, the data after the methods' exchanges, and the executor that trains clients."""

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from torch import Tensor

from flcog.client.model import ClientModel
from flcog.client.output_check import check_outputs
from flcog.client.runtime import ClientRuntime
from flcog.core.precision import DTYPES
from flcog.core.processes import Processes
from flcog.core.randomness import make_rng
from flcog.core.trees import Tree, unlike_shapes
from flcog.data import Exchange, FederatedDataModule, Federation
from flcog.data.batching import Batching
from flcog.evaluation import Evaluator
from flcog.execute.choice import choose_executor
from flcog.execute.job import Job
from flcog.execute.loop import LoopExecutor
from flcog.execute.memory import chunk_bytes
from flcog.method import Method, Note, Notes, WarningNote
from flcog.reading import Reader
from flcog.server.engine import Engine, cohort_size
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
    """The engine, and the state before round 1.

    Args:
        settings: what the user asked of the training.
        methods: in the order in which they act.
        client: what clients train.
        datamodule: the user's data, prepared and set up.
        processes: who shares the clients out.
        workspace: where methods may keep what runs can share; None where nothing is to be written.
    """
    function, optimizer = client.function, client.optimizer
    notes = Notes()
    notes.add(*client.notes, *map(Note, datamodule.notes))
    if settings.tf32 is not None and processes.device.type != "cuda":
        notes.add(Note(f"tf32={settings.tf32} plays no part here: {processes.device.type} has no TF32"))
    server = ServerState(
        params={name: value.detach().clone() for name, value in function.params.items()},
        buffers={name: function.buffers[name].detach().clone() for name in function.shared_buffers},
        servers={},
    )
    federation = datamodule.federation
    val, test = (part and part.to(processes.device) for part in (federation.val, federation.test))
    federation = dataclasses.replace(federation, train=federation.train.to(processes.device), val=val, test=test)
    dtype = DTYPES[settings.precision]
    example = Reader(federation, processes.device, dtype, function.convolves).example
    _check_batches(methods, example, federation)
    check_outputs(function, example, federation)
    federation, exchanges = _exchanged(settings, methods, federation, server.ledger, workspace)
    notes.add(*_outdated(methods, exchanges))
    reader = Reader(federation, processes.device, dtype, function.convolves)
    server.servers = {method.name: method.init_server(server.params) for method in methods}
    batching = _batching(settings, datamodule, federation)
    job = Job(
        model=function,
        optimizer=optimizer,
        methods=methods,
        sample=reader.example,
        targets=reader.example_targets,
        batch_size=batching.batch_size,
        largest_client=int(federation.partition.sizes.max()),
        clients=-(-cohort_size(settings, federation) // processes.count),
        chunk_size=settings.chunk_size,
        memory=chunk_bytes(processes, notes) if settings.chunk_size is None and settings.executor != "loop" else 0,
        compile=settings.compile,
        reads_whole_batches=reader.whole_batches,
        unlike_batches=_unlike_batches(reader, batching.batch_size),
        draws_here=reader.source is not None and reader.source.draws_here,
    )
    evaluator = Evaluator(function, reader, datamodule.eval_batch_size, processes)
    executor = choose_executor(job, settings.executor, notes, processes)
    loop = LoopExecutor(function, optimizer)
    clients = ClientRuntime(
        methods, function, optimizer, federation, exchanges, batching, reader, executor, settings.seed, evaluator, loop
    )
    engine = Engine(
        settings=settings,
        methods=methods,
        model=function,
        optimizer=optimizer,
        base_rates=[group["lr"] for group in optimizer.param_groups],
        federation=federation,
        exchanges=exchanges,
        batching=batching,
        reader=reader,
        evaluator=evaluator,
        clients=clients,
        processes=processes,
        data_name=type(datamodule).__name__,
        notes=notes,
    )
    return engine, server


def _batching(settings: Settings, datamodule: FederatedDataModule, federation: Federation) -> Batching:
    """How samples become steps. Where a method has put clients together, a round's work stays that of the clients asked for."""
    asked, clients = settings.cohort_size(federation.split.num_clients), cohort_size(settings, federation)
    steps, epochs = settings.local_steps, settings.local_epochs
    share = (asked / federation.split.num_clients) / (clients / federation.num_clients)
    return Batching(
        datamodule.batch_size,
        None if steps is None else steps * asked // clients,
        None if epochs is None else epochs * share,
        datamodule.drop_last,
    )


def _unlike_batches(reader: Reader, batch_size: int) -> str:
    """Where batches are read by themselves: in what those of the first clients differ, if they do."""
    if not reader.whole_batches:
        return ""
    partition = reader.federation.partition
    requests = [(np.resize(partition.client(k), batch_size), None) for k in range(min(8, partition.num_clients))]
    return unlike_shapes([inputs for inputs, _ in reader.each(reader.federation.train, requests)])


def _check_batches(methods: Sequence[Method], example: Tree, federation: Federation) -> None:
    """Refuse methods that make inputs or read labels where these are several tensors."""
    for what, tree in (("inputs", example), ("targets", federation.train.targets)):
        for method in methods:
            if method.plain_batches and not isinstance(tree, Tensor):
                raise ValueError(
                    f"{method.name} takes {what} that are one tensor, which it makes, moves or reads itself; this data set's are a "
                    f"{type(tree).__name__}: remove it"
                )


def _exchanged(
    settings: Settings, methods: Sequence[Method], federation: Federation, ledger: Ledger, workspace: Path | None
) -> tuple[Federation, dict[str, Exchange]]:
    """The data after what methods exchange before round 1, and each method's exchange; the bytes are counted."""
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


def _outdated(methods: Sequence[Method], exchanges: Mapping[str, Exchange]) -> list[Note]:
    """Methods that have told one another of data which a later one then changed."""
    notes: list[Note] = []
    told: list[str] = []
    before = None
    for method in [method for method in methods if method.name in exchanges]:
        exchange = exchanges[method.name]
        if before is not None and exchange.federation is not before:
            notes += [
                WarningNote(f"{method.name} changes the data after {name} has exchanged what they are: list {name} after it")
                for name in told
            ]
        elif exchange.bytes_sent is not None:
            told.append(method.name)
        before = exchange.federation
    return notes


def data_modules(methods: Sequence[Method]) -> list[FederatedDataModule]:
    """Data modules that methods hold, such as the public data of a server's own training."""
    values = [getattr(method, field.name) for method in methods for field in dataclasses.fields(method)]
    return [value for value in values if isinstance(value, FederatedDataModule)]
