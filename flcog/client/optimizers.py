"""The optimisers and schedulers that a module's ``configure_optimizers`` returns, in any of Lightning's forms."""

import inspect
from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Any, NamedTuple

import lightning as L
import torch
from lightning.pytorch.utilities.types import LRSchedulerConfig
from torch.optim.lr_scheduler import ReduceLROnPlateau

from flcog.client.lightning_hooks import written_hooks


class OptimizerConfiguration(NamedTuple):
    """The optimisers and the learning rate schedulers of a client's training.

    Args:
        optimizer: the only optimiser, or a :class:`SeveralOptimizers`.
        schedulers: the schedulers, with their intervals, frequencies and monitors.
        rates: the learning rates of the groups, which schedules of rounds and of steps multiply by their factors. Where a scheduler of
            steps begins at 0, no factor could be found from its rate, and this is the rate that it scales.
    """

    optimizer: torch.optim.Optimizer
    schedulers: Sequence[LRSchedulerConfig]
    rates: Sequence[float]


class SeveralOptimizers(torch.optim.Optimizer):
    """The optimisers of a module with manual optimisation as one list of groups. The module steps each of them.

    Args:
        optimizers: in the order of ``configure_optimizers``.
    """

    def __init__(self, optimizers: Sequence[torch.optim.Optimizer]) -> None:
        self.optimizers = list(optimizers)
        self.defaults: dict[str, Any] = {}
        self.param_groups = [group for optimizer in optimizers for group in optimizer.param_groups]

    def __repr__(self) -> str:
        return f"SeveralOptimizers({', '.join(map(repr, self.optimizers))})"


def each_optimizer(optimizer: torch.optim.Optimizer) -> list[torch.optim.Optimizer]:
    """The optimiser, or each of several."""
    return optimizer.optimizers if isinstance(optimizer, SeveralOptimizers) else [optimizer]


def configure(model: L.LightningModule) -> OptimizerConfiguration:
    """Call ``configure_optimizers`` and check its result."""
    optimizers, schedulers = _parts(model, model.configure_optimizers())
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            group["params"] = [parameter for parameter in group["params"] if parameter.requires_grad]
    configs = [_config(model, scheduler) for scheduler in schedulers]
    for config in configs:
        if config.scheduler.optimizer not in optimizers:
            raise ValueError(
                f"{_where(model)} returns a {type(config.scheduler).__name__} of another optimiser: give it an optimiser that is "
                "returned with it"
            )
    optimizer = optimizers[0] if len(optimizers) == 1 else SeveralOptimizers(optimizers)
    scaled = configs if model.automatic_optimization else []
    rates = [_rate(group, number, scaled) for number, group in enumerate(optimizer.param_groups)]
    return OptimizerConfiguration(optimizer, configs, rates)


def configure_to_evaluate(model: L.LightningModule) -> OptimizerConfiguration:
    """The configuration for an evaluation, which takes no step: a plain one if ``configure_optimizers`` needs ``setup("fit")``."""
    try:
        return configure(model)
    except Exception:
        parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
        if "setup" not in written_hooks(model) or not parameters:
            raise
        return OptimizerConfiguration(torch.optim.SGD(parameters, lr=0.01), [], [0.01])


def _parts(model: L.LightningModule, given: Any) -> tuple[list[torch.optim.Optimizer], list[Any]]:
    """The optimisers and schedulers in a result of ``configure_optimizers``."""
    schedulers: list[Any] = []
    if isinstance(given, tuple | list) and len(given) == 2 and not isinstance(given[1], torch.optim.Optimizer | Mapping):
        optimizers, schedulers = _listed(given[0]), _listed(given[1])
    elif isinstance(given, Mapping):
        optimizers, schedulers = [given.get("optimizer")], _schedulers_of(given)
    elif isinstance(given, tuple | list) and given and all(isinstance(part, Mapping) for part in given):
        optimizers = [part.get("optimizer") for part in given]
        schedulers = [scheduler for part in given for scheduler in _schedulers_of(part)]
    else:
        optimizers = _listed(given)
    odd = [optimizer for optimizer in optimizers if not isinstance(optimizer, torch.optim.Optimizer)]
    if odd or not optimizers or (len(optimizers) > 1 and model.automatic_optimization):
        got = type(odd[0]).__name__ if odd else f"{len(optimizers)} optimisers"
        more = "; several optimisers need automatic_optimization = False" if len(optimizers) > 1 else ""
        raise ValueError(f"{_where(model)} must return one optimiser; got {got}{more}")
    return optimizers, schedulers


def _listed(value: Any) -> list[Any]:
    return list(value) if isinstance(value, tuple | list) else [value]


def _schedulers_of(given: Mapping[str, Any]) -> list[Any]:
    """The scheduler of one dictionary, with its monitor."""
    scheduler = given.get("lr_scheduler")
    if scheduler is None:
        return []
    own = dict(scheduler) if isinstance(scheduler, Mapping) else {"scheduler": scheduler}
    return [{"monitor": given.get("monitor")} | own]


def _config(model: L.LightningModule, given: Any) -> LRSchedulerConfig:
    """A scheduler with its settings."""
    settings = dict(given) if isinstance(given, Mapping) else {"scheduler": given}
    known = [field.name for field in fields(LRSchedulerConfig)]
    unknown = settings.keys() - set(known)
    scheduler = settings.get("scheduler")
    if unknown or not hasattr(scheduler, "step") or not hasattr(scheduler, "optimizer"):
        got = f"the keys {', '.join(sorted(unknown))}" if unknown else f"{type(scheduler).__name__} as scheduler"
        raise ValueError(f"{_where(model)} returns {got}: a scheduler's dictionary has the keys {', '.join(known)}")
    config = LRSchedulerConfig(**{"reduce_on_plateau": isinstance(scheduler, ReduceLROnPlateau)} | settings)
    if config.interval not in ("epoch", "step"):
        raise ValueError(f"{_where(model)}: a scheduler's interval is epoch or step; got {config.interval!r}")
    if config.reduce_on_plateau and model.automatic_optimization and config.interval == "step":
        raise ValueError(
            f"{_where(model)}: {type(scheduler).__name__} follows a figure of whole rounds: set its interval to epoch, which is a round"
        )
    if config.reduce_on_plateau and model.automatic_optimization and config.monitor is None:
        raise ValueError(
            f"{_where(model)}: {type(scheduler).__name__} follows a metric: name it beside the scheduler, as in "
            '"monitor": "val_loss"'
        )
    return config


def _rate(group: Mapping[str, Any], number: int, schedulers: Sequence[LRSchedulerConfig]) -> float:
    """The rate of a group that the schedulers scale. It is the group's own, unless the first of them that begins at 0 counts steps."""
    rate: float = group["lr"]
    if rate == 0:  # a scheduler of another package's may not tell its rates
        from_zero = [config for config in schedulers if getattr(config.scheduler, "_last_lr", {number: 0})[number] == 0]
        rate = group.get("initial_lr", rate) if from_zero and from_zero[0].interval == "step" else rate
    return rate


def _where(model: L.LightningModule) -> str:
    return f"{type(model).__name__}.configure_optimizers"


def asks_again(optimizer: torch.optim.Optimizer) -> bool:
    """Whether the optimiser computes the loss itself, perhaps several times in a step, as ``LBFGS`` does."""
    closure = inspect.signature(type(optimizer).step).parameters.get("closure")
    return closure is not None and closure.default is inspect.Parameter.empty


def describe_optimizer(optimizer: torch.optim.Optimizer) -> str:
    """Describe an optimiser by its settings that differ from torch's defaults: ``SGD(lr=0.05, momentum=0.9)``."""
    if isinstance(optimizer, SeveralOptimizers):
        return ", ".join(map(describe_optimizer, optimizer.optimizers))
    usual = inspect.signature(type(optimizer)).parameters
    options = {
        name: value
        for name, value in optimizer.defaults.items()
        if name == "lr" or (name in usual and usual[name].default != value)
    }
    groups = f", {len(optimizer.param_groups)} groups of parameters" if len(optimizer.param_groups) > 1 else ""
    return f"{type(optimizer).__name__}({', '.join(f'{name}={value}' for name, value in options.items())}){groups}"
