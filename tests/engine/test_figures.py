"""The figures of a round: the spread over the clients, and how far their updates drift apart."""

from pathlib import Path

import numpy as np
import pytest
import torch
from harness import TinyData, fit

from flcog.callbacks import FedAvgM
from flcog.method import Cohort, Messages, Method, Params, Slot
from flcog.metrics import spread


@pytest.mark.parametrize("lower_is_better", [False, True])
def test_the_spread_over_clients_is_numpys(lower_is_better: bool) -> None:
    scores = np.random.default_rng(0).random(37)
    with_gaps = torch.from_numpy(np.insert(scores, [3, 9], np.nan))
    worst = np.sort(scores)[::-1][:3] if lower_is_better else np.sort(scores)[:3]
    expected = {"mean": scores.mean(), "std": scores.std(), "worst_decile": worst.mean()}
    expected |= {f"q{q}": np.percentile(scores, q) for q in (10, 50, 90)}
    expected["weighted"] = np.average(scores, weights=np.delete(np.arange(39), [3, 10]))
    figures = spread(with_gaps, "test/client_accuracy", lower_is_better, torch.arange(39))
    assert figures == pytest.approx({f"test/client_accuracy_{name}": value for name, value in expected.items()}, rel=1e-12)
    assert spread(torch.full((3,), torch.nan), "x", lower_is_better) == {}


def test_clients_scores_are_those_of_their_own_parts(tmp_path: Path) -> None:
    trainer = fit(tmp_path, data=TinyData(client_test=0.4), eval_every=1, rounds=1)
    federation, parts = trainer.run.federation, trainer.run.federation.client_test
    assert parts is not None
    scores, right = [], []
    for k in range(parts.num_clients):
        inputs, targets = federation.load(federation.train, torch.from_numpy(parts.client(k)), torch.device("cpu"))
        outputs = torch.func.functional_call(trainer.run.model.module, trainer.run.params, (inputs.double(),))
        right.append((outputs.argmax(1) == targets).double())
        scores.append(float(right[-1].mean()))
    assert len(set(scores)) > 2
    assert trainer.history[0]["test/client_accuracy_mean"] == pytest.approx(np.mean(scores))
    assert trainer.history[0]["test/client_accuracy_q10"] == pytest.approx(np.percentile(scores, 10))
    assert trainer.history[0]["test/client_accuracy_weighted"] == pytest.approx(float(torch.cat(right).mean()), rel=1e-12)


SEEN: list[dict[int, torch.Tensor]] = []


WEIGHTS: list[dict[int, float]] = []


class Spy(Method):
    """Records the update and the weight of each client."""

    individual_uploads = True

    def server_step(self, server: Slot, params: Params, delta: Params, messages: Messages, cohort: Cohort) -> tuple[Params, Slot]:
        SEEN.append({one.client: torch.cat([v.flatten() for v in one.delta.values()]) for one in messages.individual})
        WEIGHTS.append({one.client: one.weight for one in messages.individual})
        return delta, server


@pytest.mark.parametrize("executor", ["loop", "vmap"])
def test_drift_is_the_mean_norm_and_the_mean_cosine_to_the_mean(tmp_path: Path, executor: str) -> None:
    SEEN.clear()
    WEIGHTS.clear()
    trainer = fit(tmp_path, FedAvgM(beta=0.5), Spy(), executor=executor, eval_every=1)
    assert len(SEEN) == 3
    for row, deltas, weights in zip(trainer.history, SEEN, WEIGHTS, strict=True):
        mean = sum(weights[k] * deltas[k] for k in deltas)
        norms = [float(delta.norm()) for delta in deltas.values()]
        cosines = [float(torch.nn.functional.cosine_similarity(delta, mean, dim=0)) for delta in deltas.values()]
        assert row["clients/participating"] == len(deltas) == 5
        assert row["drift/norm"] == pytest.approx(np.mean(norms), rel=1e-9)
        assert row["drift/cosine"] == pytest.approx(np.mean(cosines), rel=1e-9)
        assert 0 < row["drift/cosine"] < 1
