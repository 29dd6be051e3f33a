"""Cases of the registry: FedWalk."""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from harness import NUM_CLASSES, NUM_FEATURES, TinyData
from methods import RAGGED, Case
from reference import fedwalk
from reference.common import Problem, State
from torch import Tensor, nn

from flcog.callbacks.fedwalk import FedWalk
from flcog.callbacks.leash import leash_rows, linear_head
from flcog.datamodules import ArrayData
from flcog.randomness import generator

WIDTH = 8
"""Features of the tiny networks."""


def tiny_leash(num_classes: int = 5, task: str = "classification", **options: Any) -> ArrayData:
    """26 samples, of which a step takes 4: a shuffled pass has six steps and leaves two samples out."""
    draws = torch.Generator().manual_seed(7)
    inputs = torch.randn(26, NUM_FEATURES, generator=draws)
    scores = inputs @ torch.randn(NUM_FEATURES, num_classes, generator=draws)
    targets = {"classification": scores.argmax(1), "multilabel": (scores > 1).float(), "regression": scores[:, 0]}[task]
    return ArrayData(train_inputs=inputs, train_targets=targets, num_clients=1, batch_size=4, eval_batch_size=10, **options)


def own_head(num_outputs: int, first_round: int = 0) -> nn.Linear:
    """The leash's head as the engine draws it, at seed 0, in the first round that leashes."""
    values = linear_head(WIDTH, num_outputs, generator(0, first_round, "server", "FedWalk head"), torch.zeros(()).double())
    head = nn.Linear(WIDTH, num_outputs).double()
    head.load_state_dict(values)
    return head


def leash_batch(step: int) -> Tensor:
    """The rows of a leash step at seed 0."""
    return next(leash_rows(26, 4, step, 1, seed=0))[1]


def client_data(client: int) -> tuple[Tensor, Tensor]:
    federation = TinyData().federation
    rows = torch.from_numpy(federation.partition.client(client))
    inputs, targets = federation.load(federation.train, rows, torch.device("cpu"))
    return inputs.double(), targets


def reference(leash: Callable[[], ArrayData], shared: bool = False, **arguments: Any) -> Callable[..., State]:
    """The paper's algorithm on this leash."""

    def run(problem: Problem, **more: Any) -> State:
        federation = leash().federation
        head = None if shared else own_head(1 if federation.task == "regression" else federation.num_classes)
        everything = federation.train.inputs.double(), federation.train.targets
        return fedwalk.run(problem, client_data, everything, leash_batch, head, **(arguments | more))

    return run


CASES: dict[str, Case] = {
    "FedWalk": Case(
        FedWalk(leash=tiny_leash(), tau=-1.4, num_steps=3, lr=0.4, beta=0.5),
        reference(tiny_leash, tau=-1.4, steps=3, lr=[0.4] * 3, beta=0.5),
        neutral=FedWalk(leash=tiny_leash(), tau=-float("inf")),
        options=RAGGED,
    ),
    "FedWalk-shared": Case(
        FedWalk(leash=tiny_leash(NUM_CLASSES), tau=-1.1, bias_correction=True, head="shared"),
        reference(partial(tiny_leash, NUM_CLASSES), shared=True, tau=-1.1, correction=True),
        neutral=FedWalk(leash=tiny_leash(NUM_CLASSES), tau=-float("inf"), head="shared"),
    ),
}
