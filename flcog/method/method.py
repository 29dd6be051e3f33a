"""A federated method: the hooks through which it contributes to a run.

The engine calls methods in the order of their list. Each hook *returns* a contribution, and the engine combines the contributions of
all methods by the rule that the hook's docstring names: *sum*, *chain* (each method receives the result of the method before it),
*nested* (later methods wrap earlier ones), *own slot* (other methods do not see it) or *exclusive* (at most one method). Only the engine
assigns parameters, gradients, losses or weights.
"""

import inspect
from abc import ABC
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, TypeVar

import torch
from torch import Tensor

from flcog.client_module import ClientModule
from flcog.core.checks import check_options
from flcog.core.text import guess
from flcog.core.types import Batch, Params, Slot
from flcog.data import LABELLED
from flcog.functional.apply import Apply
from flcog.method.client_view import ClientView
from flcog.method.cohort import Cohort, Messages
from flcog.method.context import BatchFunction, ChangeFunction, Context, FirstContact, GradientFunction, Upload
from flcog.method.observer import Callback
from flcog.wire.envelope import Envelope

M = TypeVar("M", bound="Method")


@dataclass(frozen=True, kw_only=True)  # keywords, so that FedProx(0.1) is about FedProx's own argument
class Method(Callback, ABC):
    """Contributes to a run. A subclass is a frozen dataclass whose fields are hyper-parameters, so YAML and Python can both describe it.

    Hooks change no tensor that they are given in place: ``value.mul_(0.9)`` would reach the global model or the next client, and
    ``value * 0.9`` does not. *Pure* hooks take and return tensors. They call no ``.item()``, do not branch on tensors, draw no random
    numbers, and do no I/O. The loop runs them on the tensors of one client, and vmap on the tensors of many clients together. Names of
    helpers start with an underscore: flcog refuses other functions that are not hooks as misspelt.

    Args:
        start_round: the method acts from this round on, counted from 0.
        stop_round: the method stops before this round. None means never.

    Attributes:
        individual_uploads: whether the method reads the uploads of single clients as ``messages.individual``, which secure aggregation
            would hide.
        tasks: the tasks that the method supports. Data without targets are unlabelled.
        plain_batches: whether it needs inputs and targets that are single tensors, because it makes or changes inputs, or reads labels.
        maps_gradient: whether it calls the given gradient function under ``torch.func.vmap`` in ``wrap_gradient``, and refuses
            Lightning's hooks of a step and data sets with a ``collate_fn``.
        needs_adapters: whether it trains LoRA's adapters, and needs a model with adapters. Its ``configure_model`` also gets other
            modules than a ``ClientModule``.
        excludes: the names of classes that cannot run together with this method, each with the reason.
        over_data: a pure function whose mean over the client's samples ``finish_client`` receives as ``ctx.data.mean``, such as
            FedWalk's loss. The engine calls it after training with the client's final parameters and each batch of a pass over its
            data, and expects means over the batch; ``apply.received`` are the parameters and buffers of the received model. Declare it as
            ``over_data = staticmethod(function)``.
        of_change: a pure function of the change of the model that a client sends, such as FedExP's squared norm. Its weighted mean over
            the clients is ``messages.mean["of_change"]``. The server computes it again from the change that it decodes, unless it reads
            sums alone. Declare it as ``of_change = staticmethod(function)``.
        communicates: whether clients and server communicate. If not, the ledger counts no bytes of the model, methods that act at the
            server are refused, and personal models, if the method keeps them, are evaluated instead of the global model.
        is_private: whether it promises differential privacy.
        phase: the word with which the progress bar names the work of ``start``.
    """

    start_round: int = 0
    stop_round: int | None = None

    individual_uploads: ClassVar[bool] = False
    tasks: ClassVar[tuple[str, ...]] = (*LABELLED, "unlabelled")
    plain_batches: ClassVar[bool] = False
    maps_gradient: ClassVar[bool] = False
    needs_adapters: ClassVar[bool] = False
    excludes: ClassVar[Mapping[str, str]] = {}
    over_data: ClassVar[BatchFunction | None] = None
    of_change: ClassVar[ChangeFunction | None] = None
    communicates: ClassVar[bool] = True
    is_private: ClassVar[bool] = False
    phase: ClassVar[str] = "preparing"

    def __init_subclass__(cls, protocol: bool = False, **kwargs: Any) -> None:
        """Refuse misspelt hooks.

        Args:
            protocol: whether the class declares new hooks for its subclasses.
        """
        super().__init_subclass__(**kwargs)
        if protocol:
            return
        known = {name for base in cls.__mro__[1:] for name in dir(base) if not name.startswith("_")}
        for name, value in vars(cls).items():
            if name.startswith("_") or not inspect.isfunction(value):
                continue
            if name in known:
                check_arguments(cls.__name__, value, getattr(super(cls, cls), name))
                continue
            hint = guess(name, HOOKS + OBSERVER_HOOKS) or f" Hooks are: {', '.join(HOOKS)}; flcog.method has classes with others."
            raise TypeError(f"{cls.__name__} defines {name!r}, which is no hook.{hint} Helpers start with an underscore.")

    def __post_init__(self) -> None:
        check_options(self)
        if self.start_round < 0 or (self.stop_round is not None and self.stop_round <= self.start_round):
            raise ValueError(
                f"{self.name}: start_round must be at least 0 and below stop_round; got {self.start_round} and {self.stop_round}"
            )

    def overrides(self, hook: str) -> bool:
        """Whether this method defines the hook."""
        return getattr(type(self), hook, None) is not getattr(Method, hook, None)

    @property
    def public_noise(self) -> str:
        """The change of options that draws private noise from the system's entropy, if it follows the run's seed; empty otherwise.

        Between institutions everybody knows the seed, so that deployments refuse such noise."""
        return ""

    def active(self, round: int) -> bool:
        return self.start_round <= round and (self.stop_round is None or round < self.stop_round)

    # Before the first round -------------------------------------------------------------------------------------------------------

    def configure_model(self, model: ClientModule) -> ClientModule:
        """The model with extra layers or outputs. The run seeds the global random streams. *Chain, once; plain Python.*"""
        return model

    def init_server(self, params: Params) -> Slot:
        """The method's state at the server before the first round. *Own slot.*"""
        return {}

    def init_client(self, params: Params, buffers: Params, client: ClientView) -> Slot | FirstContact:
        """A client's state before its first round, or a :class:`FirstContact` with a message to the server. *Own slot; plain Python.*

        Called when the client first takes part in a round, with the global model of that round. The message reaches ``weights``, and
        the server keeps it: FedDisco's clients send how skewed their labels are. The hook must be a function of its arguments, and
        the state must have the same structure for every client.
        """
        return {}

    # Before a client trains -------------------------------------------------------------------------------------------------------

    def weights(self, weights: Tensor, messages: Sequence[Any], cohort: Cohort) -> Tensor:
        """The aggregation weights [clients of the cohort], which the engine divides by their sum. *Chain; plain Python.*

        ``messages`` are the clients' first-contact messages to this method, None for a client that sent none.
        """
        return weights

    def broadcast(self, server: Slot) -> Slot:
        """The part of the server's state that every client of the cohort downloads. *Own slot; plain Python.*

        It is sent and counted in every round, whether it has changed or not, because a client may have missed the round before.
        """
        return {}

    def draw(self, rng: torch.Generator, client: ClientView) -> Slot:
        """The method's random numbers for this client and round. *Own slot; plain Python.*"""
        return {}

    def start(self, apply: Apply, params: Params, ctx: Context) -> tuple[Params, Slot]:
        """The parameters before the client's first step, and data that the method makes for its later hooks. *Chain / own slot; pure.*

        Called once in each round of a client. FedRep puts the client's own head into the parameters. FedCOG generates samples, which
        its ``loss`` reads as ``ctx.inputs``. ``apply`` is the model in training mode.
        """
        return params, {}

    # Inside a local step ----------------------------------------------------------------------------------------------------------

    def loss(self, apply: Apply, params: Params, batch: Batch, task_loss: Tensor, ctx: Context) -> Tensor:
        """A term that is added to the task loss. To rescale the task loss, return ``(w - 1) * task_loss``. *Sum; pure.*"""
        return torch.zeros_like(task_loss)

    def wrap_gradient(self, gradient: GradientFunction, ctx: Context) -> GradientFunction:
        """A new gradient function that calls the given one, for example at other parameters. *Nested / own slot; pure.*

        ``return result._replace(state=...)`` in that function also sets the method's new state of the client.
        """
        return gradient

    def correct_gradient(self, gradient: Params, params: Params, ctx: Context) -> Params:
        """A corrected gradient, which the optimiser receives: SCAFFOLD adds control variates. *Chain; pure.*"""
        return gradient

    def after_step(self, apply: Apply, params: Params, before: Params, batch: Batch, ctx: Context) -> tuple[Params, Slot]:
        """New parameters and the method's new state, after each step of the optimiser. *Chain / own slot; pure.*

        ``before`` are the parameters before the optimiser's step.
        """
        return params, ctx.state

    # After a client has trained ---------------------------------------------------------------------------------------------------

    def finish_client(self, delta: Params, params: Params, ctx: Context) -> Upload:
        """The client's upload and the method's new state. ``delta`` is the result of earlier methods. *Chain / own slot; pure.*"""
        return Upload(delta, ctx.state)

    def server_step(
        self, server: Slot, params: Params, delta: Params, messages: Messages, cohort: Cohort
    ) -> tuple[Params, Slot] | tuple[Params, Slot, Params]:
        """The change that the server applies to its ``params``, and the method's new server state. *Chain; plain Python.*

        A method that also changes the model's buffers, ``cohort.buffers``, returns the new buffers as a third value.
        """
        return delta, server

    def evaluate_at(self, server: Slot, params: Params) -> Params:
        """Parameters to evaluate instead of the server's. FedExP averages its last two models. *Chain; plain Python.*"""
        return params


HOOKS = [
    name
    for name, value in vars(Method).items()
    if inspect.isfunction(value) and not name.startswith("_") and name not in ("overrides", "active")
]
OBSERVER_HOOKS = [name for name, value in vars(Callback).items() if inspect.isfunction(value) and name.startswith("on_")]
SERVER_HOOKS = ("weights", "broadcast", "server_step")
CLIENT_HOOKS = ("start", "loss", "wrap_gradient", "correct_gradient", "after_step", "finish_client", "draw")


def check_arguments(owner: str, hook: Callable[..., Any], base: Callable[..., Any]) -> None:
    """Refuse a hook whose arguments differ from the base class."""
    names = list(inspect.signature(base).parameters)
    try:
        inspect.signature(hook).bind(*names)
    except TypeError:
        written = ", ".join(inspect.signature(hook).parameters)
        raise TypeError(
            f"{owner}.{base.__name__}({written}) must take these arguments: {base.__name__}({', '.join(names)})"
        ) from None


def with_measures(envelope: Envelope, methods: Sequence[Method]) -> Envelope:
    """The envelope with each method's ``of_change`` of the change of the model in it."""
    found = {
        method.name: method.of_change(envelope.delta) for method in methods if envelope.delta and method.of_change is not None
    }
    mean = {name: {**envelope.mean.get(name, {}), "of_change": value} for name, value in found.items()}
    return (
        envelope._replace(mean={**envelope.mean, **mean}, sum={name: {} for name in found} | dict(envelope.sum))
        if found
        else envelope
    )


def method_of(methods: Sequence[object], kind: type[M]) -> M | None:
    """The method of this kind among some methods, if there is one."""
    return next((method for method in methods if isinstance(method, kind)), None)
