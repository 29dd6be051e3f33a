"""The base of all trainers of clients, and the oracle for all others: one client on the module's own parameters and optimiser."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from flcog.client.executor import Assignment, Result, StopRequest, longest_first
from flcog.client.program import ClientTensors, Program, differentiate_eager, differentiate_pure, with_states
from flcog.client.work import ClientWork, announce, batches
from flcog.core.global_streams import seed_streams
from flcog.core.precision import number_dtype
from flcog.core.trees import map_once, whole
from flcog.core.types import Batch, Params, Slot
from flcog.core.users_code import layer_of
from flcog.execute.optimizer import stepper
from flcog.functional.model_function import ModelFunction
from flcog.functional.own_steps import add_step, among_rounds, means
from flcog.method import Gradient
from flcog.settings import Compile


@dataclass(frozen=True)
class Learner:
    """A client's model and optimiser, and the way in which they run.

    ``layers`` wraps layers that are slow or fail when they are batched. ``seeds_streams``: whether training seeds the global random
    streams, because users' modules may draw from them. ``logs`` are the columns of the values that a module's own step logs in compiled
    steps.
    """

    model: ModelFunction
    optimizer: torch.optim.Optimizer
    layers: Callable[[], AbstractContextManager[Any]] = nullcontext
    seeds_streams: bool = True
    logs: Sequence[str] = ()

    def on_thread(self) -> "Learner":
        """A copy for a thread."""
        # Copied together, so that the copied optimiser holds the copied module's parameters.
        module, optimizer = self.model.copy_of((self.model.module, self.optimizer))
        return Learner(self.model.on_copy(module), optimizer, self.layers, False, self.logs)


class ClientTrainer(ABC):
    """Trains clients from the broadcast model to their results. A placement calls it for one group of clients after another."""

    def __init__(self, learner: Learner) -> None:
        self.learner, self.model = learner, learner.model

    @property
    def compiled(self) -> Compile:
        """Whether local steps are compiled, or captured as CUDA graphs."""
        return False

    def groups(self, works: Sequence[ClientWork]) -> list[list[ClientWork]]:
        """Split a round's clients into groups that may be stacked, each sorted in training order."""
        return [longest_first(works)]

    def announce(self, assignment: Assignment, works: Sequence[ClientWork]) -> None:  # noqa: B027 - stacked clients need none
        """Tell the reader which clients train next, so that it can load their first samples meanwhile."""

    @abstractmethod
    def train(self, assignment: Assignment, works: Sequence[ClientWork]) -> Result:
        """Train the clients. An error carries a note that names the clients and the round."""


def own_steps(model: ModelFunction, round: int) -> AbstractContextManager[None]:
    """Let a module with a ``training_step`` of its own find the round's number while a client or a chunk trains."""
    return among_rounds(model.module, round) if model.trains_itself else nullcontext()


def add_note(error: Exception, assignment: Assignment, works: Sequence[ClientWork], where: str) -> None:
    """Add a note with the clients and the round to an error of their training, and the remedy if the cause is known."""
    if str(error).startswith("Expected more than 1 value per channel when training"):
        error.add_note(
            "BatchNorm cannot train on a batch of one sample: drop_last=True, of the data module or of its loader, leaves out the last, "
            "smaller batch, or choose another batch_size"
        )
    if layer := layer_of(error, assignment.program.model.module):
        error.add_note(f"in the layer {layer}")
    clients = "client" + "s" * (len(works) > 1) + " " + ", ".join(str(work.client) for work in works)
    error.add_note(f"in {clients}, round {assignment.round + 1}{where}")


def widened(value: Tensor) -> Tensor:
    """The value in a precision for means: float32 at least."""
    return value.to(torch.promote_types(value.dtype, number_dtype()))


class OneClient(ClientTrainer):
    """Trains one client on the module's own parameters with the module's own optimiser, in plain torch."""

    def __init__(self, learner: Learner) -> None:
        super().__init__(learner)
        self.optimizer, self._step = learner.optimizer, 0

    def announce(self, assignment: Assignment, works: Sequence[ClientWork]) -> None:
        for work in works:
            announce(work, assignment.reader)

    def train(self, assignment: Assignment, works: Sequence[ClientWork]) -> Result:
        (work,), self._step, program = works, 0, assignment.program
        params, buffers = self.model.params, self.model.buffers
        anchor = [program.received.params[name] for name in params]
        try:
            with self._surroundings(assignment), torch.no_grad():
                tensors = self._begin(assignment, work)
                own, tensors = self._train(assignment, work, tensors)
                now = {name: whole(parameter.detach()) for name, parameter in params.items()}
                measured = self._measure(assignment, work, now) if program.measurers else None
                change = dict(zip(params, torch._foreach_sub(list(now.values()), anchor), strict=True))
                tensors = with_states(tensors, work.residuals())
                envelope, states, manifest = program.finish(change, now, buffers, tensors, measured)
                found = (envelope._replace(measured=own), states)
                envelope, states = self.model.owned(map_once(lambda value: torch.as_tensor(value).unsqueeze(0), found))
                return Result(works, envelope, states, manifest)
        except Exception as error:
            step = min(self._step + 1, work.num_steps)
            add_note(error, assignment, works, f", local step {step} of {work.num_steps}")
            raise

    def _surroundings(self, assignment: Assignment) -> AbstractContextManager[None]:
        """The context in which a client trains."""
        return own_steps(self.model, assignment.round)

    def _begin(self, assignment: Assignment, work: ClientWork) -> ClientTensors:
        """Load the broadcast model and a fresh optimiser, and return the client before its first step."""
        program, params, buffers = assignment.program, self.model.params, self.model.buffers
        live = list(params.values())
        self._load(live, [program.received.params[name] for name in params])
        self.model.renew_buffers()
        for name, buffer in program.received.buffers.items():
            buffers[name].copy_(buffer)
        for name, (key,) in assignment.dropout_keys(self.model.dropout_keys, [work.client]).items():
            buffers[name].fill_(int(key))
        self._renew_optimizer(assignment, work)
        if self.learner.seeds_streams:
            # Users' modules may draw from the global streams (nn.Dropout), and their draws should be repeatable too.
            seed_streams(assignment.stream_seed(work.client), live[0].device)
        tensors = ClientTensors(
            work.states(), work.draws(), [{}] * len(program.methods), work.num_steps, work.num_samples, work.weight, work.masks
        )
        _, tensors = program.start(program.received.params, buffers, tensors)
        for name, value in tensors.started.items():
            params[name].copy_(value)
        return tensors._replace(inputs=self.model.owned(tensors.inputs))

    def _load(self, live: list[Tensor], received: list[Tensor]) -> None:
        torch._foreach_copy_(live, received)

    def _renew_optimizer(self, assignment: Assignment, work: ClientWork) -> None:
        assignment.set_rates(self.optimizer)
        self.optimizer.state.clear()

    def _train(self, assignment: Assignment, work: ClientWork, tensors: ClientTensors) -> tuple[Params, ClientTensors]:
        """Take all local steps. Returns the means of the losses and logged values, and the client with its new states."""
        program, params = assignment.program, self.model.params
        live = list(params.values())
        totals, advance = {"loss": torch.zeros((), device=live[0].device, dtype=number_dtype())}, stepper(self.optimizer, live)
        for step, batch in enumerate(batches(work, assignment.reader)):
            if assignment.stop is not None and assignment.stop.is_set():
                raise StopRequest
            if self.model.trains_itself:
                program.local_step = step
            before = {name: value.clone() for name, value in params.items()} if program.followers else params
            gradient = self._gradient(program, batch, tensors, step)
            add_step(totals, gradient.loss, gradient.logged)
            if gradient.state:
                tensors = with_states(tensors, self.model.owned(gradient.state))
            advance([gradient.values[name] for name in params])
            if program.followers:
                tensors = program.follow(self._step, before, batch, tensors)
            self._step = step + 1
        return means(totals, work.num_steps), tensors

    def _measure(self, assignment: Assignment, work: ClientWork, params: Params) -> list[Slot]:
        """The means of the methods' ``over_data`` over the client's own samples."""
        parts = []
        for first in range(0, work.num_samples, rows := assignment.rows_per_pass):
            indices = work.own[first : first + rows]
            batch = Batch(*assignment.reader.train(indices, None))
            values = assignment.program.over_data(params, self.model.buffers, batch)
            share = len(indices) / work.num_samples
            parts.append(pytree.tree_map(lambda value, share=share: widened(value) * share, values))
        return pytree.tree_map(lambda *values: sum(values), *parts)

    def _gradient(self, program: Program, batch: Batch, tensors: ClientTensors, step: int) -> Gradient:
        params, buffers = self.model.params, self.model.buffers
        contexts = program.contexts(tensors, buffers, step) if program.needs_context else []
        if program.wraps:
            # The gradient is taken at other parameters too, so every pass runs functionally, from this step's buffers.
            base = program.pure_gradient(differentiate_pure if program.maps_gradient else differentiate_eager, buffers, contexts)
            result = program.gradient(base, params, batch, contexts, tensors.masks)
            for name, buffer in result.buffers.items():
                buffers[name].copy_(buffer)
            return result

        apply = program.apply(buffers, live=True)
        with torch.enable_grad():
            loss = apply.loss(params, batch)
            total = program.with_terms(apply, params, batch, loss, contexts)
            values = torch.autograd.grad(total, list(params.values()), allow_unused=True, materialize_grads=True)
        self.model.take_assigned()
        corrected = program.corrected(dict(zip(params, values, strict=True)), params, contexts, tensors.masks)
        return Gradient(corrected, buffers, loss.detach(), logged=apply.logged)
