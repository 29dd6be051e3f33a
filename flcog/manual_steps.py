"""The loss of a module with manual optimisation at given weights: its ``training_step`` runs, and its optimisers do nothing."""

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from flcog.own_steps import call_step, logging_to


class IdleOptimizer(torch.optim.Optimizer):
    """An optimiser without parameters, which a module may step."""

    def __init__(self) -> None:
        self.param_groups: list[dict[str, Any]] = []
        self.defaults: dict[str, Any] = {}

    def zero_grad(self, set_to_none: bool = True) -> None:
        """There are no gradients."""

    def step(self, closure: Callable[[], Any] | None = None) -> Any:  # type: ignore[override]
        return closure() if closure else None

    def toggle_model(self, sync_grad: bool = True) -> AbstractContextManager[None]:
        return nullcontext()


class IdleStrategy:
    """Collects the losses of ``manual_backward``, which differentiates nothing.

    Args:
        optimizers: the number of the module's optimisers.
    """

    def __init__(self, optimizers: int) -> None:
        self._lightning_optimizers = [IdleOptimizer() for _ in range(optimizers)]
        self.losses: list[Tensor] = []

    def backward(self, loss: Tensor, *arguments: Any, **options: Any) -> None:
        self.losses.append(loss.detach())


def loss_without_steps(module: Any, batch: Any, step: int, counts: tuple[int, int]) -> Tensor:
    """The loss that ``training_step`` returns, or else the sum of the losses of ``manual_backward``.

    Args:
        module: the module, with the weights.
        batch: of the step.
        step: its number.
        counts: the numbers of the module's optimisers and schedulers.
    """
    before, strategy = module._trainer, IdleStrategy(counts[0])
    idle = SimpleNamespace(scheduler=SimpleNamespace(step=lambda *arguments: None))
    module.trainer = SimpleNamespace(
        current_epoch=getattr(before, "current_epoch", 0),
        global_step=step,
        strategy=strategy,
        optimizers=strategy._lightning_optimizers,
        lr_scheduler_configs=[idle] * counts[1],
        precision_plugin=SimpleNamespace(clip_gradients=lambda *arguments: None),
        gradient_clip_val=None,
        gradient_clip_algorithm=None,
        is_last_batch=False,
    )
    try:
        with logging_to(module, lambda *values, **options: None):
            result = call_step(module, "training_step", batch, step)
    finally:
        module.trainer = before
    loss = result.get("loss") if isinstance(result, Mapping) else result
    if isinstance(loss, Tensor):
        return loss.detach()
    if not strategy.losses:
        raise ValueError(
            f"{type(module).__name__}.training_step tells no loss, which a method of this run needs: return it, or call "
            "self.manual_backward(loss)"
        )
    return torch.stack(strategy.losses).sum()
