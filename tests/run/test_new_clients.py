"""Clients that never train: ``trainer.test(new_clients=True)`` measures the global model and their own models on them."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from harness import SGD, SIZES, RecordingTrainer, TinyData, fit, make_trainer, without_times
from torch import Tensor

import flcog
from flcog.callbacks import Ditto, FedRep, FineTune, SystemModel
from flcog.core.types import Params
from flcog.method import Method
from flcog.models import MLP

NEW = partial(TinyData, batch_size=64, targets="regression", client_test=0.4, new_clients=3)
"""A batch is all of a client's samples, so that every local step is one of gradient descent. Errors tell models apart, unlike shares."""


class Decaying(flcog.Regressor):
    """Divides the learning rate of 0.1 by ten after each round."""

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.SGD(self.parameters(), 0.1)
        return {"optimizer": optimizer, "lr_scheduler": torch.optim.lr_scheduler.StepLR(optimizer, 1)}


def regressor(decaying: bool = False) -> flcog.Regressor:
    torch.manual_seed(0)
    return Decaying(MLP(6, (8,), 1)) if decaying else flcog.Regressor(MLP(6, (8,), 1), optimizer=SGD)


Loss = Callable[[Params], Tensor]


def descend(params: Params, loss: Loss, names: list[str], steps: int, rate: float, pull: Params | None = None) -> Params:
    """Steps of gradient descent on some parameters."""
    for _ in range(steps):
        gradient = torch.func.grad(loss)(params)
        pulled = {name: gradient[name] + (params[name] - pull[name] if pull else 0) for name in names}
        params = params | {name: params[name] - rate * pulled[name] for name in names}
    return params


def own_model(method: Method | None, start: Params, loss: Loss, rate: float) -> Params:
    """A new client's own model, in plain torch: four local steps."""
    everything, head = list(start), [name for name in start if "head" in name]
    if isinstance(method, FedRep):  # three steps on the head, and the last on the body, which the client does not keep
        return descend(start, loss, head, 3, rate)
    if isinstance(method, Ditto):
        return descend(start, loss, everything, 4, rate, pull=start)
    return descend(start, loss, everything, 3 if method == FineTune(3) else 4, rate)


@pytest.mark.filterwarnings("error:Detected call of `lr_scheduler")  # which would tell users that a rate is skipped
@pytest.mark.parametrize("decaying", [False, True])
@pytest.mark.parametrize("method", [FineTune(3), FineTune(None), FedRep(), Ditto()], ids=repr)
def test_new_clients_are_measured_without_and_with_training_of_their_own(method: Method, decaying: bool, tmp_path: Path) -> None:
    trainer, data = fit(tmp_path, method, module=regressor(decaying), data=NEW()), NEW().newcomers.federation
    rate = 0.1 ** len(trainer.history) if decaying else 0.1
    before = {name: value.clone() for name, value in trainer.run.params.items()}
    figures = trainer.test(new_clients=True, verbose=False)
    assert all(torch.equal(value, before[name]) for name, value in trainer.run.params.items())
    module, rows = trainer.run.model.module, trainer.clients
    assert data.sizes.sum() + data.client_test.sizes.sum() == sum(SIZES[-3:]) and len(rows) == 3  # type: ignore[union-attr]

    def outputs(params: Params, part: Any, client: int) -> tuple[Tensor, Tensor]:
        chosen = torch.from_numpy(part.client(client))
        predicted = torch.func.functional_call(module, params, data.train.inputs[chosen].double())
        return predicted.squeeze(-1), data.train.targets[chosen].double()

    for client in range(3):
        own = own_model(method, before, lambda p, k=client: torch.nn.functional.mse_loss(*outputs(p, data.partition, k)), rate)
        for column, params in (("client", before), ("personal", own)):
            expected = torch.nn.functional.l1_loss(*outputs(params, data.client_test, client))
            assert rows[f"test/{column}_mae"][client] == pytest.approx(float(expected), rel=1e-6)
    assert figures["test/personal_mae_mean"] == pytest.approx(rows["test/personal_mae"].mean())


def test_the_others_train_as_if_new_clients_did_not_exist(tmp_path: Path) -> None:
    few, all_but_two = (fit(tmp_path, data=data, eval_every=1) for data in (TinyData(order=range(6)), TinyData(new_clients=2)))
    assert without_times(few.history) == without_times(all_but_two.history)
    assert len(all_but_two.clients) == 6


def test_a_checkpoint_and_another_method_give_the_same_scores(tmp_path: Path) -> None:
    """A client's number among the new ones is another client's among those that trained."""
    trainer = fit(tmp_path, FedRep(), SystemModel(), module=regressor(), data=NEW())
    here = trainer.test(new_clients=True, verbose=False)
    again = make_trainer(tmp_path, FedRep(), SystemModel(), clients_per_round=5)
    there = again.test(regressor(), NEW(), str(trainer.run.directory), verbose=False, new_clients=True)
    assert there == here
    tuned = RecordingTrainer([FineTune(2)], local_steps=4, precision="64-true", logger=False)
    found = tuned.test(regressor(), NEW(), str(trainer.run.directory), verbose=False, new_clients=True)
    assert found["test/client_mae_mean"] == here["test/client_mae_mean"] and "test/personal_mae_mean" in found


def test_settings_without_new_clients_are_refused(tmp_path: Path) -> None:
    trainer = fit(tmp_path)
    with pytest.raises(ValueError, match=r"set new_clients and client_test of the data, .*; got 0 and 0\.0"):
        trainer.test(new_clients=True)
    with pytest.raises(ValueError, match=r"new_clients must lie in \[0, 8\); got 8"):
        TinyData(new_clients=8).setup()
