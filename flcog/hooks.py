"""The hook table: what an observer sees and what a method contributes.

The engine calls methods in the order they are listed. Each hook *returns* its contribution and the engine folds the contributions
by the rule written at the hook: *sum*, *chain* (each receives the previous one's result), *nested* (later methods wrap earlier
ones), *own slot* (nobody else sees it) or *exclusive* (one method at most). Nobody but the engine assigns parameters, gradients,
losses or weights.
"""

import difflib
import inspect
from collections.abc import Callable as Function
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, Protocol

import torch
from lightning.pytorch.loggers import Logger
from torch import Tensor

from flcog.apply import Apply, ModelFunction
from flcog.client import ClientModule
from flcog.core.ledger import Ledger
from flcog.core.precision import number_dtype
from flcog.core.processes import Processes
from flcog.core.randomness import make_rng
from flcog.core.types import Batch, Params, Slot
from flcog.data import Exchange, Federation
from flcog.evaluation import Evaluator
from flcog.settings import Settings


class Optimisation(NamedTuple):
    """The local optimiser as its clients run it this round (of its first parameter group)."""

    lr: float
    momentum: float
    weight_decay: float

    def effective_steps(self, num_steps: Tensor | int) -> Tensor | int | float:
        """How many plain SGD steps the accumulated gradients of ``num_steps`` momentum steps amount to (FedNova's ||a||_1).

        With momentum r: [T - r (1 - r^T) / (1 - r)] / (1 - r); T for plain SGD (Wang et al., 2020, https://arxiv.org/abs/2007.07481).
        """
        r = self.momentum
        if isinstance(num_steps, Tensor):  # under vmap: in bfloat16, to which torch takes an integer, 257 steps would be 256
            num_steps = num_steps.to(number_dtype())
        return num_steps if r == 0 else (num_steps - r * (1 - r**num_steps) / (1 - r)) / (1 - r)


class Context(NamedTuple):
    """What a method may know inside a client. Slots are *this method's*; no method sees another's.

    ``step``, ``num_steps``, ``num_samples`` and ``weight`` are numbers under the loop and 0-d tensors under vmap: compute with
    them, never branch on them.
    """

    global_params: Params
    global_buffers: Params
    buffers: Params
    server: Slot
    client: Slot
    draws: Slot
    inputs: Slot
    measured: Slot
    step: Tensor | int
    num_steps: Tensor | int
    num_samples: Tensor | int
    weight: Tensor | float
    optimisation: Optimisation


class Gradient(NamedTuple):
    """The gradient of the summed loss at some parameters, the buffers that forward pass left, and the task loss it saw."""

    values: Params
    buffers: Params
    loss: Tensor


class Upload(NamedTuple):
    """What a client hands over when it has finished.

    Args:
        delta: its change of the model, or None where it sends no weights (nor BatchNorm's statistics, then). Folded by the
            aggregation weights.
        client: its new slot, which stays with the client.
        mean: message whose weighted mean the server receives.
        sum: message whose plain sum over the cohort the server receives.
        left_out: bytes of the model that this client neither received nor sends, as its own model is a part of the global one.

    Bytes are counted once per tensor: a message that *is* the delta costs nothing more.
    """

    delta: Params | None
    client: Slot
    mean: Mapping[str, Tensor | Params] = {}
    sum: Mapping[str, Tensor | Params] = {}
    left_out: Tensor | float = 0


class ClientUpload(NamedTuple):
    """One client's upload, seen only by methods that declare ``individual_uploads``."""

    client: int
    weight: float
    delta: Params
    buffers: Params
    mean: Mapping[str, Any]
    sum: Mapping[str, Any]


class Uploads(NamedTuple):
    """A round's single uploads, and the global model from which its clients started."""

    params: Params
    buffers: Params
    clients: Sequence[ClientUpload]


class Kept(NamedTuple):
    """What a run keeps for one method, as observers may see it.

    Args:
        exchange: what it exchanged before round 1, if anything.
        uploads: what single clients sent in this round, where the method declares ``individual_uploads``.
        clients: the clients that live on this process, in their order, with what the method keeps of each.
    """

    exchange: Exchange | None
    uploads: Uploads
    clients: Iterator[tuple[int, Slot]]


class Messages(NamedTuple):
    """What the server received for one method: sums over the cohort, and single uploads where it declared that it needs them."""

    mean: Mapping[str, Any]
    sum: Mapping[str, Any]
    individual: Sequence[ClientUpload] = ()


@dataclass(frozen=True)
class ClientView:
    """One client's own view of its data, for plain-Python hooks.

    Args:
        id: its number.
        num_samples: of its training set.
        round: the round, counted from 0.
        federation: where its samples are.
        exchanges: what methods exchanged before round 1, by their names.
    """

    id: int
    num_samples: int
    round: int
    federation: Federation
    exchanges: Mapping[str, Exchange] = field(default_factory=dict)

    @property
    def num_classes(self) -> int:
        return self.federation.num_classes

    @property
    def task(self) -> str:
        return self.federation.task

    @property
    def label_counts(self) -> Tensor:
        """How many of its samples carry each label, float64 [num_classes]."""
        return self.federation.label_counts(self.id)


@dataclass(frozen=True)
class Plan:
    """How a client takes part in a round."""

    num_steps: int


class Note(NamedTuple):
    """A choice made on the user's behalf, as the run's summary shows it."""

    topic: str
    text: str


class Personal(NamedTuple):
    """A client's own model, as a method hands it over to be measured.

    Args:
        params: its parameters.
        steps: local steps of fine-tuning, on the task loss alone, that it takes before it is measured.
        own_statistics: whether BatchNorm's statistics are its own, to be taken on the client's samples; else they are the global
            model's.
    """

    params: Params
    steps: int = 0
    own_statistics: bool = False


@dataclass
class Cohort:
    """The clients of a round, as the server sees them.

    ``num_samples`` and ``weights`` are float64 whatever the run's precision, as integers' quotients would not be.
    """

    round: int
    clients: list[int]
    num_clients: int
    num_samples: Tensor
    weights: Tensor
    apply: Apply
    buffers: Params
    optimisation: Optimisation
    metrics: dict[str, float]
    seed: int

    def log(self, name: str, value: Tensor | float) -> None:
        """Add a column to this round's row."""
        self.metrics[name] = float(value)

    def rng(self, purpose: str, device: torch.device | str = "cpu") -> torch.Generator:
        """Randomness for the server's own work, keyed by seed, round and purpose."""
        return make_rng(self.seed, self.round, "server", purpose, device=device)


class Trackers(Protocol):
    """The run's trackers. Where one fails it is warned of, and the run goes on."""

    loggers: list[Logger]

    def log_setting(self, setting: dict[str, Any]) -> None:
        """Tell them what the run is, without secrets."""

    def log_figure(self, name: str, figure: Any, step: int, share: bool = True) -> None:
        """A picture to the run's directory and, if it may be shared, to every tracker that takes pictures."""

    def to_upload(self) -> list[tuple[str, str]]:
        """What to type to upload what was tracked offline, and what that does."""


class Run(Protocol):
    """A run as its observers see it. They change nothing of it but ``should_stop``."""

    should_stop: bool
    """An observer sets this to end the run after the current round."""

    @property
    def settings(self) -> Settings:
        """What the user asked of the training."""

    @property
    def description(self) -> Sequence[Note]:
        """What the run is, line by line, with the choices made on the user's behalf."""

    @property
    def directory(self) -> Path:
        """Where its files are."""

    @property
    def trackers(self) -> Trackers:
        """The run's trackers, such as W&B."""

    @property
    def processes(self) -> Processes:
        """The processes over which the clients are spread; the first one prints and writes."""

    @property
    def methods(self) -> "Sequence[Method]":
        """In the order in which they act."""

    @property
    def federation(self) -> Federation:
        """The data, after what methods exchanged before round 1."""

    @property
    def model(self) -> ModelFunction:
        """The client's model, whatever its parameters are at the moment."""

    @property
    def evaluator(self) -> Evaluator:
        """Measures models on the federation's sets."""

    @property
    def round(self) -> int:
        """Rounds done."""

    @property
    def params(self) -> Params:
        """The global model's parameters."""

    @property
    def buffers(self) -> Params:
        """Its buffers."""

    def evaluated_params(self) -> Params:
        """Where the global model is evaluated: its parameters, or what methods put in their place."""

    def kept(self, method: str) -> Kept:
        """What the run keeps for a method of this name."""

    @property
    def history(self) -> Sequence[Mapping[str, float]]:
        """One row per round: the rows of ``metrics.csv``."""

    @property
    def ledger(self) -> Ledger:
        """Bytes sent so far."""

    @property
    def state_files(self) -> Sequence[str]:
        """The files of clients' states that the last checkpoint refers to."""

    def save(self, path: Path, resumable: bool = True, pinned: Collection[str] | None = None) -> None:
        """Write a checkpoint; every process calls it.

        Args:
            path: where to.
            resumable: whether the clients' states belong to it; without them it can only be evaluated.
            pinned: files of clients' states that other checkpoints refer to. Where this is given, all that neither these nor this
                one refer to are removed.
        """

    def next_command(self, verb: str, checkpoint: Path) -> str:
        """What to type to fit, test or validate from a checkpoint of this run, or from its directory."""


class Callback:
    """Observes a run: returns nothing, changes nothing but the row of metrics, to which it may add. Called on every process."""

    def on_fit_start(self, run: Run) -> None:
        """Before the first round (or the first after a resume)."""

    def on_round_start(self, run: Run, round: int, cohort: list[int]) -> None:
        """The cohort is known, nothing is trained yet."""

    def on_evaluation_end(self, run: Run, round: int, metrics: dict[str, float]) -> None:
        """The global model was evaluated."""

    def on_round_end(self, run: Run, round: int, metrics: dict[str, float]) -> None:
        """The round's row is complete and written. Rounds count from 1 here: ``round`` rounds are done."""

    def on_fit_end(self, run: Run) -> None:
        """After the last round."""

    def on_exception(self, run: Run, exception: BaseException) -> None:
        """The run is about to die."""

    def state_dict(self) -> dict[str, Any]:
        """What a resumed run must know: tensors and primitives."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """The inverse of :meth:`state_dict`."""


GradientFunction = Function[[Params, Batch], Gradient]


@dataclass(frozen=True, kw_only=True)  # keywords, so that FedProx(0.1) is about FedProx's own argument
class Method(Callback):
    """Contributes to a run. Subclasses are frozen dataclasses: their fields are hyper-parameters, so YAML equals object.

    Hooks marked *pure* take tensors and return tensors: no ``.item()``, no Python branch on a tensor, no random stream, no I/O.
    The loop runs them on one client's tensors, vmap on many clients' at once. A helper's name starts with an underscore;
    any other public name that is no hook is taken for a misspelt one.

    Args:
        start_round: first round, counted from 0, in which the method acts.
        stop_round: first round in which it no longer acts; None for never.
    """

    start_round: int = 0
    stop_round: int | None = None

    individual_uploads: ClassVar[bool] = False
    """Needs single clients' uploads, so it cannot run under secure aggregation."""
    tasks: ClassVar[tuple[str, ...]] = ("classification", "multilabel", "regression")
    """The kinds of label the method is defined for."""
    plain_batches: ClassVar[bool] = False
    """Makes or changes inputs, or reads labels, for which inputs and targets must be one tensor each, and no dict or tuple."""
    needs_adapters: ClassVar[bool] = False
    """Trains LoRA's adapters, so that it needs a model that has some."""
    excludes: ClassVar[Mapping[str, str]] = {}
    """Methods that cannot run beside this one, by name, and why."""
    communicates: ClassVar[bool] = True
    """Whether clients and server send each other anything. Where not, no bytes of the model are counted, methods that act at the
    server are refused, and if it keeps personal models these are all there is: they are measured in the global model's place."""

    @property
    def kept_parameters(self) -> str | None:
        """Regular expression that the names of parameters contain which clients keep: their changes are not sent."""
        return None

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        known = {name for name in dir(Method) if not name.startswith("_")}
        for name, value in vars(cls).items():
            if name.startswith("_") or name in known or not inspect.isfunction(value):
                continue
            close = difflib.get_close_matches(name, HOOKS + OBSERVER_HOOKS, n=1)
            hint = f"; did you mean {close[0]!r}?" if close else f". Hooks are: {', '.join(HOOKS)}"
            raise TypeError(f"{cls.__name__} defines {name!r}, which is no hook{hint} Helpers start with an underscore.")

    def __post_init__(self) -> None:
        if self.start_round < 0 or (self.stop_round is not None and self.stop_round <= self.start_round):
            raise ValueError(
                f"{self.name}: start_round must be at least 0 and below stop_round; got {self.start_round} and {self.stop_round}"
            )

    @property
    def name(self) -> str:
        return type(self).__name__

    def overrides(self, hook: str) -> bool:
        """Whether this method contributes to ``hook``."""
        return getattr(type(self), hook) is not getattr(Method, hook)

    def active(self, round: int) -> bool:
        return self.start_round <= round and (self.stop_round is None or round < self.stop_round)

    def until(self, round: int) -> "Method | None":
        """What it is in the rounds before this one: itself where it acts in them, None where it has no part in them.

        A method that changes nothing yet but gathers what it will need is another of its class, which gathers the same: all
        arguments that do not matter until then at fixed values. Runs whose methods are the same until a round share those rounds.
        """
        if self.start_round < round or self.overrides("configure_model") or self.overrides("prepare_data"):
            return self
        return replace(self, start_round=round) if any(map(self.active, range(round))) else None

    # Before the first round -------------------------------------------------------------------------------------------------------

    def configure_model(self, model: ClientModule) -> ClientModule:
        """Extra heads or logits, drawn from torch's global streams, which the run has seeded. *Chain, once; plain Python.*"""
        return model

    def prepare_data(self, federation: Federation, rng: torch.Generator, workspace: Path | None) -> Exchange:
        """Exchanges of data before round 1. *Chain, once; plain Python.*

        What is returned comes back to the method's plain-Python hooks as ``client.exchanges[self.name]``, and to observers as
        ``run.kept(name).exchange``. Files that runs can share may be kept under ``workspace``; where it is None, nothing is to be written.
        """
        return Exchange(federation)

    def init_server(self, params: Params) -> Slot:
        """The server's state for this method. *Own slot.*"""
        return {}

    def init_client(self, params: Params, buffers: Params) -> Slot:
        """A client's state before its first round (made when it is first sampled). *Own slot.*"""
        return {}

    # Before a client trains -------------------------------------------------------------------------------------------------------

    def report(self, client: ClientView) -> Any:
        """What a client tells the server once, when it is first sampled: a number or a tensor. *Own slot; plain Python.*

        FedDisco's is how skewed its labels are. Astraea (Duan et al., 2019), which groups clients by their label counts, is next.
        """
        return None

    def plan(self, plan: Plan | None, client: ClientView, rng: torch.Generator) -> Plan | None:
        """How the client takes part: its number of steps, or None if it drops out. *Chain; plain Python.*"""
        return plan

    def weights(self, weights: Tensor, reports: Sequence[Any], cohort: Cohort) -> Tensor:
        """Aggregation weights [clients of the cohort]; the engine normalises what comes out. *Chain; plain Python.*"""
        return weights

    def broadcast(self, server: Slot) -> Slot:
        """The part of the server's state that every client of the cohort downloads. *Own slot; plain Python.*"""
        return {}

    def draw(self, rng: torch.Generator, client: ClientView) -> Slot:
        """All randomness of this client and round. *Own slot; plain Python.*"""
        return {}

    def client_inputs(self, apply: Apply, ctx: Context) -> Slot:
        """Data made for this client and round, from the model that it received. *Own slot; pure.*

        FedCOG's generated samples. Rehearsal on samples that are inverted from the received model (Yin et al., DeepInversion,
        2020) is next.
        """
        return {}

    def start(self, params: Params, ctx: Context) -> Params:
        """Where the client starts from instead of the global parameters. *Chain; pure.*

        FedRep's client puts its own head in. FedPer (Arivazhagan et al., 2019) and FedBN (Li et al., 2021), whose clients keep
        layers too, are next.
        """
        return params

    # Inside a local step ----------------------------------------------------------------------------------------------------------

    def loss(self, apply: Apply, params: Params, batch: Batch, task_loss: Tensor, ctx: Context) -> Tensor:
        """A term added to the task loss; ``(w - 1) * task_loss`` rescales it. *Sum; pure.*"""
        raise NotImplementedError

    def wrap_gradient(self, gradient: GradientFunction, ctx: Context) -> GradientFunction:
        """Another gradient function around the given one, such as one at other parameters. *Nested; pure.*"""
        return gradient

    def correct_gradient(self, gradient: Params, params: Params, ctx: Context) -> Params:
        """Control variates, clipping: what the optimiser sees instead. *Chain; pure.*"""
        return gradient

    def after_step(self, apply: Apply, params: Params, batch: Batch, ctx: Context) -> tuple[Params, Slot]:
        """What follows the optimiser's step: new parameters and the method's new client slot. *Chain / own slot; pure.*"""
        return params, ctx.client

    # After a client has trained ---------------------------------------------------------------------------------------------------

    def over_data(self, apply: Apply, params: Params, batch: Batch, ctx: Context) -> Slot:
        """Means over a batch, of which ``finish_client`` gets the mean over all of the client's samples, as ``ctx.measured``.

        Called after training with the client's final parameters; costs a pass over its data. *Own slot; pure.*

        FedWalk's loss. FedCurv's Fisher information (Shoham et al., 2019) is next.
        """
        return {}

    def finish_client(self, delta: Params, params: Params, ctx: Context) -> Upload:
        """The upload, made of the change so far, and the client's new slot. *Chain / own slot; pure.*"""
        return Upload(delta, ctx.client)

    def server_step(self, server: Slot, params: Params, delta: Params, messages: Messages, cohort: Cohort) -> tuple[Params, Slot]:
        """The change that the server applies to its ``params``, and the method's new server slot. *Chain; plain Python.*"""
        return delta, server

    def evaluate_at(self, server: Slot, params: Params) -> Params:
        """The parameters to evaluate in the place of the server's (FedExP's mean of two iterates). *Chain; plain Python.*"""
        return params

    def personal(self, params: Params, ctx: Context) -> Personal:
        """The model the client keeps for itself, measured on its own held-out part; ``params`` are the global ones.

        *Exclusive; pure.*
        """
        return Personal(params)


HOOKS = [
    name
    for name, value in vars(Method).items()
    if inspect.isfunction(value) and not name.startswith("_") and name not in ("overrides", "active", "until")
]
OBSERVER_HOOKS = [name for name, value in vars(Callback).items() if inspect.isfunction(value) and name.startswith("on_")]
EXCLUSIVE_HOOKS = ("personal",)
SERVER_HOOKS = ("report", "weights", "broadcast", "server_step")
CLIENT_HOOKS = ("client_inputs", "loss", "wrap_gradient", "correct_gradient", "after_step", "finish_client", "draw")


def check_methods(methods: Sequence[Method]) -> None:
    """Refuse lists that cannot be folded."""
    names = [method.name for method in methods]
    for name in names:
        if names.count(name) > 1:
            raise ValueError(f"{name} is listed {names.count(name)} times in callbacks: keep one of them")
    for method in methods:
        for name in names:
            if name in method.excludes:
                raise ValueError(f"{method.name} and {name} cannot be combined: {method.excludes[name]}. Remove one of them")
    for method in methods:
        for other in methods if not method.communicates else ():
            if other.individual_uploads or any(map(other.overrides, SERVER_HOOKS)):
                raise ValueError(
                    f"{method.name} and {other.name} cannot be combined: with {method.name} nothing is sent to a server, where "
                    f"{other.name} acts. Remove one of them"
                )
    for hook in EXCLUSIVE_HOOKS:
        claimants = [method.name for method in methods if method.overrides(hook)]
        if len(claimants) > 1:
            raise ValueError(f"{' and '.join(claimants)} both define {hook!r}, of which a run can have one: remove one of them")
