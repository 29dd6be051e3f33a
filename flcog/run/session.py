"""A run in progress: its interface for observers, its files and trackers, its checkpoints."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from flcog.core.files import OWNER_ONLY, RUN_REMEDY, write_table, write_yaml
from flcog.core.masking import masked
from flcog.core.trees import equal, whole
from flcog.core.types import Params
from flcog.core.yaml_files import load_yaml
from flcog.data import FederatedDataModule, Federation
from flcog.lightning.checkpoint import entries as lightning_entries
from flcog.lightning.checkpoint import logged_hyperparameters
from flcog.lightning.contract import is_users
from flcog.lightning.trainer import RoundsTrainer
from flcog.method import Callback, MethodRecord, Note, Personalisation, PrivateSum, Uploads, method_of
from flcog.run import checkpoint
from flcog.run.client_states import SavedClientStates
from flcog.run.client_table import MOST_ROWS, client_table, rows_of
from flcog.run.description import acting_rounds, describe, sizes
from flcog.run.directory import environment, next_command, update_yaml
from flcog.run.experiment import fingerprint
from flcog.run.frozen_weights import FrozenWeights
from flcog.run.metrics_table import MetricsTable
from flcog.run.partition_report import partition_report, without_clients
from flcog.run.trackers import Trackers
from flcog.server.engine import Engine
from flcog.server.evaluate import evaluated_params, only_personal, personal_model
from flcog.server.in_flight import Traffic
from flcog.server.state import ServerState
from flcog.wire.ledger import Ledger


@dataclass(eq=False)
class Session:
    """A run, as :class:`flcog.method.Run` describes it to observers. Without a ``folder`` nothing is written."""

    engine: Engine
    server: ServerState
    observers: Sequence[Callback]
    experiment: dict[str, Any]
    config: dict[str, Any] | None
    folder: Path | None
    states_folder: Path | None
    trackers: Trackers
    lightning: RoundsTrainer
    datamodule: FederatedDataModule
    resumed_from: dict[str, Any] | None = None
    """The checkpoint of a resumed run, until its first round."""

    def __post_init__(self) -> None:
        engine, folder = self.engine, self.folder
        self.settings, self.methods, self.processes = engine.settings, engine.methods, engine.processes
        self.model, self.evaluator, self.progress = engine.model, engine.evaluator, engine.progress
        self.clients = engine.clients.store = SavedClientStates(self.states_folder, engine.processes.rank)
        self.table = MetricsTable(folder / "metrics.csv" if folder is not None and engine.processes.is_first else None)
        self.frozen = FrozenWeights(engine.model.module, engine.model.constants)
        self._should_stop = False
        self._setting: dict[str, Any] = {}
        """The contents of ``run.yaml``, empty if it is not written."""

    # What observers see -----------------------------------------------------------------------------------------------------------

    @property
    def should_stop(self) -> bool:
        """Whether the run ends after the round in hand. It stays true, so that no observer undoes the decision of another."""
        return self._should_stop or self.lightning.stops

    @should_stop.setter
    def should_stop(self, value: bool) -> None:
        self._should_stop = self._should_stop or bool(value)

    @property
    def description(self) -> Sequence[tuple[str, str]]:
        return describe(self.engine, self.server, self.experiment, self.directory)

    @property
    def directory(self) -> Path:
        assert self.folder is not None
        return self.folder

    @property
    def federation(self) -> Federation:
        return self.engine.federation

    @property
    def has_all_data(self) -> bool:
        """Whether the clients are in this process: clients in other processes keep their data and states."""
        return self.engine.clients.here is not None

    @property
    def round(self) -> int:
        return self.server.round

    @property
    def params(self) -> Params:
        return self.server.params

    @property
    def buffers(self) -> Params:
        return self.server.buffers

    @property
    def history(self) -> list[dict[str, float]]:
        return self.table.rows

    @property
    def ledger(self) -> Ledger:
        return self.server.ledger

    def evaluated_params(self) -> Params:
        return evaluated_params(self.engine, self.server)

    def weights(self, client: int | None = None) -> tuple[Params, Params]:
        """The parameters and buffers of the model that is evaluated: the global one, or a client's own."""
        if client is not None:
            return personal_model(self.engine, self.server, client)
        if (alone := only_personal(self.engine, self.server)) is not None:
            raise ValueError(f"{alone.name} trains the clients' own models and no global one: give the number of a client")
        return self.evaluated_params(), self.buffers

    def load_global_model(self) -> None:
        """Load the global model into the module, which otherwise contains a client's."""
        self.engine.hand_over(self.server)

    def take_over_module(self) -> None:
        """Go on with the parameters and buffers of the module, if a hook has changed them."""
        if freed := next((name for name, value in self.model.constants.items() if value.requires_grad), None):
            raise ValueError(
                f"a hook sets requires_grad of {freed}, which was frozen when the run began, so that clients do not send it: freeze it in "
                "on_fit_start, and not in the module's constructor, setup or configure_model"
            )
        self.model.keep_buffers()
        self.model.find_tensors()
        now = {name: whole(value.detach()) for name, value in (self.model.params | self.model.buffers).items()}
        server = self.server
        before = server.params | server.buffers
        if self.processes.largest(int(any(not torch.equal(now[name], value) for name, value in before.items()))):
            parts = [{name: now[name].clone() for name in part} for part in (server.params, server.buffers)]
            server.params, server.buffers = self.processes.share_first(parts)

    def method_record(self, method: str) -> MethodRecord:
        self._fetch_states()
        states = ((client, self.clients.get(client)) for client in self.clients.clients)
        own = ((client, self.engine.to_device(state[method])) for client, state in states if method in state)
        return MethodRecord(self.engine.exchanges.get(method), self.server.uploads.get(method, Uploads({}, {}, [])), own)

    @property
    def state_files(self) -> Sequence[str]:
        return sorted(set(self.clients.files.values()))

    def next_command(self, verb: str, checkpoint: Path) -> str:
        return next_command(verb, self.directory, checkpoint, self.config)

    # What a run has paid ----------------------------------------------------------------------------------------------------------

    @property
    def _spending(self) -> Path | None:
        return None if self.folder is None else self.folder / "spending.yaml"

    @property
    def paid(self) -> float:
        """The rounds for which a private run has paid, by its file."""
        return float(load_yaml(self._spending)["rounds_paid"]) if self._spending is not None and self._spending.is_file() else 0

    def record_spending(self) -> None:
        """Write the number of rounds for which a private run has paid, before a round is drawn, into a file of its own.

        A killed run that repeats a round has released it twice, and pays twice. Repeatable noise has no file, because a repeated round
        releases the same numbers again.
        """
        private = method_of(self.methods, PrivateSum)
        if private is not None and private.secret and self._spending is not None and self.processes.is_first:
            paid = private.paid(self.server.servers[private.name])
            write_yaml(self._spending, {"rounds_paid": int(paid) if paid == int(paid) else paid})

    # The run's description --------------------------------------------------------------------------------------------------------

    def record(self) -> None:
        """Write the description of the run to its directory and to the trackers."""
        if not self.processes.is_first:
            return
        numbers = partition_report(self.federation)[1] if self.has_all_data else {}
        module, (num_parameters, num_frozen) = self.model.module, sizes(self.engine, self.server)
        origin = {name: value for name, value in self.experiment.items() if name == "init_from"}
        setting: dict[str, Any] = {
            "methods": [repr(method) for method in self.methods],
            "acting_rounds": acting_rounds(self.methods, self.settings.rounds),
            "model": type(getattr(module, "model", module)).__name__,
            "num_parameters": num_parameters,
            "num_frozen": num_frozen,
            "data": self.engine.data_name,
            "num_clients": self.engine.num_clients,
            "experiment": fingerprint(self.settings.rounds, self.experiment, self.observers),
            **origin,
            "partition": numbers,
            **self._executor(),
            "threads": torch.get_num_threads(),
            "instructions": torch.backends.cpu.get_cpu_capability(),
            "processes": self.processes.count,
            "seed": self.engine.seed,
            **environment(self.processes.accelerator),
        }
        self._setting = setting = masked(setting)
        update_yaml(self.directory / "run.yaml", setting)
        if self.config is not None:
            # A resumed run needs the secrets, other users must not read them.
            permissions = OWNER_ONLY if masked(self.config) != self.config else None
            update_yaml(self.directory / "config.yaml", self.config, permissions)
        # The command and the figures of single clients stay in the run's directory.
        shared = {name: value for name, value in setting.items() if name != "command"} | {"partition": without_clients(numbers)}
        told = logged_hyperparameters(self.model.module, self.datamodule.hooked) | {"run": shared}
        opened = self.trackers.begin(told | ({"config": self.config} if self.config else {}))
        self.engine.notes.add(*(Note("tracker", text) for text in opened))

    def _executor(self) -> dict[str, Any]:
        executor = self.engine.clients.executor
        return {"executor": executor.name, "clients_at_once": executor.clients_at_once, "compile": executor.compiled}

    def record_executor(self) -> None:
        """Write the executor's name if it was chosen in the last round."""
        if self._setting and self._setting | self._executor() != self._setting:
            self._setting |= self._executor()
            write_yaml(self.directory / "run.yaml", self._setting)

    def record_clients(self) -> None:
        """Write ``clients.csv`` at the end of a run, unless there are many clients or a method withholds everything."""
        if self.folder is None or not self.processes.is_first or self.engine.num_clients > MOST_ROWS:
            return
        if table := client_table(self.engine, self.server):
            write_table(self.folder / "clients.csv", rows_of(table), ["client", *table], RUN_REMEDY)

    # Checkpoints ------------------------------------------------------------------------------------------------------------------

    def save(self, path: Path, resumable: bool = True, pinned: Collection[str] | None = None) -> None:
        server, payload = self.server, self._payload(resumable)
        if resumable or method_of(self.methods, Personalisation) is not None:  # whose models are evaluated, too
            self._fetch_states()
            written = self.clients.save(server.round) if self.processes.replica == 0 else {}
            if self.processes.count == 1 or self.engine.clients.stateful:
                for part in self.processes.gather(written):
                    self.clients.files |= part
            payload["clients"] = self.clients.files
        weights = self.evaluated_params() | {name: self.buffers[name] for name in self.model.shared_buffers}
        self.engine.hand_over(server, self.evaluated_params())
        payload = lightning_entries(self.lightning, weights, self.config) | payload
        if self.processes.is_first:
            self.frozen.write(path, payload)
            if pinned is not None:
                self.clients.prune({*pinned, *self.state_files})

    def _payload(self, resumable: bool) -> dict[str, Any]:
        return {
            "format": checkpoint.FORMAT,
            **self.server.state_dict(),
            "seed": self.engine.seed,
            "experiment": self.experiment,
            "frozen": self.frozen.name,
            "methods": [method.name for method in self.methods],
            "observers": {name: observer.state_dict() for name, observer in checkpoint.named(self.observers)},
            "tracker_run": self.trackers.run_id,
            "resumable": resumable,
        }

    def restore(self, path: Path, saved: dict[str, Any], resume: bool, new_clients: bool = False) -> None:
        """Restore a checkpoint: only the model for an evaluation, or everything for a resumed run. New clients have no states yet."""
        server = self.server
        names = [method.name for method in self.methods]
        # Without the methods of its run, those parameters are evaluated that they evaluated.
        other_methods = not resume and saved["methods"] != names
        params = saved["params"] | (saved.get("state_dict", {}) if other_methods else {})
        server.params = {name: params[name].to(value) for name, value in server.params.items()}
        server.buffers = {name: saved["buffers"][name].to(value) for name, value in server.buffers.items()}
        self.frozen.restore(path, saved["frozen"])
        if saved["methods"] == names:
            server.servers = self.engine.to_device(saved["servers"])
        server.round, server.seconds = saved["round"], saved["seconds"]
        server.steps, server.rates = saved["steps"], saved["rates"]
        server.ledger = Ledger() if new_clients else Ledger.from_state(saved["ledger"])
        if is_users(self.model.module, "on_load_checkpoint"):
            self.load_global_model()
            self.model.module.on_load_checkpoint(dict(saved))
        if resume:
            self._resume(path, saved)
        elif saved["methods"] != names:
            server.keep_evaluated(server.params)  # the run's methods have evaluated these already
        elif "clients" in saved and not new_clients:
            self._load_states(saved["clients"])  # personal models are evaluated too

    def _resume(self, path: Path, saved: dict[str, Any]) -> None:
        """Restore everything but the model, which :meth:`restore` has restored."""
        server = self.server
        server.reported = {name: set(clients) for name, clients in saved["reported"].items()}
        server.messages = {name: dict(sent) for name, sent in saved["messages"].items()}
        server.traffic = Traffic.from_state(self.engine.to_device(saved["traffic"]), self.engine.seed)
        self._load_states(saved["clients"])
        for name, observer in checkpoint.named(self.observers):
            observer.load_state_dict(saved["observers"].get(name, {}))
        self.table.load(server.round)
        self.resumed_from = saved

    def _load_states(self, files: dict[int, str]) -> None:
        """Load the clients' states, and send them to clients in other processes."""
        self.clients.load(files, self.processes.count)
        if not self.has_all_data:
            self.engine.clients.restore(self.clients.by_client)

    def _fetch_states(self) -> None:
        """Copy the states of clients in other processes that have changed. Clients in this process keep their states here anyway."""
        if not self.has_all_data:
            for client, states in self.engine.clients.snapshot().items():
                if not equal(self.clients.get(client), states):
                    self.clients.put(client, states)
