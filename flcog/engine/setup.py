"""What is fixed before round 1: the model with what methods add to it, the data with what they exchange, how clients are run."""

import dataclasses
import inspect
import itertools
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import lightning as L
import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from flcog.apply import ModelFunction
from flcog.client import ClientModule
from flcog.core.ledger import Ledger
from flcog.core.precision import DTYPES, default_dtype
from flcog.core.processes import Processes
from flcog.core.randomness import fold, make_rng, seeded
from flcog.core.trees import Tree
from flcog.data import Exchange, FederatedDataModule, Federation
from flcog.engine.batching import Batching
from flcog.engine.executors.base import Executor
from flcog.engine.executors.choice import Job, choose_executor
from flcog.engine.lightning_hooks import written_hooks
from flcog.engine.output_check import check_outputs
from flcog.engine.state import ServerState
from flcog.evaluation import Evaluator
from flcog.hooks import CLIENT_HOOKS, ClientView, Method, Note, Optimisation
from flcog.reading import Reader
from flcog.settings import Settings


@dataclass(frozen=True)
class Engine:
    """All that rounds are made with and do not change.

    Args:
        settings: what the user asked of the training.
        methods: of the run, in the order in which they act.
        model: the client's model, on its device.
        optimizer: the module's own.
        base_rates: the learning rates of its groups, before any schedule.
        federation: the data, after what methods exchanged before round 1.
        exchanges: what these results of ``prepare_data`` are, by the methods' names.
        batching: how a client's samples become steps.
        reader: turns sample indices into tensors.
        evaluator: measures models.
        executor: runs clients.
        processes: who shares the clients out.
        data_name: what kind of data module the data came from.
        notes: choices made on the user's behalf, for the run's summary.
    """

    settings: Settings
    methods: Sequence[Method]
    model: ModelFunction
    optimizer: torch.optim.Optimizer
    base_rates: Sequence[float]
    federation: Federation
    exchanges: Mapping[str, Exchange]
    batching: Batching
    reader: Reader
    evaluator: Evaluator
    executor: Executor
    processes: Processes
    data_name: str
    notes: list[Note]

    @property
    def seed(self) -> int:
        return self.settings.seed

    @property
    def stateful(self) -> bool:
        """Whether a method keeps something of each client."""
        return any(method.overrides("init_client") for method in self.methods)

    @property
    def cohort_size(self) -> int:
        """How many clients are sampled in a round."""
        return self.settings.cohort_size(self.federation.num_clients)

    def active(self, round: int) -> list[Method]:
        """The methods that act in a round, counted from 0."""
        return [method for method in self.methods if method.active(round)]

    def view(self, client: int, round: int) -> ClientView:
        """A client as plain-Python hooks see it."""
        offsets = self.federation.partition.offsets
        return ClientView(client, int(offsets[client + 1] - offsets[client]), round, self.federation, self.exchanges)

    def rates(self, round: int) -> list[float]:
        """The learning rates of the optimiser's groups in a round."""
        module = self.model.module
        schedule = module.lr_schedule if isinstance(module, ClientModule) else None
        factor = 1.0 if schedule is None else schedule(round)
        return [rate * factor for rate in self.base_rates]

    def optimisation(self, round: int) -> Optimisation:
        """The local optimiser as methods know it in a round."""
        group = self.optimizer.param_groups[0]
        return Optimisation(self.rates(round)[0], group.get("momentum", 0.0), group.get("weight_decay", 0.0))

    @torch.no_grad()
    def hand_over(self, server: ServerState) -> None:
        """Load the global model into the user's module, which until now holds the last client's."""
        for name, value in (server.params | server.buffers).items():
            (self.model.params.get(name, self.model.buffers.get(name))).copy_(value)  # type: ignore[union-attr]

    def to_device(self, tree: Any) -> Any:
        """A tree with its tensors where the run computes."""
        return pytree.tree_map(lambda t: t.to(self.processes.device) if isinstance(t, Tensor) else t, tree)


def set_up(
    settings: Settings,
    methods: Sequence[Method],
    model: L.LightningModule,
    datamodule: FederatedDataModule,
    processes: Processes,
    autocast: Callable[[], AbstractContextManager[Any]] = nullcontext,
    workspace: Path | None = None,
) -> tuple[Engine, ServerState]:
    """The engine, and the state before round 1.

    Args:
        settings: what the user asked of the training.
        methods: in the order in which they act.
        model: the user's module.
        datamodule: the user's data, prepared and set up.
        processes: who shares the clients out.
        autocast: the context of forward passes in mixed precision.
        workspace: where methods may keep what runs can share; None where nothing is to be written.
    """
    model, notes = _with_methods(settings, methods, model, datamodule, processes)
    function = ModelFunction(model, autocast)
    server = ServerState(
        params={name: value.detach().clone() for name, value in function.params.items()},
        buffers={name: function.buffers[name].detach().clone() for name in function.shared_buffers},
        servers={},
    )
    federation = datamodule.federation
    federation = dataclasses.replace(federation, train=federation.train.to(processes.device))
    dtype = DTYPES[settings.precision]
    example = Reader(federation, processes.device, dtype, function.convolves).example
    _check_batches(methods, example, federation)
    check_outputs(function, example, federation)
    federation, exchanges = _exchanged(settings, methods, federation, server.ledger, workspace)
    reader = Reader(federation, processes.device, dtype, function.convolves)
    server.servers = {method.name: method.init_server(server.params) for method in methods}
    optimizer = single_optimizer(model)
    notes += _notes_on_groups(optimizer, methods)
    batching = Batching(datamodule.batch_size, settings.local_steps, settings.local_epochs, datamodule.drop_last)
    job = Job(
        model=function,
        optimizer=optimizer,
        methods=methods,
        sample=reader.example,
        batch_size=batching.batch_size,
        largest_client=int(federation.partition.sizes.max()),
        clients=-(-settings.cohort_size(federation.num_clients) // processes.count),
        chunk_size=settings.chunk_size,
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
        evaluator=Evaluator(function, reader, datamodule.eval_batch_size, processes),
        executor=choose_executor(job, settings.executor, notes),
        processes=processes,
        data_name=type(datamodule).__name__,
        notes=notes,
    )
    return engine, server


def _with_methods(
    settings: Settings,
    methods: Sequence[Method],
    model: L.LightningModule,
    datamodule: FederatedDataModule,
    processes: Processes,
) -> tuple[L.LightningModule, list[Note]]:
    """The module with what methods add to it, on the device and alike in all processes; and notes on the list of methods."""
    if "configure_model" in written_hooks(model):
        with seeded(fold(settings.seed, "configure_model"), processes.device), default_dtype(torch.float32):
            model.configure_model()
    _check_task(model, datamodule)
    notes = []
    for method in methods:
        model = _with_method(settings, method, model, datamodule.federation, processes)
        if method.overrides("personal") and datamodule.federation.client_test is None:
            notes.append(Note("note", f"the personal models of {method.name} are measured only with data.client_test above 0"))
    model = model.to(processes.device, DTYPES[settings.precision])
    processes.overwrite(model.state_dict().values())
    return model, notes + notes_on_methods(methods, settings.rounds)


def _check_task(model: L.LightningModule, datamodule: FederatedDataModule) -> None:
    task = datamodule.federation.task
    if isinstance(model, ClientModule) and model.task != task:
        raise ValueError(
            f"{type(model).__name__} learns {model.task}, but {type(datamodule).__name__} holds {task} data: "
            "use Classifier, MultiLabelClassifier or Regressor accordingly"
        )


def _check_batches(methods: Sequence[Method], example: Tree, federation: Federation) -> None:
    """Refuse methods that make inputs or read labels where these are several tensors."""
    for what, tree in (("inputs", example), ("targets", federation.train.targets)):
        for method in methods:
            if method.plain_batches and not isinstance(tree, Tensor):
                raise ValueError(
                    f"{method.name} takes {what} that are one tensor, which it makes, moves or reads itself; this data set's are a "
                    f"{type(tree).__name__}: remove it"
                )


def _with_method(
    settings: Settings, method: Method, model: L.LightningModule, federation: Federation, processes: Processes
) -> L.LightningModule:
    """The module with what one method adds to it."""
    if federation.task not in method.tasks:
        raise ValueError(f"{method.name} is defined for {' and '.join(method.tasks)}, not for {federation.task} data: remove it")
    if not method.overrides("configure_model"):
        return model
    if not isinstance(model, ClientModule):
        raise ValueError(
            f"{method.name} changes the model, for which it must be a flcog.ClientModule; got {type(model).__name__}"
        )
    # New layers draw the same weights whatever the run's precision, as the model's own did before the run.
    with seeded(fold(settings.seed, "configure_model", method.name), processes.device), default_dtype(torch.float32):
        return method.configure_model(model)


def notes_on_methods(methods: Sequence[Method], rounds: int) -> list[Note]:
    """Methods that never act, and weights that are overruled."""
    notes = [
        Note("note", f"{method.name} starts after {method.start_round} rounds, so it never acts in this run")
        for method in methods
        if method.start_round >= rounds
    ]
    for earlier, later in itertools.combinations([method for method in methods if method.overrides("weights")], 2):
        # A method that does nothing but weigh has no effect once a later one replaces its weights.
        only_weighs = not any(earlier.overrides(hook) for hook in (*CLIENT_HOOKS, "server_step"))
        if only_weighs and (earlier.active(later.start_round) or later.active(earlier.start_round)):
            advice = f"swap them to weigh by {earlier.name}"
            notes.append(Note("note", f"{later.name} is listed after {earlier.name} and sets the weights: {advice}"))
    return notes


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


def _notes_on_groups(optimizer: torch.optim.Optimizer, methods: Sequence[Method]) -> list[Note]:
    settings = [[group.get(name) for name in ("lr", "momentum", "weight_decay")] for group in optimizer.param_groups]
    if not methods or all(setting == settings[0] for setting in settings):
        return []
    return [Note("note", "the optimiser's groups differ; a method that needs its learning rate takes the first group's")]


def single_optimizer(model: L.LightningModule) -> torch.optim.Optimizer:
    """The optimiser of ``configure_optimizers``, in any of the forms Lightning allows that hold one."""
    configured: Any = model.configure_optimizers()
    if isinstance(configured, dict):
        configured = (configured["optimizer"], configured.get("lr_scheduler"))
    scheduler = None
    if isinstance(configured, tuple) and len(configured) == 2 and not isinstance(configured[1], torch.optim.Optimizer):
        configured, scheduler = configured
    if isinstance(configured, list | tuple) and len(configured) == 1:
        configured = configured[0]
    if scheduler:
        warnings.warn("configure_optimizers' scheduler is ignored: clients start anew each round; use lr_schedule", stacklevel=2)
    if not isinstance(configured, torch.optim.Optimizer):
        raise ValueError(
            f"{type(model).__name__}.configure_optimizers must return one optimiser; got {type(configured).__name__}"
        )
    if inspect.signature(type(configured).step).parameters["closure"].default is inspect.Parameter.empty:
        raise ValueError(f"{type(configured).__name__} asks for the loss again within a step, which no client gives: use another")
    return configured


def data_modules(methods: Sequence[Method]) -> list[FederatedDataModule]:
    """Data modules that methods hold, such as the public data of a server's own training."""
    values = [getattr(method, field.name) for method in methods for field in dataclasses.fields(method)]
    return [value for value in values if isinstance(value, FederatedDataModule)]
