"""Cases of the registry: FedCOG and LocalModels."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import torch
from contracts.cases import MOMENTUM, RAGGED, Case
from harness import TinyData
from reference import fedavg, fedcog
from reference.common import Problem, State
from torch import Tensor

import flcog
from flcog.callbacks.fedcog.fedcog import FedCOG
from flcog.callbacks.observers.local_models import LocalModels
from flcog.core.randomness import generator
from flcog.hooks import ClientView

TINY = FedCOG(num_samples=10, steps=4, lr=0.1, lambda_dis=2.0, lambda_kd=0.7, batch_size=4)
"""Few samples, but weights that leave no term out of sight."""


def draws_of(method: FedCOG, data: flcog.FederatedDataModule) -> Callable[[int, int], tuple[Tensor, Tensor]]:
    """The noise and labels that a run of seed 0 in float64 draws."""

    def draws(round: int, client: int) -> tuple[Tensor, Tensor]:
        precision = torch.get_default_dtype()
        torch.set_default_dtype(torch.float64)
        view = ClientView(client, len(data.federation.partition.client(client)), round, data.federation)
        drawn = method.draw(generator(0, round, client, "draw", "FedCOG"), view)
        torch.set_default_dtype(precision)
        return drawn["noise"], drawn["labels"]

    return draws


def run_reference(problem: Problem, method: FedCOG, data: flcog.FederatedDataModule) -> State:
    """The reference with a method's settings and a run's draws; a method without inputs gets none."""
    distils = method.num_samples > 0
    method = method if distils else replace(method, num_samples=1)
    names = ("steps", "lambda_dis", "lambda_kd", "lr", "batch_size", "betas", "divergence")
    options = {name: getattr(method, name) for name in names}
    return fedcog.run(
        problem, draws_of(method, data), start=method.start_round, hard=method.hard_labels, distils=distils, **options
    )


def case(method: FedCOG, **options: object) -> Case:
    neutral = replace(method, lambda_kd=0.0)
    reference = partial(_run, method=method)
    return Case(method, reference, neutral, random=True, **options)  # type: ignore[arg-type]


def _run(problem: Problem, method: FedCOG) -> State:
    return run_reference(problem, method, TinyData())


CASES: dict[str, Case] = {
    "FedCOG": case(TINY),
    "FedCOG-balance": case(
        replace(TINY, targets="complementary", lambda_kd="balance", divergence="code"), optimizer=MOMENTUM, options=RAGGED
    ),
}

LIKE_FEDAVG: dict[str, Case] = {"LocalModels": Case(LocalModels(), fedavg.run)}
