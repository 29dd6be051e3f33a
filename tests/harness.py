"""A tiny federation, and a trainer that records every batch, so that a reference can train on exactly the engine's batches."""

import os
import signal
from collections.abc import Callable, Generator, Iterable, Sequence
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any

import jsonargparse
import numpy as np
import pytest
import torch
from reference.common import Client, Problem, State
from torch import Tensor, nn
from torch.utils import _pytree as pytree

import flcog
from flcog.client.executor import Assignment, Executor, Result
from flcog.client.work import ClientWork, batches
from flcog.core import signals
from flcog.core.types import Slot
from flcog.data import Federation, Partition, Partitioner, Samples, Splits, Task
from flcog.datamodules import Natural
from flcog.method import Callback, Method, Params
from flcog.models import MLP, Dropout, FeatureModel, LoRA
from flcog.models.lora import adapters
from flcog.run.client_states import SavedClientStates
from flcog.settings import can_compile
from flcog.wire.ledger import Ledger

TESTS = Path(__file__).parent
ROOT = TESTS.parent

ACCELERATOR = os.environ.get("FLCOG_TEST_ACCELERATOR", "cpu")
"""Where the trainers of the tests train. ``FLCOG_TEST_ACCELERATOR=cuda pytest -k against_the_paper tests/contracts`` compares the methods
with their papers on a GPU. Tests that combine a run's tensors with their own, which are on the CPU, fail there."""

SIZES = (6, 12, 10, 16, 7, 11, 4, 14)
NUM_FEATURES, NUM_CLASSES = 6, 3
TINY_LABELS = [14, 15, 51]
"""How often each class occurs in the tiny training set."""

SGD = partial(torch.optim.SGD, lr=0.1)
MOMENTUM = partial(torch.optim.SGD, lr=0.05, momentum=0.9, weight_decay=1e-3)

RAGGED = {"local_epochs": 2}
"""Clients with different numbers of steps."""


@dataclass(frozen=True)
class Blocks(Partitioner):
    """Client k owns block ``order[k]`` of the samples; a block may have several owners."""

    order: tuple[int, ...]

    def __call__(self, samples: Samples, num_clients: int, seed: int) -> Partition:
        ends = np.cumsum(SIZES)
        return Partition.from_clients([np.arange(ends[k] - SIZES[k], ends[k]) for k in self.order])


class TinyData(flcog.FederatedDataModule):
    """Noisy clusters in blocks of ``SIZES`` samples. Each block has its own distribution of labels.

    Args:
        batch_size: samples per step.
        order: the block that each client owns.
        targets: the task: ``classification``, ``multilabel`` or ``regression``.
    """

    num_classes = NUM_CLASSES

    def __init__(
        self,
        batch_size: int = 4,
        order: Sequence[int] = tuple(range(len(SIZES))),
        targets: Task = "classification",
        **options: Any,
    ) -> None:
        super().__init__(len(order), Blocks(tuple(order)), batch_size, **options)
        self.task = targets

    def load(self) -> Splits:
        rng = np.random.default_rng(0)
        shares = rng.dirichlet(np.full(NUM_CLASSES, 0.5), len(SIZES))
        labels = np.concatenate([rng.choice(NUM_CLASSES, size, p=p) for size, p in zip(SIZES, shares, strict=True)])
        train, test = self._samples(labels, rng), self._samples(np.arange(30) % NUM_CLASSES, rng)
        return Splits(train, test)

    def _samples(self, labels: np.ndarray, rng: np.random.Generator) -> Samples:
        centres = np.random.default_rng(1).normal(size=(NUM_CLASSES, NUM_FEATURES))
        inputs = torch.from_numpy(centres[labels] + rng.normal(size=(len(labels), NUM_FEATURES))).float()
        targets = torch.from_numpy(labels)
        if self.task == "multilabel":
            targets = (nn.functional.one_hot(targets, NUM_CLASSES) + (inputs[:, :NUM_CLASSES] > 1)).clamp(max=1).float()
        elif self.task == "regression":
            targets = targets.float() + inputs[:, 0]
        return Samples(inputs, targets)


ODD_BATCHES = partial(TinyData, batch_size=5)
"""With ``local_epochs``, clients whose passes end in batches of 1, 2 and 4 rows: padded under vmap, and one without variance."""


class Clusters(flcog.FederatedDataModule):
    """Three well separated classes on six clients.

    Client k lacks class k % 3. If ``how`` is "opposed", clients have all classes, and the labels 0 and 1 are swapped at clients with odd k.
    """

    num_classes = NUM_CLASSES

    def __init__(self, how: str = "skewed", **options: Any) -> None:
        super().__init__(6, Natural(), 8, **options)
        self.how = how

    def load(self) -> Splits:
        rng = torch.Generator().manual_seed(0)
        labels, users = torch.randint(NUM_CLASSES, (300,), generator=rng), torch.arange(300) % 6
        inputs = 3 * torch.eye(NUM_CLASSES, 6)[labels] + torch.randn(300, 6, generator=rng)
        train, test = torch.arange(300) < 240, torch.arange(300) >= 240
        seen = labels.clone()
        if self.how == "opposed":
            seen = torch.where((users % 2 == 1) & (labels < 2), 1 - labels, labels)
        else:
            train = train & (users % NUM_CLASSES != labels)
        return Splits(Samples(inputs[train], seen[train], users[train].numpy()), Samples(inputs[test], labels[test]))


class BatchNormMLP(nn.Sequential):
    """A network with buffers that change in every forward pass."""

    def __init__(self) -> None:
        # The gradient of a bias before the normalisation would be mere rounding error, which Adam would amplify.
        super().__init__(nn.Linear(NUM_FEATURES, 8, bias=False), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, NUM_CLASSES))


class BatchNormFeatures(FeatureModel):
    """A network whose features differ between training and evaluation mode, and between models with equal parameters."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(NUM_FEATURES, 8, bias=False), nn.BatchNorm1d(8), nn.Tanh())
        self.num_features = 8
        self.head = nn.Linear(8, NUM_CLASSES)

    def features(self, x: Tensor) -> Tensor:
        return self.body(x)


def dropout_network() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 8), nn.ReLU(), Dropout(0.5), nn.Linear(8, 3))


def steep_network() -> nn.Module:
    """A network with gradients longer than 10, which the published code of FedDyn and FedDC clips."""
    network = MLP(NUM_FEATURES, (8,), NUM_CLASSES)
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.mul_(20)
    return network


def classifier(
    optimizer: Callable[..., torch.optim.Optimizer] = SGD, network: Callable[[], nn.Module] | None = None
) -> flcog.Classifier:
    """A client module, with the same initial weights for the same arguments."""
    torch.manual_seed(0)
    return flcog.Classifier(network() if network else MLP(NUM_FEATURES, (8,), NUM_CLASSES), optimizer=optimizer)


def adapted(optimizer: Callable[..., torch.optim.Optimizer] = SGD, rank: int = 4) -> flcog.Classifier:
    """The same module with LoRA adapters, which change its outputs from the start."""
    module = classifier(optimizer, lambda: LoRA(MLP(NUM_FEATURES, (8,), NUM_CLASSES), rank, alpha=2))
    for _, adapter in adapters(module):
        nn.init.normal_(adapter.B, std=0.1)
    return module


class Recording:
    """An executor that records its assignments and passes them to another executor."""

    def __init__(self, executor: Executor, assignments: list[Assignment]) -> None:
        self.executor, self._assignments = executor, assignments

    @property
    def name(self) -> str:
        return self.executor.name

    @property
    def clients_at_once(self) -> int:
        return self.executor.clients_at_once

    @property
    def compiled(self) -> Any:
        return self.executor.compiled

    def run(self, assignment: Assignment) -> Generator[Result, None, None]:
        self._assignments.append(assignment)
        yield from self.executor.run(assignment)


class Recorder(Callback):
    """Replaces a run's executor by a :class:`Recording` of it."""

    def __init__(self) -> None:
        self.assignments: list[Assignment] = []

    def on_fit_start(self, run: Any) -> None:
        run.engine.clients.executor = Recording(run.engine.clients.executor, self.assignments)


class RecordingTrainer(flcog.FederatedTrainer):
    """Records the clients of each round with their training batches, and every model that an evaluation measures on given rows."""

    def __init__(self, callbacks: Sequence[Callback] = (), **options: Any) -> None:
        self.recorder = Recorder()
        super().__init__(callbacks=[self.recorder, *callbacks], **options)
        self.measured: list[tuple[Params, np.ndarray]] = []
        self.rows: list[dict[str, float]] = []

    def prepare(self, *arguments: Any, **options: Any) -> None:
        super().prepare(*arguments, **options)
        self.recorder.on_fit_start(self.run)

    @property
    def recorded(self) -> list[list[Client]]:
        """The clients of each round with their batches."""
        return [[self._part(assignment, work) for work in assignment.works] for assignment in self.recorder.assignments]

    def _part(self, assignment: Assignment, work: ClientWork) -> Client:
        federation = self.run.federation
        labels = federation.train.targets[federation.partition.client(work.client)].cpu()
        return Client(work.client, labels, [on_cpu((batch.inputs, batch.targets)) for batch in batches(work, assignment.reader)])

    @property
    def works(self) -> list[list[ClientWork]]:
        """The work of the clients in each round."""
        return [list(assignment.works) for assignment in self.recorder.assignments]

    def evaluate(self) -> dict[str, float]:
        """Evaluate now and return the figures."""
        original = self.run.evaluator.on_rows

        def on_rows(params: Params, buffers: Params, rows: np.ndarray, *own: Any) -> float:
            self.measured.append(({name: value.clone() for name, value in (params | buffers).items()}, rows))
            return original(params, buffers, rows, *own)

        self.run.evaluator.on_rows = on_rows  # type: ignore[method-assign]
        return super().evaluate()

    @property
    def params(self) -> Params:
        return self.run.params

    @property
    def buffers(self) -> Params:
        return self.run.buffers

    @property
    def servers(self) -> dict[str, Slot]:
        return self.run.server.servers

    @property
    def round(self) -> int:
        return self.run.round

    @property
    def states(self) -> SavedClientStates:
        return self.run.clients

    @property
    def federation(self) -> Federation:
        return self.run.federation

    @property
    def ledger(self) -> Ledger:
        return self.run.ledger

    @property
    def executor(self) -> Any:
        return self.run.engine.clients.executor.executor

    @property
    def notes(self) -> list[str]:
        return [f"{note.topic}: {note.text}" for note in self.run.engine.notes]

    @property
    def state(self) -> State:
        """The global model, with the parameter names of the network itself."""
        return {name.removeprefix("model."): value.cpu() for name, value in (self.run.params | self.run.buffers).items()}


def on_cpu(tree: Any) -> Any:
    """The same tree with all its tensors on the CPU."""
    return pytree.tree_map_only(Tensor, Tensor.cpu, tree)


def make_trainer(root: Path | None, *callbacks: Callback, **options: Any) -> RecordingTrainer:
    """A trainer for three rounds in float64 with five of the eight clients each, unless ``options`` say otherwise."""
    if options.get("local_epochs") is None:
        options.setdefault("local_steps", 4)
    defaults: dict[str, Any] = {"rounds": 3, "clients_per_round": 5, "executor": "loop", "eval_every": 0, "precision": "64-true"}
    fixed: dict[str, Any] = {"callbacks": list(callbacks), "logger": False, "default_root_dir": str(root)}
    return RecordingTrainer(**({"accelerator": ACCELERATOR} | defaults | options | fixed))


def train(
    *callbacks: Callback,
    module: flcog.ClientModule | None = None,
    data: flcog.FederatedDataModule | None = None,
    **options: Any,
) -> RecordingTrainer:
    """Train the rounds of a run. Evaluating and writing, which take most of the time of such a small run, are left out."""
    trainer = make_trainer(None, *callbacks, **options)
    trainer.prepare(module or classifier(), data or TinyData())
    while trainer.run.round < trainer.settings.rounds:
        trainer.rows.append(trainer.train_round())
    return trainer


def fit(
    root: Path,
    *callbacks: Callback,
    module: flcog.ClientModule | None = None,
    data: flcog.FederatedDataModule | None = None,
    ckpt_path: str | None = None,
    **options: Any,
) -> RecordingTrainer:
    """Train a whole run with its directory under ``root``."""
    trainer = make_trainer(root, *callbacks, **options)
    trainer.fit(module or classifier(), data or TinyData(), ckpt_path)
    trainer.rows = trainer.history
    return trainer


def problem_of(trainer: RecordingTrainer, module: flcog.ClientModule, optimizer: Callable[..., torch.optim.Optimizer]) -> Problem:
    """The problem that makes the reference repeat the run of ``trainer``. ``module`` has the initial weights of the run."""
    lr = optimizer([torch.zeros(1, requires_grad=True)]).param_groups[0]["lr"]
    return Problem(module.model.double(), trainer.recorded, trainer.run.federation.num_clients, optimizer, lr)


def states_by_client(trainer: RecordingTrainer, method: str, key: str) -> dict[int, Params]:
    """The state that each client keeps, with the parameter names of the network itself."""
    return {
        client: {name.removeprefix("model."): value for name, value in kept[method][key].items()}
        for client, kept in trainer.run.clients.by_client.items()
    }


def distance(a: Params, b: Params) -> float:
    """The largest difference between the entries of two models."""
    assert a.keys() == b.keys()
    return max(float((a[name].cpu() - b[name].cpu()).abs().max()) for name in a)


def assert_close(a: Params, b: Params, rtol: float = 1e-9) -> None:
    """Two models are equal up to rounding. Their entries are of order one, so ``rtol`` is also the absolute tolerance."""
    assert a.keys() == b.keys()
    for name in a:
        torch.testing.assert_close(
            a[name].cpu(), b[name].cpu(), rtol=rtol, atol=rtol, msg=lambda text, name=name: f"{name}: {text}"
        )


def making(**hooks: Callable[..., Any]) -> Method:
    """A method called Mine with these hooks, which are functions without ``self``."""
    functions = {name: lambda self, *arguments, hook=hook: hook(*arguments) for name, hook in hooks.items()}
    made: Method = dataclass(frozen=True)(type("Mine", (Method,), functions))()
    return made


class Spoils(Method):
    """Client 3 sends NaN."""

    def init_client(self, params: flcog.Params, buffers: flcog.Params, client: flcog.ClientView) -> flcog.Slot:
        return {"bad": torch.tensor(torch.nan if client.id == 3 else 0.0)}

    def finish_client(self, delta: flcog.Params, params: flcog.Params, ctx: flcog.Context) -> flcog.Upload:
        return flcog.Upload({name: value + ctx.state["bad"] for name, value in delta.items()}, ctx.state)


needs_compiler = pytest.mark.skipif(not can_compile(), reason=f"torch {torch.__version__} compiles nothing here")


needs_newest_messages = pytest.mark.skipif(
    not hasattr(jsonargparse.ArgumentParser, "instantiate"),
    reason="earlier versions of jsonargparse word their messages differently",
)


def instantiated(parser: jsonargparse.ArgumentParser, config: jsonargparse.Namespace) -> jsonargparse.Namespace:
    """Make the objects of a config; jsonargparse renamed its method in 4.49."""
    return getattr(parser, "instantiate" if hasattr(parser, "instantiate") else "instantiate_classes")(config)


@cache
def _trainers_parser() -> jsonargparse.ArgumentParser:
    parser = jsonargparse.ArgumentParser()
    parser.add_argument("--config", action="config")
    parser.add_class_arguments(flcog.FederatedTrainer, "trainer", instantiate=False, sub_configs=True)
    return parser


def trainer_options(*words: str) -> jsonargparse.Namespace:
    """The trainer's options on a command line, with methods as objects."""
    return instantiated(_trainers_parser(), _trainers_parser().parse_args(words)).trainer


def few_quickly(values: Iterable[Any], few: int = 2) -> list[Any]:
    """Parameters of a test: the first few values run in the quick suite, and the others are slow tests."""
    rows = (value if isinstance(value, tuple) else (value,) for value in values)
    return [pytest.param(*row, marks=[pytest.mark.slow] * (place >= few)) for place, row in enumerate(rows)]


def heed_signals() -> None:
    """Restore the default handlers of ignored signals, because shells and ``nohup`` ignore some for commands in the background."""
    for name in signals.NAMES:
        if signal.getsignal(getattr(signal, name)) is signal.SIG_IGN:
            signal.signal(getattr(signal, name), signal.default_int_handler if name == "SIGINT" else signal.SIG_DFL)


def without_times(rows: list[dict[str, float]]) -> list[dict[str, float]]:
    """A run's metrics without the times, which differ in every run."""
    return [{name: value for name, value in row.items() if not name.startswith("time/")} for row in rows]
