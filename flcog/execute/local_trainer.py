"""The trainer as a module and Lightning's callbacks see it while a client trains by the faithful step."""

import inspect
from collections.abc import Callable, Sequence
from typing import Any, cast

import torch
from lightning.pytorch.core.optimizer import LightningOptimizer
from lightning.pytorch.plugins import Precision
from lightning.pytorch.profilers import PassThroughProfiler
from torch import Tensor

from flcog.client.local_hooks import LocalHooks
from flcog.client.work import ClientWork
from flcog.own_steps import ALONE
from flcog.trainer_view import TrainerView


class LocalStrategy:
    """The part of a Lightning strategy that takes the steps: backward passes and optimiser steps, each with its hooks.

    Args:
        trainer: the trainer as the hooks see it.
        optimizers: of the module.
        device: of the module.
    """

    def __init__(self, trainer: "LocalTrainer", optimizers: Sequence[torch.optim.Optimizer], device: torch.device) -> None:
        self._trainer, self.lightning_module = trainer, trainer.lightning_module
        self.optimizers, self.root_device = list(optimizers), device
        self._lightning_optimizers = [LightningOptimizer._to_lightning_optimizer(each, cast(Any, self)) for each in optimizers]
        self.precision_plugin = Precision()
        self.differentiated: list[Tensor] = []
        """The losses of this step's backward passes, of a module with manual optimisation."""

    def backward(self, loss: Tensor, optimizer: Any, *arguments: Any, **options: Any) -> None:
        """A backward pass of ``manual_backward``, with its hooks."""
        call = self._trainer.call
        call("on_before_backward", loss)
        self.lightning_module.backward(loss, *arguments, **options)
        self.differentiated.append(loss.detach())
        call("on_after_backward")

    def optimizer_step(
        self, optimizer: torch.optim.Optimizer, closure: Callable[[], Any], model: Any = None, **options: Any
    ) -> Any:
        """A step of an optimiser: the closure, the hooks before the step, and the step."""
        trainer = self._trainer

        def closure_and_hooks() -> Any:
            result = closure()
            trainer.call("on_before_optimizer_step", optimizer)
            if trainer.lightning_module.automatic_optimization:
                trainer.lightning_module.configure_gradient_clipping(
                    optimizer,
                    gradient_clip_val=trainer.gradient_clip_val,
                    gradient_clip_algorithm=trainer.gradient_clip_algorithm,
                )
            return result

        if "closure" in inspect.signature(type(optimizer).step).parameters:
            result = optimizer.step(closure=closure_and_hooks, **options)
        else:
            result = closure_and_hooks()
            optimizer.step(**options)
        if not trainer.lightning_module.automatic_optimization:
            trainer.global_step += 1
        return result

    def reduce_boolean_decision(self, decision: bool, all: bool = True) -> bool:
        """A client trains in one process, which decides alone."""
        return decision

    def broadcast(self, value: Any, src: int = 0) -> Any:
        return value

    def barrier(self, name: str | None = None) -> None:
        """A client does not wait for other processes."""


class LocalTrainer(TrainerView):
    """The attributes of ``lightning.Trainer`` while a client trains.

    An epoch is a round, and ``global_step`` is the client's local step in this round. Attributes of the whole run, such as its
    loggers, come from the run's trainer, if the run is in this process.

    Args:
        hooks: of the module, the data module and the callbacks.
        optimizers: of the module.
        device: of the module.
    """

    evaluating = False

    def __init__(self, hooks: LocalHooks, optimizers: Sequence[torch.optim.Optimizer], device: torch.device) -> None:
        super().__init__()
        self.hooks, self.datamodule, self.lr_scheduler_configs = hooks, hooks.datamodule, hooks.configured.schedulers
        self.lightning_module: Any = hooks.module
        self.model = self.lightning_module
        self.accumulate_grad_batches, self.estimated_stepping_batches = hooks.accumulate, 0
        self.current_epoch, self.global_step, self.num_training_batches, self.is_last_batch = 0, 0, 0, False
        self.gradient_clip_val: float | None = None
        self.gradient_clip_algorithm: str | None = None
        self.profiler = PassThroughProfiler()
        self.strategy = LocalStrategy(self, optimizers, device)
        self.precision_plugin = self.strategy.precision_plugin

    def begin(self, round: int, work: ClientWork) -> None:
        """Prepare for a client.

        Args:
            round: counted from 0.
            work: of the client. Schedulers of steps restart in each round, so that only its own steps count.
        """
        self.current_epoch, self.global_step = round, 0
        self.num_training_batches, self.estimated_stepping_batches = work.num_batches, work.num_steps

    def call(self, hook: str, *arguments: Any) -> Any:
        """Call a hook of the callbacks and of the module."""
        return self.hooks.call(hook, self, *arguments)

    @property
    def callbacks(self) -> Sequence[Any]:
        return self.hooks.callbacks if self.hooks.run is None else self.hooks.run.callbacks

    @property
    def optimizers(self) -> list[torch.optim.Optimizer]:
        return self.strategy.optimizers

    @property
    def max_epochs(self) -> int:
        return self.hooks.rounds

    @property
    def should_stop(self) -> bool:
        return False if self.hooks.run is None else self.hooks.run.should_stop

    @should_stop.setter
    def should_stop(self, value: bool) -> None:
        if self.hooks.run is None:
            raise ValueError(
                "a client cannot end the run (trainer.should_stop): use an observer, such as flcog.callbacks.EarlyStopping"
            )
        self.hooks.run.should_stop = value

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or name == "hooks":  # copy and pickle look for such names
            raise AttributeError(name)
        if self.hooks.run is None and name in ALONE:
            return ALONE[name]
        if self.hooks.run is None:
            raise AttributeError(
                f"a module or a callback asked the trainer for {name!r} while a client trained, where no run is known: docs/lightning.md "
                "lists the attributes that exist"
            )
        return getattr(self.hooks.run, name)
