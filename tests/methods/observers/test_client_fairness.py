"""The variance across clients of FedDisco's Table 12."""

from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from harness import TinyData, classifier, fit

import flcog
from flcog.callbacks import ClientFairness, FineTune
from flcog.models import MLP


def test_variance_across_clients(tmp_path: Path) -> None:
    data, module = TinyData(client_test=0.3), classifier()
    trainer = fit(tmp_path, ClientFairness(), FineTune(steps=2), module=module, data=data, eval_every=1, rounds=2)
    parts, row = data.federation.client_test, trainer.history[-1]
    assert parts is not None
    scores = trainer.run.evaluator.on_clients(trainer.run.params, trainer.run.buffers, parts).numpy()
    percent = 100 * scores[~np.isnan(scores)]
    assert row["test/client_accuracy_percent_variance"] == pytest.approx(np.var(percent), rel=1e-9)
    assert row["test/client_accuracy_jain"] == pytest.approx(percent.sum() ** 2 / (len(percent) * np.square(percent).sum()))
    assert row["test/personal_accuracy_percent_variance"] == pytest.approx((100 * row["test/personal_accuracy_std"]) ** 2)
    assert not any("variance_variance" in name for name in row)


def test_errors_keep_their_unit(tmp_path: Path) -> None:
    data = TinyData(targets="regression", client_test=0.3)
    module = flcog.Regressor(MLP(6, (8,), 1), optimizer=partial(torch.optim.SGD, lr=0.01))
    row = fit(tmp_path, ClientFairness(), module=module, data=data, eval_every=1, rounds=1).history[0]
    assert row["test/client_mae_variance"] == pytest.approx(row["test/client_mae_std"] ** 2)
