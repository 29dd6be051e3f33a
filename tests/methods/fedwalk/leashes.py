"""Small leash data sets, and the references of runs with them."""

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from harness import NUM_FEATURES, BatchNormFeatures, TinyData
from reference import fedwalk
from reference.common import Problem, State
from torch import Tensor, nn

from flcog.callbacks.fedwalk.leash import leash_rows, linear_head
from flcog.core.randomness import make_rng
from flcog.datamodules import ArrayData
from flcog.models import Dropout

WIDTH = 8
"""The number of features of the tiny networks."""


def tiny_leash(num_classes: int = 5, task: str = "classification", **options: Any) -> ArrayData:
    """26 samples in batches of 4: a shuffled pass has six steps and leaves two samples out."""
    draws = torch.Generator().manual_seed(7)
    inputs = torch.randn(26, NUM_FEATURES, generator=draws)
    scores = inputs @ torch.randn(NUM_FEATURES, num_classes, generator=draws)
    targets = {"classification": scores.argmax(1), "multilabel": (scores > 1).float(), "regression": scores[:, 0]}[task]
    return ArrayData(train_inputs=inputs, train_targets=targets, num_clients=1, batch_size=4, eval_batch_size=10, **options)


def own_head(num_outputs: int, *key: int | str) -> nn.Linear:
    """The leash's own head as the engine draws it from ``key``."""
    head = nn.Linear(WIDTH, num_outputs).double()
    head.load_state_dict(linear_head(WIDTH, num_outputs, make_rng(*key), head.weight))
    return head


def leash_batch(step: int, seed: int = 0) -> Tensor:
    """The rows of a leash step."""
    return next(leash_rows(26, 4, range(step, step + 1), seed=seed))[1]


def client_data(client: int) -> tuple[Tensor, Tensor]:
    federation = TinyData().federation
    rows = torch.from_numpy(federation.partition.client(client))
    inputs, targets = federation.load(federation.train, rows, torch.device("cpu"))
    return inputs.double(), targets


def tensors(leash: ArrayData) -> tuple[Tensor, Tensor]:
    samples = leash.federation.train
    return torch.as_tensor(samples.inputs).double(), samples.targets


def reference(leash: Callable[[], ArrayData], shared: bool = False, **arguments: Any) -> Callable[..., State]:
    """The paper's algorithm on this leash."""

    def run(problem: Problem, **more: Any) -> State:
        federation = leash().federation
        num_outputs = 1 if federation.task == "regression" else federation.num_classes
        head = None if shared else own_head(num_outputs, 0, 0, "server", "FedWalk head")
        return fedwalk.run(problem, client_data, tensors(leash()), leash_batch, head, **(arguments | more))

    return run


def pretraining(num_classes: int, shared: bool, seed: int = 0, **arguments: Any) -> Callable[[Problem], State]:
    """The reference for pre-training on the leash, which the paper compares with FedWalk."""

    def run(problem: Problem) -> State:
        head = None if shared else own_head(num_classes, seed, "leash", "head")
        return fedwalk.pretrain(problem, tensors(tiny_leash(num_classes)), partial(leash_batch, seed=seed), head, **arguments)

    return run


NEVER, ALWAYS = -math.inf, math.inf


def columns(rows: list[dict[str, float]]) -> list[dict[str, float]]:
    return [{name: value for name, value in row.items() if name.startswith("fedwalk/")} for row in rows]


class NoisyNet(BatchNormFeatures):
    """A network with both kinds of dropout, flcog's and torch's, and without BatchNorm."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(NUM_FEATURES, WIDTH), nn.Tanh(), Dropout(0.3), nn.Dropout(0.3))
