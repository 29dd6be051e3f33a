"""The leash: public data on which a server trains the global model."""

import copy
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from flcog.client_module import ClientModule
from flcog.core.checks import positive
from flcog.core.global_streams import kept_streams, seed_streams
from flcog.core.randomness import fold, fold_each, make_rng
from flcog.core.trees import Tree, floats_to
from flcog.core.types import Params
from flcog.data import FederatedDataModule
from flcog.functional.apply import Apply
from flcog.method import Method
from flcog.schedules import Cosine, Exponential, Schedule

LOSSES = {
    "classification": F.cross_entropy,
    "multilabel": lambda outputs, targets: F.binary_cross_entropy_with_logits(outputs, targets.to(outputs.dtype)),
    "regression": lambda outputs, targets: F.mse_loss(outputs.squeeze(1), targets.to(outputs.dtype)),
}


def value_at(value: float | Schedule, time: int) -> float:
    """A number, or the value of a schedule.

    >>> value_at(0.5, time=3)
    0.5
    """
    return value(time) if isinstance(value, Schedule) else value


def leash_rows(num_samples: int, batch_size: int, steps: range, seed: int) -> Iterator[tuple[int, Tensor]]:
    """Leash steps, each with its rows: shuffled passes over all samples, in full batches.

    The last incomplete batch of a pass is dropped, and each pass has another order. Rows are a function of the step and the seed,
    so a run need only remember the number of steps.

    >>> [(step, sorted(rows.tolist())) for step, rows in leash_rows(4, 4, range(7, 9), seed=0)]
    [(7, [0, 1, 2, 3]), (8, [0, 1, 2, 3])]
    """
    per_pass = max(1, num_samples // batch_size)
    for step in steps:
        shuffle, position = divmod(step, per_pass)
        if step == steps.start or position == 0:
            order = torch.randperm(num_samples, generator=make_rng(seed, "leash", shuffle))
        yield step, order[position * batch_size : (position + 1) * batch_size]


def linear_head(num_features: int, num_outputs: int, rng: torch.Generator, like: Tensor) -> Params:
    """Weights and biases uniform in +-1 / sqrt(num_features), as in ``torch.nn.Linear``; the same in every precision."""

    def uniform(*shape: int) -> Tensor:
        return ((2 * torch.rand(shape, generator=rng, dtype=torch.float64) - 1) * num_features**-0.5).to(like)

    return {"weight": uniform(num_outputs, num_features), "bias": uniform(num_outputs)}


@dataclass(frozen=True)
class Leash:
    """Public data for training: the whole training set of ``data``, in its batch sizes.

    With the head ``own``, it has a linear layer on the model's features that only the server has; with ``shared``, the model's head. In the
    mode ``train``, BatchNorm normalises by the batch of a leash step and updates its statistics, and dropout is on.
    """

    name: str
    data: FederatedDataModule
    head: Literal["own", "shared"]
    mode: Literal["eval", "train"]

    def check(self, model: ClientModule) -> None:
        """Refuse a leash that the model cannot learn, before any round."""
        data, inputs = type(self.data).__name__, self._read(torch.arange(1), next(model.parameters()))[0]
        with torch.no_grad():
            probe = copy.deepcopy(model).eval()
            outputs = probe.features(inputs) if self.head == "own" else probe(inputs)
        if self.head == "shared" and (model.task != self.data.task or outputs.shape[1] != self._num_outputs):
            raise ValueError(
                f"{self.name}: head=shared needs a leash with the federation's labels: the model has {outputs.shape[1]} outputs "
                f"for {model.task}, {data} needs {self._num_outputs} for {self.data.task}; use head=own"
            )

    def make_head(self, apply: Apply, params: Params, rng: torch.Generator) -> Params:
        """A new head of the leash's own; empty if it shares the model's."""
        if self.head == "shared":
            return {}
        like = next(iter(params.values()))
        with torch.no_grad():
            features = apply.frozen(params, apply.buffers).features(self._read(torch.arange(1), like)[0])
        return linear_head(features.shape[1], self._num_outputs, rng, like)

    def walk(self, apply: Apply, params: Params, head: Params, lr: float, steps: range, seed: int) -> tuple[Params, Params]:
        """Steps of plain SGD on the leash, numbered since the first of the run: new parameters and head."""
        like = next(iter(params.values()))
        with kept_streams(like.device):
            for step, rows in leash_rows(len(self.data.federation.train), self.data.batch_size, steps, seed):
                keys = fold_each(fold(seed, "leash", "augment", step), rows.numpy())
                inputs, targets = self._read(rows, like, keys)
                noise = fold(seed, "leash", "dropout", step) >> 1
                if self.mode == "train":
                    # flcog's dropout draws from the step's keys, torch's from the global stream.
                    apply = self._with_dropout(apply, noise, like.device)
                    seed_streams(noise, like.device)
                with torch.enable_grad():
                    params, head = ({n: v.detach().requires_grad_() for n, v in part.items()} for part in (params, head))
                    loss = self._loss(apply, params, head, inputs, targets, training=self.mode == "train")
                    leaves = [*params.values(), *head.values()]
                    gradients = iter(torch.autograd.grad(loss, leaves, allow_unused=True, materialize_grads=True))
                # torch 2.7 gives unused parameters gradients of zero that require a gradient themselves.
                params, head = (
                    {n: v.detach() - lr * next(gradients).detach() for n, v in part.items()} for part in (params, head)
                )
        return params, head

    @torch.no_grad()
    def loss(self, apply: Apply, params: Params, head: Params) -> float:
        """The mean loss on all leash data, in evaluation mode."""
        total, num_samples = 0.0, len(self.data.federation.train)
        for rows in torch.arange(num_samples).split(self.data.eval_batch_size):
            inputs, targets = self._read(rows, next(iter(params.values())))
            total += float(self._loss(apply, params, head, inputs, targets, training=False)) * len(rows)
        return total / num_samples

    def _loss(self, apply: Apply, params: Params, head: Params, inputs: Tensor, targets: Tensor, training: bool) -> Tensor:
        if self.head == "shared":
            outputs = apply(params, inputs) if training else apply.frozen(params, apply.buffers)(inputs)
            return apply.per_example_loss(outputs, targets).mean()
        features = apply.features(params, inputs) if training else apply.frozen(params, apply.buffers).features(inputs)
        features = features.to(head["weight"].dtype)
        return LOSSES[self.data.federation.task](F.linear(features, head["weight"], head["bias"]), targets)

    @property
    def _num_outputs(self) -> int:
        return 1 if self.data.federation.task == "regression" else self.data.federation.num_classes

    def _read(self, rows: Tensor, like: Tensor, keys: object = None) -> tuple[Tree, Tree]:
        federation = self.data.federation
        inputs, targets = federation.load(federation.train, rows, like.device, keys)  # type: ignore[arg-type]
        return floats_to(like.dtype, inputs), targets.to(like.device)

    def _with_dropout(self, apply: Apply, key: int, device: torch.device) -> Apply:
        """The same model, whose ``flcog.models.Dropout`` draws this step's noise."""
        keys = {name: torch.tensor(fold(key, name) >> 1, device=device) for name in apply.model.dropout_keys}
        return Apply(apply.model, apply.buffers | keys)


@dataclass(frozen=True, kw_only=True)
class OnLeash(Method):
    """Trains the global model on a leash, by plain steps whose size is ``lr``."""

    leash: FederatedDataModule = field(repr=False)
    lr: float | Schedule | None = None
    head: Literal["own", "shared"] = "own"
    mode: Literal["eval", "train"] = "eval"

    def __post_init__(self) -> None:
        super().__post_init__()
        positive(self, "lr")
        if isinstance(self.lr, Exponential | Cosine):
            raise ValueError(
                f"{self.name}: lr must be a number or a schedule of step sizes; got {type(self.lr).__name__}, which gives factors: "
                "list the step sizes in a flcog.schedules.Piecewise"
            )

    @property
    def _leash(self) -> Leash:
        return Leash(self.name, self.leash, self.head, self.mode)
