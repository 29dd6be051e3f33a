"""A user's own ``training_step``, ``validation_step`` and ``test_step``: called as Lightning does, without a ``lightning.Trainer``."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, cast

import lightning as L
from lightning.pytorch.utilities.signature_utils import is_param_in_hook_signature
from torch import Tensor, nn
from torchmetrics import Metric

from flcog.core.trees import Tree


def loss_of(module: nn.Module, result: Any) -> Tensor:
    """The loss in what a ``training_step`` has returned."""
    loss = result.get("loss") if isinstance(result, Mapping) else result
    if not isinstance(loss, Tensor) or loss.numel() != 1:
        got = f"a tensor of shape {tuple(loss.shape)}" if isinstance(loss, Tensor) else repr(result)[:80]
        raise ValueError(
            f"{type(module).__name__}.training_step must return the loss, a tensor of one number, or a dict that holds it as "
            f"'loss'; got {got}"
        )
    return loss.reshape(())


def call_step(module: Any, name: str, batch: tuple[Tree, Tree], index: int) -> Any:
    """Call a module's own ``training_step`` or ``test_step``; as in Lightning, it gets ``batch_idx`` if it has such a parameter."""
    step = getattr(module, name)
    return step(batch, index) if is_param_in_hook_signature(step, "batch_idx", min_args=2) else step(batch)


class _NoTrainer:
    """Stands where a module looks for its ``lightning.Trainer``: epochs are rounds, and everything else is an error."""

    logger, loggers, global_rank, local_rank, is_global_zero, sanity_checking = None, (), 0, 0, True, False

    def __init__(self, round: int) -> None:
        self.current_epoch = round

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):  # copy and pickle look for these, and do without
            raise AttributeError(name)
        raise ValueError(
            f"a module asked its trainer for {name}, and there is no lightning.Trainer in federated training: self.current_epoch is "
            "the round, from 0, and batch_idx the client's local step; use these, or leave it out"
        )


@contextmanager
def among_rounds(module: L.LightningModule, round: int) -> Iterator[None]:
    """Tells a module that trains itself which round it is, as ``self.current_epoch``, which otherwise would stay 0."""
    before, module.trainer = module._trainer, cast(Any, _NoTrainer(round))
    try:
        yield
    finally:
        module.trainer = before


@contextmanager
def logging_to(module: L.LightningModule, log: Callable[[str, Any], None]) -> Iterator[None]:
    """Hands what a module logs to a function: without a ``Trainer``, ``self.log`` has nowhere to go."""

    def one(name: str, value: Any, *args: Any, **kwargs: Any) -> None:
        log(name, value)

    def several(values: Mapping[str, Any], *args: Any, **kwargs: Any) -> None:
        for name, value in values.items():
            log(name, value)

    module.__dict__.update(log=one, log_dict=several)
    try:
        yield
    finally:
        del module.__dict__["log"], module.__dict__["log_dict"]


@contextmanager
def names_logged(module: L.LightningModule) -> Iterator[dict[str, None]]:
    """The names under which a module logs; values are let go of."""
    names: dict[str, None] = {}
    with logging_to(module, lambda name, value: names.setdefault(name)):
        yield names


@dataclass
class Means:
    """Means of what a module logs on a set, by the rows of each batch; a logged torchmetrics metric is computed at the end."""

    sums: dict[str, float] = field(default_factory=dict)
    metrics: dict[str, Metric] = field(default_factory=dict)

    @contextmanager
    def of(self, module: L.LightningModule, rows: int) -> Iterator[None]:
        """Take what the module logs on so many rows: of several values under one name the last, as the batch's."""
        logged: dict[str, float] = {}

        def log(name: str, value: Any) -> None:
            name = name.split("/")[-1].removeprefix("test_").removeprefix("val_")
            if isinstance(value, Metric):
                self.metrics[name] = value
            else:
                logged[name] = float(value.detach() if isinstance(value, Tensor) else value)

        with logging_to(module, log):
            yield
        for name, value in logged.items():
            self.sums[name] = self.sums.get(name, 0.0) + value * rows


def reset_metrics(module: nn.Module) -> None:
    """Forget what the torchmetrics metrics of a module have seen."""
    for layer in module.modules():
        if isinstance(layer, Metric):
            layer.reset()
