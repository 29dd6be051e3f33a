"""``data.client_test: reweighted`` tests clients on the whole test set, with the classes weighted as in the client's data."""

import copy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from harness import MOMENTUM, TinyData, classifier, fit, make_trainer, states_by_client, train
from torch import nn

from flcog.callbacks import Ditto, FedProx, FineTune, LocalModels
from flcog.data import Federation

pytestmark = pytest.mark.filterwarnings("error")

REWEIGHTED = {"client_test": "reweighted"}


def own_accuracy(model: nn.Module, federation: Federation, client: int) -> float:
    """The mean, over the client's samples, of the accuracy on the test samples with the same label."""
    assert federation.test is not None
    right = model(federation.test.inputs.double()).argmax(1) == federation.test.targets
    labels = federation.train.targets[federation.partition.client(client)].tolist()
    return float(np.mean([right[federation.test.targets == label].double().mean().item() for label in labels]))


def loaded(params: Any) -> nn.Module:
    model = copy.deepcopy(classifier().model).double()
    model.load_state_dict({name.removeprefix("model."): value for name, value in params.items()})
    return model


def test_the_global_model_and_dittos_own() -> None:
    data = TinyData(**REWEIGHTED)
    trainer = train(Ditto(lambda_prox=0.5), module=classifier(MOMENTUM), data=data, clients_per_round=1.0)
    federation, figures = data.federation, trainer.evaluate()
    assert sum(federation.partition.sizes) == len(federation.train) and federation.client_test is None
    of_global = [own_accuracy(loaded(trainer.run.params), federation, k) for k in range(8)]
    kept = states_by_client(trainer, "Ditto", "personal")
    of_own = [own_accuracy(loaded(kept[k]), federation, k) for k in range(8)]
    for name, values in (("client", of_global), ("personal", of_own)):
        assert figures[f"test/{name}_accuracy_mean"] == pytest.approx(np.mean(values), rel=1e-6)
        assert figures[f"test/{name}_accuracy_std"] == pytest.approx(np.std(values), rel=1e-5)
    assert np.std(of_own) > 0 and np.mean(of_own) != pytest.approx(np.mean(of_global))


def test_local_models_before_aggregation_are_those_that_are_sent(tmp_path: Path) -> None:
    """FineTune(steps=None) and LocalModels test the same models, as do Table 9 and the third panel of Figure 2 in FedCOG's paper."""
    methods, data = (FineTune(steps=None), FedProx(mu=0.5), LocalModels()), TinyData(**REWEIGHTED)
    (row,) = fit(tmp_path, *methods, data=data, rounds=1, eval_every=1, clients_per_round=1.0).history
    for figure in ("mean", "std", "q10"):
        assert row[f"test/personal_accuracy_{figure}"] == pytest.approx(row[f"local/reweighted_accuracy_{figure}"])
    assert row["test/personal_accuracy_mean"] != row["test/client_accuracy_mean"]


def test_a_checkpoint_is_tested_likewise(tmp_path: Path) -> None:
    trainer = fit(tmp_path, Ditto(), data=TinyData(**REWEIGHTED), rounds=1, eval_every=1)
    figures = make_trainer(tmp_path, Ditto()).test(classifier(), TinyData(**REWEIGHTED), str(trainer.run_dir))
    assert figures["test/personal_accuracy_mean"] == trainer.history[0]["test/personal_accuracy_mean"]
    assert torch.isfinite(torch.tensor(figures["test/client_accuracy_mean"]))
