"""Trains one client in Lightning's own loops, on the module itself."""

import copy
import statistics
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor

from flcog.client.executor import Assignment, Result
from flcog.client.program import ClientTensors
from flcog.client.work import ClientWork, batches
from flcog.core.precision import number_dtype
from flcog.core.trees import load, map_once
from flcog.core.types import Batch, Params, Slot
from flcog.execute.one_client import Learner, OneClient
from flcog.functional.own_steps import LOGGED, columns_of
from flcog.lightning.loops import Batches
from flcog.lightning.optimizers import RoundOptimizers
from flcog.lightning.places import MethodPlaces
from flcog.lightning.trainer import RoundsTrainer
from flcog.method.gradient_clip import GradientClip


class LightningClient(OneClient):
    """Trains one client after another in the epoch loop of the run's ``lightning.Trainer``.

    Only parameters and buffers are replaced between clients: what a hook or a step sets on the module stays, as in Lightning.
    """

    def __init__(self, learner: Learner, trainer: RoundsTrainer, keep_optimizers: bool = False) -> None:
        super().__init__(learner)
        self._trainer, self._optimizers = trainer, RoundOptimizers(trainer, keep_optimizers)
        self._round: tuple[int, int] | None = None
        self._training: Slot = {}

    def train(self, assignment: Assignment, works: Sequence[ClientWork]) -> Result:
        program = copy.copy(assignment.program)
        program.corrections = [pair for pair in program.corrections if not isinstance(pair[1], GradientClip)]  # Lightning clips
        if self._round != (now := (assignment.seed, assignment.round)):
            self._round = now
            if self._trainer.run is None:
                self._begin_hosted_round(assignment)
            self._optimizers.begin_round()
        self.model.find_tensors()
        try:
            result = super().train(assignment._replace(program=program), works)
        finally:
            self._optimizers.end_client()
        return result._replace(training=self._training)

    def _begin_hosted_round(self, assignment: Assignment) -> None:
        """Call the hooks of rounds at a host, where no run calls them. They see the model that the server has sent."""
        received = assignment.program.received
        self.model.load(received.params | received.buffers)
        self._trainer.begin_hosted_round(assignment.round)
        self.model.keep_buffers()

    def _surroundings(self, assignment: Assignment) -> AbstractContextManager[Any]:
        return nullcontext()

    def _load(self, live: list[Tensor], received: list[Tensor]) -> None:
        for parameter, value in zip(live, received, strict=True):
            load(parameter, value)

    def _renew_optimizer(self, assignment: Assignment, work: ClientWork) -> None:
        self._steps = self._optimizers.begin_client(assignment.rates, work.training)

    def _train(self, assignment: Assignment, work: ClientWork, tensors: ClientTensors) -> tuple[Params, ClientTensors]:
        program, trainer = assignment.program, self._trainer
        if trainer.together:
            place = trainer.strategy.distributed_sampler_kwargs  # type: ignore[attr-defined]
            work = work.part(place["rank"], place["num_replicas"])
        loader = Batches(work.num_batches, lambda: map(_copied, batches(work, assignment.reader)))
        places = MethodPlaces(program, self.model, trainer, tensors, loader)
        with torch.enable_grad(), trainer.client(assignment.round, self._steps, work, places) as logged:
            try:
                trainer.fit_loop.epoch_loop.train(loader, work.num_batches)
            finally:
                done = trainer.fit_loop.epoch_loop.batch_progress.current.completed
                self._step = done * work.num_steps // work.num_batches  # which an error names
            self._training = self._optimizers.state(trainer.global_step)
        self.model.find_tensors()
        for parameter in self.model.module.parameters():
            parameter.grad = None
        # The exact mean, which equals the rates if they are equal.
        program.optimisation = program.optimisation._replace(lr=statistics.mean(places.rates))
        own = {"loss": places.total / max(places.losses, 1)} | _measured(logged)
        return {name: trainer.joined(value) for name, value in own.items()}, places.tensors._replace(num_steps=len(places.rates))


def _copied(batch: Batch) -> Batch:
    """The batch at an address of its own, as Lightning's are: some processors round by the alignment of a product's factors."""
    return map_once(lambda leaf: leaf.clone() if isinstance(leaf, Tensor) else leaf, batch)


def _measured(logged: Mapping[str, Tensor]) -> Params:
    """The logged values by column. The loss that ``training_step`` returns has the column of its own name."""
    return {
        LOGGED + column: logged[name].detach().to(number_dtype())
        for name, column in columns_of(logged).items()
        if column != "loss"
    }
