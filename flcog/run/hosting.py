"""Build the clients' side of a run from its configuration and the data of the clients that a process hosts."""

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from lightning.pytorch.trainer.states import TrainerFn
from torch import Tensor, nn

from flcog.client.messages import RollCall
from flcog.client.model import ClientModel, check_outputs, make_client_model
from flcog.client.runtime import ClientRuntime
from flcog.client.store import ClientStore
from flcog.core.precision import DTYPES
from flcog.core.processes import Processes
from flcog.core.randomness import make_rng
from flcog.core.types import Params
from flcog.data import Exchange, FederatedDataModule, Federation, Partition, Samples
from flcog.data.batching import Batching
from flcog.data.reading import Reader
from flcog.execute.choice import ChosenExecutor
from flcog.execute.job import Job, chunk_bytes
from flcog.execute.one_client import Learner, OneClient
from flcog.execute.placements import Chunks
from flcog.functional.evaluation import Evaluator
from flcog.lightning.client import LightningClient
from flcog.lightning.evaluation import OwnSteps
from flcog.lightning.trainer import RoundsTrainer
from flcog.method import DataExchange, DataHost, Method, Notes, Selection, expected_cohort, method_of
from flcog.method.client_view import Population
from flcog.settings import Settings


@dataclass(frozen=True)
class ClientSide:
    """All that makes the clients' side of a run: its configuration, the user's data, and a process to run in."""

    settings: Settings
    methods: Sequence[Method]
    client: ClientModel
    datamodule: FederatedDataModule
    processes: Processes

    def data(self) -> Federation:
        """The data on which clients train, in the form that the model's steps take, with the sets that fit into the device's memory on it.

        Under ``overfit_batches`` clients have only their first batches. Models with too few outputs are refused, and methods that cannot
        read inputs or labels of several tensors, or of their own form.
        """
        data, most, model = self.datamodule, self.settings.overfit_batches, self.client.function
        federation = data.federation
        if most:
            partition, batching = federation.partition, Batching(data.batch_size, None, 1.0, data.drop_last)
            shares = [int(most * batching.batches_per_epoch(size)) for size in partition.sizes]
            batches = [most] * len(shares) if isinstance(most, int) else [max(1, share) for share in shares]
            first = [partition.client(k)[: count * data.batch_size] for k, count in enumerate(batches)]
            federation = dataclasses.replace(federation, partition=Partition.from_clients(first), whole=federation.split)

        def ready(samples: Samples) -> Samples:
            return (samples.as_steps_receive_it() if model.takes_whole_batches else samples).to(self.processes.device)

        val, test = (part and ready(part) for part in (federation.val, federation.test))
        federation = dataclasses.replace(federation, train=ready(federation.train), val=val, test=test)
        example = self._reader(federation).example
        check_outputs(model, example, federation)
        as_returned = federation.train.returned is not None and model.takes_whole_batches
        plain = not as_returned and isinstance(example, Tensor) and isinstance(federation.train.targets, Tensor)
        if reader := next((method.name for method in self.methods if method.plain_batches and not plain), None):
            raise ValueError(
                f"{reader} makes, moves or reads inputs and targets itself, and {type(model.module).__name__} does not get them as one "
                f"tensor each, images in [0, 1] and class indices: give such data and a flcog.ClientModule, or remove {reader}"
            )
        return federation

    def _reader(self, federation: Federation) -> Reader:
        model, dtype = self.client.function, DTYPES.get(self.settings.precision, torch.float32)
        return Reader(federation, self.processes.device, dtype, model.convolves, model.takes_whole_batches)

    def runtime(self, federation: Federation, exchanges: Mapping[str, Exchange], notes: Notes) -> ClientRuntime:
        """The runtime of the clients with these data, which may have changed since :meth:`data`, and the executor that trains them."""
        settings, client, processes = self.settings, self.client, self.processes
        function, optimizer, reader = client.function, client.optimizer, self._reader(federation)
        batching = _batching(settings, self.datamodule, federation)
        cohort = expected_cohort(self.methods, settings.cohort_size(federation.split.num_clients, federation.num_clients))
        if (selection := method_of(self.methods, Selection)) is not None:
            cohort = selection.expected(cohort, federation.num_clients)
        job = Job(
            client=client,
            reader=reader,
            batch_size=batching.batch_size,
            clients=-(-cohort // processes.count),
            chunk_size=settings.chunk_size,
            memory=chunk_bytes(processes) if settings.chunk_size is None and settings.executor != "loop" else 0,
            lightning=lambda learner: LightningClient(learner, client.trainer, settings.keep_optimizers),
            compile=settings.compile,
        )
        executor = ChosenExecutor(job, settings.executor, notes, processes)
        alone = executor.placement if executor.name == "lightning" else Chunks(OneClient(Learner(function, optimizer)))
        size = self.datamodule.eval_batch_size
        own = OwnSteps(client.trainer, function, reader, size)
        return ClientRuntime(
            methods=self.methods,
            model=function,
            optimizer=optimizer,
            federation=federation,
            exchanges=exchanges,
            batching=batching,
            reader=reader,
            executor=executor,
            seed=settings.seed,
            evaluator=Evaluator(function, reader, size, processes, settings.limits, own, settings.inference_mode),
            fine_tune=alone.run,
        )


@dataclass
class HostedClients:
    """The clients of one process, for a server in another process: it begins a run, exchanges data, and then runs rounds.

    After :meth:`set_up` it has all functions of a :class:`flcog.client.runtime.ClientRuntime`.
    """

    side: ClientSide
    states: ClientStore | None = None
    """The place of the clients' states between rounds, if another one than the memory of the process."""
    shares_labels: bool = False
    """Whether the server learns the label counts of the clients."""

    def __post_init__(self) -> None:
        self._own = self.side.data()
        self.begin()

    def begin(self) -> RollCall:
        self._federation, self._hosts = self._own, dict[str, DataHost]()
        self._runtime: ClientRuntime | None = None
        return self.roll_call()

    def roll_call(self) -> RollCall:
        return RollCall.of(self._federation, self.shares_labels)

    def standardise(self, mean: Tensor | None, std: Tensor | None) -> dict[int, Tensor]:
        if mean is not None and std is not None:
            self._own.preprocess.take(mean, std)  # type: ignore[attr-defined]
            return {}
        clients = self.roll_call().clients
        return dict(zip(clients, self._own.sums(clients, mean), strict=True))

    def exchange(self, method: str, step: str, messages: Mapping[int, Any]) -> dict[int, Any]:
        chosen = next(each for each in self.side.methods if each.name == method)
        assert isinstance(chosen, DataExchange)
        if method not in self._hosts:
            seed = make_rng(self.side.settings.seed, "prepare_data", method).initial_seed()
            self._hosts[method] = DataHost(self._federation, seed)
        answers = chosen.answer(step, messages, self._hosts[method])
        self._federation = self._hosts[method].federation
        return answers

    def set_up(self, population: Population, constants: Params) -> None:
        exchanges = {method: host.result() for method, host in self._hosts.items()}
        self._runtime = self.side.runtime(self._federation, exchanges, Notes())
        if self.states is not None:
            self._runtime.store = self.states
        self._runtime.set_up(population, constants)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__dict__["_runtime"], name)


def host_clients(
    settings: Settings,
    methods: Sequence[Method],
    model: nn.Module,
    datamodule: FederatedDataModule,
    processes: Processes | None = None,
    trainer: RoundsTrainer | None = None,
) -> HostedClients:
    """Host the clients of a data module for a server in another process. Call it inside ``settings.in_force()``.

    The server's process has the same configuration. It sends the model's weights and, once, by ``set_up``, the frozen weights and facts
    about all clients. Code, such as a module in Python, is not sent and must be installed on both sides.

    Args:
        settings: of the training.
        methods: in their order of action.
        model: the module that clients train. Its weights do not matter: the server sends them.
        datamodule: the clients' data; ``datamodule.only(clients)`` contains no other data.
        processes: the device on which clients train.
        trainer: as modules and callbacks see it; by default one with these settings and without callbacks.
    """
    check_separate(methods)
    processes = processes or Processes()
    trainer = trainer or RoundsTrainer(
        max_epochs=settings.rounds, precision=settings.precision, accumulate_grad_batches=settings.accumulate_grad_batches
    )
    trainer.enter(TrainerFn.FITTING, processes)
    trainer.show_data(datamodule.hooked)
    trainer.plan(*largest_client(settings, datamodule))
    client = make_client_model(settings, methods, model, datamodule, processes, trainer)
    return HostedClients(ClientSide(settings, methods, client, datamodule, processes))


def check_separate(methods: Sequence[Method]) -> None:
    """Refuse methods that need the data of all clients in one process."""
    for method in methods:
        if isinstance(method, DataExchange) and method.reads_all_data:
            raise ValueError(
                f"{method.name} reads the data of all clients before round 1, which clients in other processes keep: remove it"
            )


def largest_client(settings: Settings, datamodule: FederatedDataModule) -> tuple[int, int]:
    """The batches and steps of the client with the most samples in a round."""
    batching = _batching(settings, datamodule, datamodule.federation)
    largest = int(datamodule.federation.partition.sizes.max())
    steps = batching.num_steps(largest)
    return len(batching.layout(largest, steps)[0]), steps


def _batching(settings: Settings, datamodule: FederatedDataModule, federation: Federation) -> Batching:
    """Decide how samples become steps. If a method has merged clients, the work of a round stays the same."""
    before, now = federation.split.num_clients, federation.num_clients
    asked, clients = settings.cohort_size(before), settings.cohort_size(before, now)
    steps, epochs = settings.local_steps, settings.local_epochs
    return Batching(
        datamodule.batch_size,
        None if steps is None else steps * asked // clients,
        None if epochs is None else epochs * ((asked / before) / (clients / now)),
        datamodule.drop_last,
        settings.accumulate_grad_batches,
        shuffle=not settings.overfit_batches,
        limit=settings.limit_train_batches,
        order=None if settings.overfit_batches else federation.order,
    )
