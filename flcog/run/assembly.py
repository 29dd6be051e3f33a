"""Build a run: the clients' exchanges of data before round 1, the clients in this process or elsewhere, and the server."""

from dataclasses import replace
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

from flcog.client.messages import Clients, RollCall
from flcog.client.remote import RemoteClients, check_facts
from flcog.client.runtime import ClientRuntime
from flcog.core.randomness import make_rng
from flcog.core.trees import whole
from flcog.data import Exchange, Federation, Preprocess
from flcog.data.preprocess import standardisation
from flcog.method import (
    AsynchronousRounds,
    Attack,
    AvailabilityModel,
    Clock,
    DataExchange,
    Method,
    Note,
    Notes,
    Selection,
    local_names,
    method_of,
    seen_by,
)
from flcog.models.causal_lm import scales
from flcog.run.advice import missing_feedback
from flcog.run.hosting import ClientSide, check_separate
from flcog.server.engine import Engine
from flcog.server.kept import check_uploads
from flcog.server.state import ServerState


class Assembly(ClientSide):
    """Makes the engine of a run, and the state before round 1. The user's data are prepared and set up."""

    def with_clients_here(self, workspace: Path | None) -> tuple[Engine, ServerState]:
        """A run whose clients are in this process and its peers. Exchanges count their bytes, and leave new data."""
        notes, server, federation = self._begin()
        exchanges = {}
        for method in self._exchanging:
            exchange = method.prepare_data(federation, self._rng(method), workspace)
            if exchange.bytes_sent is not None:
                server.ledger.add(method.name, *exchange.bytes_sent)
            exchanges[method.name], federation = exchange, exchange.federation
        clients = self.runtime(federation, exchanges, notes)
        return self._finish(clients, clients, server, clients.roll_call(), notes)

    def with_clients_elsewhere(self, clients: RemoteClients) -> tuple[Engine, ServerState]:
        """A run whose clients are in other processes. It exchanges their data by messages, and reads only the central sets of its own."""
        check_separate(self.methods)
        if self.processes.count > 1:
            raise ValueError(
                f"a server whose clients are in other processes is one process; got {self.processes.count}: set devices=1"
            )
        notes, server, federation = self._begin()
        # It evaluates, and trains one step for the form of all replies.
        brief = replace(self, settings=replace(self.settings, executor="loop", chunk_size=None, compile=False))
        own = brief.runtime(federation, {}, notes)
        begun = clients.begin(own, self.settings.on_bad_update == "drop")
        mine = RollCall.of(federation)
        check_facts([("the server", {**mine.labels, **mine.data}), ("its clients", {**begun.labels, **begun.data})])
        self._standardise(federation, clients)
        exchanges: dict[str, Exchange] = {}
        for method in self._exchanging:
            if method.exchanges_data:
                ask = partial(clients.exchange, method.name)
                summary = method.ask_clients(ask, clients.roll_call().sizes, self._rng(method))
                server.ledger.add(method.name, *summary.bytes_sent)
                exchanges[method.name] = summary.kind(federation=federation, bytes_sent=summary.bytes_sent)
                notes.add(*([Note("note", summary.note)] if summary.note else []))
        own.exchanges = exchanges
        roll_call = clients.roll_call()
        made = self._finish(clients, own, server, roll_call, notes)
        clients.set_up(roll_call.population, self.client.function.constants | scales(self.client.function.module))
        return made

    @property
    def _exchanging(self) -> list[DataExchange]:
        """The methods that exchange data before round 1."""
        return [
            method for method in self.methods if isinstance(method, DataExchange) and method.start_round < self.settings.rounds
        ]

    def _rng(self, method: Method) -> torch.Generator:
        return make_rng(self.settings.seed, "prepare_data", method.name)

    def _begin(self) -> tuple[Notes, ServerState, Federation]:
        """The notes, the server's state without the methods' states, and the data on their device, all checked."""
        function, device, settings = self.client.function, self.processes.device, self.settings
        notes = Notes()
        notes.add(*self.client.notes, *(Note("note", text) for text in self.datamodule.notes))
        if settings.tf32 is not None and device.type != "cuda":
            notes.add(Note("note", f"tf32={settings.tf32} has no effect here: {device.type} has no TF32"))
        server = ServerState(
            params={name: whole(value.detach()).clone() for name, value in function.params.items()},
            buffers={name: function.buffers[name].detach().clone() for name in function.shared_buffers},
            servers={},
        )
        return notes, server, self.data()

    def _standardise(self, federation: Federation, clients: RemoteClients) -> None:
        """Let the server and all clients standardise their inputs by the mean and deviation of all clients' rows."""
        preprocess = federation.preprocess
        if not (isinstance(preprocess, Preprocess) and preprocess.fitted == "common"):
            return
        if (private := next((method.name for method in self.methods if method.is_private), None)) is not None:
            raise ValueError(
                f"{private} does not protect the sums of all clients' columns, from which their common mean and deviation are made: give "
                "data that are standardised already, or set standardise to own or false on the server and on every node"
            )

        def sums(mean: Tensor | None) -> Tensor:
            return torch.stack([own for _, own in sorted(clients.standardise(mean, None).items())])

        mean, std = standardisation(sums)
        preprocess.take(mean, std)
        clients.standardise(mean, std)

    def _finish(
        self, clients: Clients, own: ClientRuntime, server: ServerState, roll_call: RollCall, notes: Notes
    ) -> tuple[Engine, ServerState]:
        """Make the methods' states at the server, and the engine, and check numbers of clients."""
        num_clients, local = len(roll_call.sizes), local_names(self.methods, self.client.function)
        for method in self.methods:
            if isinstance(method, Selection):
                server.servers[method.name] = method.init_selection(num_clients)
            else:
                server.servers[method.name] = method.init_server(seen_by(method, server.params, local))
            if isinstance(method, AvailabilityModel | Attack | Clock):
                method.check_clients(num_clients)
        engine = Engine(
            settings=self.settings,
            methods=self.methods,
            model=self.client.function,
            optimizer=self.client.optimizer,
            roll_call=roll_call,
            central={"val": own.federation.val, "test": own.federation.test},
            reweighted_test=own.federation.reweighted_test,
            exchanges=own.exchanges,
            batching=own.batching,
            reader=own.reader,
            evaluator=own.evaluator,
            clients=clients,
            processes=self.processes,
            data_name=type(self.datamodule).__name__,
            notes=notes,
            progress=own.progress,
        )
        _check(engine, server)
        return engine, server


def _check(engine: Engine, server: ServerState) -> None:
    """Refuse a rule that needs more uploads than a round has, and numbers of clients that do not fit. Note what users should know."""
    expected = concurrent = engine.cohort_size
    if (asynchronous := method_of(engine.methods, AsynchronousRounds)) is not None:
        asynchronous.check_clients(engine.num_clients, expected)
        concurrent = asynchronous.concurrent(expected)
    if (selection := method_of(engine.methods, Selection)) is not None:
        selection.check_clients(engine.num_clients, concurrent)
        expected = selection.expected(expected, engine.num_clients)
    numbers = sum(value.numel() for value in [*server.params.values(), *server.buffers.values()])
    note = check_uploads(engine.methods, expected, numbers)
    engine.notes.add(*([note] if note else []))
    engine.notes.add(*(method.note(engine.seed, engine.num_clients) for method in engine.methods if isinstance(method, Attack)))
    engine.notes.add(*(Note("warning", str(finding)) for finding in missing_feedback(engine)))
    if engine.settings.eval_every and not engine.evaluator.have_figures:
        val, module = engine.central["val"] is not None or engine.roll_call.val is not None, type(engine.model.module).__name__
        names = ["validation"] * val + ["test"] * (engine.central["test"] is not None)
        text = f"nothing measures the {' and the '.join(names)} set: {module} has neither validation_step nor test_step"
        engine.notes.add(*([Note("warning", text)] if names else []))
