"""Trains one client as ``lightning.Trainer`` would, with all hooks of Lightning in their order."""

import copy
import statistics
from collections.abc import Sequence
from typing import Any

import torch
from torch.utils import _pytree as pytree

from flcog.client.executor import Assignment, Result, StopRequest
from flcog.client.local_hooks import LocalHooks
from flcog.client.optimizers import each_optimizer
from flcog.client.program import ClientTensors, Program, with_states
from flcog.client.work import ClientWork, batches
from flcog.core.precision import number_dtype
from flcog.core.types import Batch, Params, changed
from flcog.execute.faithful_step import FaithfulStep, Place
from flcog.execute.local_schedulers import LocalSchedulers
from flcog.execute.local_trainer import LocalTrainer
from flcog.execute.one_client import OneClient
from flcog.execute.trainer import Learner
from flcog.method.gradient_clip import GradientClip
from flcog.own_steps import logging_to
from flcog.step_log import add_step, means


class FaithfulClient(OneClient):
    """Trains one client with Lightning's order of hooks, among which methods contribute at their places.

    A step of a client::

        on_before_batch_transfer, transfer_batch_to_device, on_after_batch_transfer
        on_train_batch_start                              -1 ends the client's local training
        optimizer_step
            training_step                                 methods' losses are added to its loss
            on_before_zero_grad, optimizer_zero_grad
            on_before_backward, backward, on_after_backward
                                                          methods wrap and correct the gradient
            on_before_optimizer_step, configure_gradient_clipping
            (the optimiser steps)
        lr_scheduler_step                                 of schedulers with the interval step
                                                          methods' after_step
        on_train_batch_end

    A module with manual optimisation calls its optimisers in ``training_step``. A module that
    :class:`OneClient` can train, too, gets the same results from both, bit for bit, if the loss depends on all parameters. Others have no
    gradient here, so that weight decay passes over them.

    If gradients are accumulated, each batch has these hooks, but only the first of a step removes gradients, and only the last calls
    ``optimizer_step``, corrects the gradient and is followed by the rest.

    Args:
        learner: the model and its optimisers.
        hooks: of the module, the data module and the callbacks.
    """

    def __init__(self, learner: Learner, hooks: LocalHooks) -> None:
        super().__init__(learner)
        device, optimizers = next(iter(learner.model.params.values())).device, each_optimizer(learner.optimizer)
        manual = not learner.model.module.automatic_optimization  # such a module advances its schedulers itself
        schedulers = [config for config in hooks.configured.schedulers if manual or config.interval == "step"]
        self._hooks, self._schedulers = hooks, LocalSchedulers(optimizers, schedulers, hooks.configured.rates)
        self._trainer = LocalTrainer(hooks, optimizers, device)

    def train(self, assignment: Assignment, works: Sequence[ClientWork]) -> Result:
        log, module = self.model.log, self.model.module
        assignment = assignment._replace(program=self._own_program(assignment.program))
        if self.model.trains_itself:
            return super().train(assignment, works)
        log.begin_client()
        with logging_to(module, log.take):  # hooks of a client module may log, too
            return super().train(assignment, works)

    def _own_program(self, program: Program) -> Program:
        """The client side of the round for one client, whose steps have their own learning rates.

        If the module clips gradients, ``configure_gradient_clipping`` receives the values of the trainer's clipping, which is left out.
        """
        program = copy.copy(program)
        if self._hooks.clips:
            for _, method in program.corrections:
                if isinstance(method, GradientClip):
                    self._trainer.gradient_clip_val, self._trainer.gradient_clip_algorithm = method.max_value, method.algorithm
            program.corrections = [pair for pair in program.corrections if not isinstance(pair[1], GradientClip)]
        return program

    def _renew_optimizer(self, assignment: Assignment) -> None:
        self._schedulers.begin(assignment.rates)

    def _train(self, assignment: Assignment, work: ClientWork, tensors: ClientTensors) -> tuple[Params, ClientTensors]:
        trainer, params = self._trainer, self.model.params
        trainer.begin(assignment.round, work)
        log, totals = self.model.log, {"loss": torch.zeros((), device=trainer.strategy.root_device, dtype=number_dtype())}
        losses, rates, parts, begins, counts = 0, list[float](), list[Batch](), True, list[Any]()
        with trainer.visible_to(trainer.lightning_module), self._hooks.of_batches.show(trainer):
            for number, read in enumerate(batches(work, assignment.reader)):
                if assignment.stop is not None and assignment.stop.is_set():
                    raise StopRequest
                counts = self._schedulers.counts
                place = Place(number, len(rates), first=begins, last=work.ends is None or bool(work.ends[number]))
                self._step = place.step
                with log.of_a_step() as by_hooks:
                    step, tensors = self._one_step(assignment.program, place, parts := [*parts, read], tensors)
                if step is None:
                    break
                if begins := place.last:
                    rates.append(step.rate or 0.0)
                    parts = []
                zero = torch.zeros_like(totals["loss"])
                add_step(totals, zero if step.loss is None else step.loss, step.logged | by_hooks)
                if step.loss is not None:
                    self.model.log.compare(step.loss, step.logged | by_hooks, returned=not step.sums_losses)
                    losses += 1
                self._step += place.last
        for parameter in params.values():
            parameter.grad = None
        if not rates:
            raise ValueError(
                f"{type(self.model.module).__name__}.on_train_batch_start returned -1 before the end of the client's first step: return it "
                "after a step at the earliest, or leave the client out of the round, by a method whose plan returns None"
            )
        if not self.model.module.automatic_optimization:
            self._schedulers.check_last_step(counts, type(self.model.module).__name__)
        program = assignment.program
        # The exact mean, which equals the rates if they are equal.
        program.optimisation = program.optimisation._replace(lr=statistics.mean(rates))
        return means(totals, max(losses, 1)), tensors._replace(num_steps=len(rates))

    def _one_step(
        self, program: Program, place: Place, parts: list[Batch], tensors: ClientTensors
    ) -> tuple[FaithfulStep | None, ClientTensors]:
        """Take a step, or a part of it. Returns it, or None if the module ends its training, and the client with its new states.

        Args:
            program: the client side of the round.
            place: of the batch among the client's batches.
            parts: the batches of the step up to this one, which is replaced by the batch after its hooks, or removed if it has no loss.
            tensors: the client's.
        """
        trainer, number, params, read = self._trainer, place.number, self.model.params, parts[-1]
        trainer.is_last_batch = number + 1 == trainer.num_training_batches
        with torch.enable_grad():
            given = self._hooks.of_batches(self.model.module, read.given, trainer.strategy.root_device)
            batch = parts[-1] = Batch(*changed(given, read.targets), read.mask)
            skips = trainer.call("on_train_batch_start", given, number) == -1
        if skips:
            return None, tensors
        last_number = program.local_step
        if self.model.trains_itself:
            program.local_step = number
        follows = program.followers and place.last
        before = {name: value.clone() for name, value in params.items()} if follows else params
        step, manual = FaithfulStep(program, self.model, trainer, batch, place), not self.model.module.automatic_optimization
        if not manual:
            step.take(tensors)
            if step.gradient is not None and step.gradient.state:
                tensors = with_states(tensors, self._owned(step.gradient.state))
            if step.loss is None:  # The module has skipped this batch. The step may have others.
                program.local_step = last_number
                parts.pop()
            if place.last:
                self._schedulers.advance(number, trainer.lightning_module.lr_scheduler_step)
        else:
            step.take_manually(given)
        if follows and parts and step.rate is not None:
            tensors = self._follow(program, before, joined(parts), tensors)
        with torch.enable_grad():
            trainer.call("on_train_batch_end", step.outputs, given, number)
        self._keep_parameters()
        self.model.take_assigned()
        return step, tensors

    def _keep_parameters(self) -> None:
        """Take over the values of parameters that a hook has replaced by new objects, which no optimiser would step."""
        for name, parameter in list(self.model.module.named_parameters()):
            own = self.model.params.get(name)
            if own is not None and own is not parameter:
                own.copy_(parameter)
                owner, _, attribute = name.rpartition(".")
                setattr(self.model.module.get_submodule(owner), attribute, own)


def joined(parts: Sequence[Batch]) -> Batch:
    """The samples of a step whose gradients come from several batches, as one batch."""
    if len(parts) == 1:
        return parts[0]
    inputs, targets = pytree.tree_map(lambda *leaves: torch.cat(leaves), *((part.inputs, part.targets) for part in parts))
    return Batch(inputs, targets)


def one_client(learner: Learner, hooks: LocalHooks) -> OneClient:
    """The trainer of single clients: the faithful one if a hook needs it, else the pure one, which is faster."""
    return FaithfulClient(learner, hooks) if hooks.reason else OneClient(learner)
