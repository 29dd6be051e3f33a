"""Cases of the registry: FedWalk and LeashPretraining."""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from contracts.cases import RAGGED, Case
from harness import NUM_CLASSES, NUM_FEATURES, TinyData, classifier
from reference import fedwalk
from reference.common import Problem, State
from torch import Tensor, nn

import flcog
from flcog.callbacks.fedwalk.fedwalk import FedWalk
from flcog.callbacks.fedwalk.leash import leash_rows, linear_head
from flcog.callbacks.fedwalk.leash_pretraining import LeashPretraining
from flcog.core.randomness import generator
from flcog.datamodules import ArrayData
from flcog.schedules import Piecewise

WIDTH = 8
"""Features of the tiny networks."""


def tiny_leash(num_classes: int = 5, task: str = "classification", **options: Any) -> ArrayData:
    """26 samples, of which a step takes 4: a shuffled pass has six steps and leaves two samples out."""
    draws = torch.Generator().manual_seed(7)
    inputs = torch.randn(26, NUM_FEATURES, generator=draws)
    scores = inputs @ torch.randn(NUM_FEATURES, num_classes, generator=draws)
    targets = {"classification": scores.argmax(1), "multilabel": (scores > 1).float(), "regression": scores[:, 0]}[task]
    return ArrayData(train_inputs=inputs, train_targets=targets, num_clients=1, batch_size=4, eval_batch_size=10, **options)


def own_head(num_outputs: int, *key: int | str) -> nn.Linear:
    """The leash's own head as the engine draws it from ``key``."""
    head = nn.Linear(WIDTH, num_outputs).double()
    head.load_state_dict(linear_head(WIDTH, num_outputs, generator(*key), head.weight))
    return head


def leash_batch(step: int, seed: int = 0) -> Tensor:
    """The rows of a leash step."""
    return next(leash_rows(26, 4, step, 1, seed=seed))[1]


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
    """The paper's comparison arm."""

    def run(problem: Problem) -> State:
        head = None if shared else own_head(num_classes, seed, "leash", "head")
        return fedwalk.pretrain(problem, tensors(tiny_leash(num_classes)), partial(leash_batch, seed=seed), head, **arguments)

    return run


def double_classifier(*arguments: Any) -> flcog.ClientModule:
    """Pre-training is in the precision in which the module comes."""
    return classifier(*arguments).double()


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
    "LeashPretraining": Case(
        LeashPretraining(leash=tiny_leash(), num_steps=7, lr=Piecewise([0.3, 0.1], [3]), seed=0),
        pretraining(5, shared=False, lr=[0.3] * 3 + [0.1] * 4),
        module=double_classifier,
    ),
}
