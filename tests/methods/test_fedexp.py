"""FedExP in the form of its paper and in the form of its authors' code."""

from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
import torch.nn.functional as F
from contracts.case import Case
from harness import fit, train
from reference import fedexp
from torch import nn

from flcog.callbacks import ClipUpdate, FedExP, FedRep, PoissonSampling, SignFlip, TopK
from flcog.callbacks.fedexp import square_norm
from flcog.datamodules.quadratics import LeastSquares, Quadratics
from flcog.method import Callback, Cohort, Messages, Method, Params, Slot

pytestmark = pytest.mark.filterwarnings("error")


CASES: dict[str, Case] = {
    "FedExP": Case(FedExP(epsilon=1e-4, decay=0.5), partial(fedexp.run, epsilon=1e-4, decay=0.5), neutral=FedExP(epsilon=1e9)),
    "FedExP-paper": Case(
        FedExP(epsilon=5e-4, form="paper"),
        partial(fedexp.run, epsilon=5e-4, form="paper"),
        neutral=FedExP(epsilon=1e9, form="paper"),
    ),
}


class Iterates(Callback):
    """Records the server's model before round 1 and after each round."""

    def __init__(self) -> None:
        self.params: list[Params] = []

    def on_fit_start(self, run: Any) -> None:
        self.params.append(run.params)

    def on_round_end(self, run: Any, round: int, metrics: dict[str, float]) -> None:
        self.params.append(run.params)


def test_fedexp_is_evaluated_at_the_mean_of_the_last_two_iterates(tmp_path: Path) -> None:
    seen = Iterates()
    trainer = fit(tmp_path, FedExP(epsilon=1e-4), seen, eval_every=1)
    test = trainer.run.federation.test
    for row, before, after in zip(trainer.rows, seen.params, seen.params[1:], strict=False):
        mean = {name: (before[name] + after[name]) / 2 for name in after}
        outputs = trainer.run.model.frozen(mean, {}, lambda module, x: module(x), test.inputs.double())
        assert row["test/loss"] == pytest.approx(float(F.cross_entropy(outputs, test.targets)), rel=1e-6)


def test_fedexp_step_size_by_hand() -> None:
    # Two clients with optima b and curvatures 1 and 4 start at 0 and take one full-batch step: D_k = lr * curvature_k * optimum_k.
    data = Quadratics(num_clients=2, zeta=5.0, dimension=3, batch_size=100, seed=5)
    module = LeastSquares(nn.Linear(1, 3, bias=False), partial(torch.optim.SGD, lr=0.1))
    nn.init.zeros_(module.model.weight)
    method = FedExP(epsilon=1e-3, decay=0.5)
    trainer = train(method, module=module, data=data, rounds=2, clients_per_round=2, local_steps=1)
    x = torch.zeros(3, dtype=torch.float64)
    for row, epsilon in zip(trainer.rows, (1e-3, 5e-4), strict=True):
        updates = 0.1 * data.curvatures[:, None] * (data.client_optima - x)
        mean = updates.mean(0)
        eta = max(1.0, float(updates.square().sum(1).mean() / (2 * (mean.square().sum() + 2 * epsilon))))
        assert row["fedexp/eta"] == pytest.approx(eta, rel=1e-6)
        x = x + eta * mean
    assert trainer.rows[0]["fedexp/eta"] > 1
    torch.testing.assert_close(trainer.run.params["model.weight"].squeeze(1), x)


def test_eta_does_not_depend_on_the_sum_of_unbiased_weights() -> None:
    """Jhunjhunwala et al., equation 5, with the normalised weights of equal clients; the step is the sum over them divided by N rate."""
    data = Quadratics(num_clients=6, zeta=5.0, dimension=3, batch_size=100, seed=5)
    module = LeastSquares(nn.Linear(1, 3, bias=False), partial(torch.optim.SGD, lr=0.1))
    nn.init.zeros_(module.model.weight)
    selection = PoissonSampling(rate=0.4, unbiased="clients")
    trainer = train(selection, FedExP(epsilon=1e-3, form="paper"), module=module, data=data, rounds=8, local_steps=1)
    x, etas, totals = torch.zeros(3, dtype=torch.float64), [1.0], set()
    rows = [row for row in trainer.rows if row["clients/participating"]]
    for row, cohort in zip(rows, filter(None, trainer.recorded), strict=True):
        clients = [client.id for client in cohort]
        updates = 0.1 * data.curvatures[clients, None] * (data.client_optima[clients] - x)
        etas.append(max(1.0, float(updates.square().sum(1).mean() / (2 * (updates.mean(0).square().sum() + 1e-3)))))
        assert row["fedexp/eta"] == pytest.approx(etas[-1], rel=1e-6)
        totals.add(len(clients))
        x = x + etas[-1] * updates.sum(0) / (6 * 0.4)
    assert len(totals) > 2 and max(etas) > 1.5
    torch.testing.assert_close(trainer.run.params["model.weight"].squeeze(1), x)


class Received(Method):
    """Records the uploads as the server receives them."""

    individual_uploads = True
    seen: ClassVar[list[Any]] = []

    def server_step(self, server: Slot, params: Params, delta: Params, messages: Messages, cohort: Cohort) -> tuple[Params, Slot]:
        self.seen.append(messages.individual)
        return delta, server


@pytest.mark.parametrize(
    "other",
    [FedRep(), ClipUpdate(norm=0.3), TopK(fraction=0.2), SignFlip(fraction=0.3)],
    ids=lambda method: method.name,
)
def test_eta_is_of_the_updates_that_the_server_receives(other: Method) -> None:
    Received.seen.clear()
    for row in train(FedExP(epsilon=1e-9, form="paper"), other, Received()).rows:
        uploads, mean = Received.seen.pop(0), dict[str, torch.Tensor]()
        for upload in uploads:
            mean = {name: mean.get(name, 0) + upload.weight * value for name, value in upload.delta.items()}
        squares = sum(upload.weight * float(square_norm(upload.delta)) for upload in uploads)
        assert row["fedexp/eta"] == pytest.approx(max(1.0, squares / (2 * (float(square_norm(mean)) + 1e-9))), rel=1e-6)
        assert row["fedexp/eta"] > 1
