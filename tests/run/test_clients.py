"""A row for each client: ``trainer.clients``, ``clients.csv`` and their pictures."""

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pandas
import pytest
from harness import SGD, TinyData, adapted, fit, train

import flcog
from flcog.callbacks import (
    DPSGD,
    SCAFFOLD,
    Centralized,
    ClientDropout,
    DPFedAvg,
    EncodedBroadcast,
    FedBuff,
    FedDisco,
    FedRep,
    FineTune,
    FlexLoRA,
    Local,
    LowPrecision,
    Oort,
    PoissonSampling,
    PowerOfChoice,
    SecureAggregation,
    SystemModel,
)
from flcog.method import Method
from flcog.models import MLP

COUNTS = ["times_selected", "steps", "up_bytes", "down_bytes"]


@pytest.mark.parametrize(
    "methods",
    [
        (SCAFFOLD(),),
        (FedDisco(),),
        (FlexLoRA(ranks=(1, 2, 4)),),
        (FedRep(),),
        (Local(),),
        (PowerOfChoice(6),),
        (Oort(),),
        (EncodedBroadcast(LowPrecision()),),
        (ClientDropout(0.4),),
        (SecureAggregation(),),
        (FedBuff(), SystemModel()),
    ],
    ids=lambda methods: methods[0].name,
)
def test_the_rows_add_up_to_the_bytes_of_the_run(methods: tuple[Method, ...]) -> None:
    trainer = train(*methods, rounds=4, module=adapted() if isinstance(methods[0], FlexLoRA) else None)
    clients, ledger = trainer.clients, trainer.ledger
    assert (clients["up_bytes"].sum(), clients["down_bytes"].sum()) == (ledger.total_up, ledger.total_down)
    assert clients["steps"].sum() == trainer.run.server.steps and (clients["steps"] % 4 == 0).all()


@pytest.mark.parametrize("options", [{}, {"executor": "vmap"}, {"chunk_size": 2}], ids=["loop", "vmap", "threads"])
def test_a_row_has_the_clients_data_its_rounds_and_its_scores(tmp_path: Path, options: dict[str, Any]) -> None:
    data = TinyData(client_test=0.3, client_val=0.2)
    trainer = fit(tmp_path, FineTune(2), data=data, eval_every=2, **options)
    clients, federation = trainer.clients, data.federation
    cohorts = [trainer.sample(round) for round in range(3)]
    times = Counter(client for cohort in cohorts for client in cohort)
    assert clients["times_selected"].to_dict() == {client: times[client] for client in range(8)}
    assert clients["steps"].to_list() == [4 * times[client] for client in range(8)]
    assert federation.client_test is not None and clients["test_samples"].to_list() == federation.client_test.sizes.tolist()
    for client in range(8):
        labels = federation.train.targets[federation.partition.client(client)]
        assert clients.filter(like="labels/").loc[client].to_list() == np.bincount(labels, minlength=3).tolist()
    for score in ("test/client_accuracy", "test/personal_accuracy", "val/client_accuracy"):
        assert clients[score].mean() == pytest.approx(trainer.history[-1][f"{score}_mean"], rel=1e-12)
    last = clients.loc[cohorts[-1]]
    assert np.average(last["train/loss"], weights=last["samples"]) == pytest.approx(trainer.history[-1]["train/loss"])
    assert clients["train/loss"].isna().to_list() == [times[client] == 0 for client in range(8)]
    assert (clients["seconds"] > 0).equals(clients["steps"] > 0)
    written = pandas.read_csv(trainer.run.directory / "clients.csv", index_col="client")
    pandas.testing.assert_frame_equal(written, clients, rtol=1e-12)


def test_a_resumed_run_goes_on_counting(tmp_path: Path) -> None:
    whole = fit(tmp_path / "a", SCAFFOLD(), rounds=3).clients
    fit(tmp_path / "b", SCAFFOLD(), rounds=2)
    resumed = fit(tmp_path / "b", SCAFFOLD(), rounds=3, ckpt_path="last").clients
    pandas.testing.assert_frame_equal(resumed.drop(columns="seconds"), whole.drop(columns="seconds"))
    assert (resumed["seconds"] > 0).equals(whole["seconds"] > 0)


def test_a_test_of_a_checkpoint_has_its_rows(tmp_path: Path) -> None:
    trainer = fit(tmp_path, data=TinyData(client_test=0.3), eval_every=3)
    after_training = trainer.clients
    first = fit(tmp_path / "first", data=TinyData(client_test=0.3), rounds=1, eval_every=1)
    figures = trainer.test(trainer.model, TinyData(client_test=0.3), ckpt_path=str(first.run.directory), verbose=False)
    assert trainer.clients["test/client_accuracy"].mean() == pytest.approx(figures["test/client_accuracy_mean"])
    pandas.testing.assert_frame_equal(trainer.clients[COUNTS], first.clients[COUNTS])
    assert not trainer.clients[COUNTS].equals(after_training[COUNTS])


def test_clients_that_test_a_pool_have_scores_alone(tmp_path: Path) -> None:
    clients = fit(tmp_path, Centralized(), data=TinyData(client_test=0.3), eval_every=1).clients
    assert list(clients) == ["test_samples", "test/client_accuracy"] and len(clients) == 8


def test_simulated_seconds_are_the_clocks(tmp_path: Path) -> None:
    trainer = fit(tmp_path, SystemModel(), clients_per_round=1, rounds=2)
    assert trainer.clients["simulated_seconds"].sum() == pytest.approx(trainer.history[-1]["time/simulated"])
    assert "seconds" not in trainer.clients


def test_private_runs_withhold_what_has_no_noise(tmp_path: Path) -> None:
    data = TinyData(client_test=0.2)
    private = fit(
        tmp_path, DPFedAvg(clip=0.5, noise_multiplier=2.0), PoissonSampling(rate=0.5), data=data, eval_every=1, rounds=1
    )
    assert list(private.clients) == [] and not (private.run.directory / "clients.csv").exists()
    with pytest.raises(ValueError, match="a private method withholds all figures of single clients"):
        private.plot("clients")
    assert private.test(private.model, data, verbose=False).keys() == {"test/accuracy", "test/loss"}
    of_samples = fit(tmp_path, DPSGD(delta=0.01), data=data, eval_every=1, rounds=1)
    assert list(of_samples.clients) == ["samples", "test_samples", *COUNTS, "seconds"]


# Pictures -------------------------------------------------------------------------------------------------------------------------


def test_the_picture_of_clients_has_their_scores_by_size_and_in_order(tmp_path: Path) -> None:
    trainer = fit(tmp_path, FineTune(2), data=TinyData(client_test=0.3), eval_every=1)
    by_size, in_order, by_round, selected = trainer.plot("clients").axes
    for scatter, name in zip(by_size.collections, ("test/client_accuracy", "test/personal_accuracy"), strict=True):
        assert scatter.get_offsets().tolist() == trainer.clients[["samples", name]].to_numpy().tolist()
    heights = [bar.get_height() for bar in in_order.patches]
    assert heights[:8] == sorted(trainer.clients["test/client_accuracy"])
    assert list(by_round.get_lines()[1].get_ydata()) == [row["test/personal_accuracy_q50"] for row in trainer.history]
    counts = trainer.clients["times_selected"].value_counts()
    assert [bar.get_height() for bar in selected.patches] == [counts.get(times, 0) for times in range(4)][: len(selected.patches)]


def test_runs_are_compared_in_one_figure(tmp_path: Path) -> None:
    runs = [fit(tmp_path / str(steps), FineTune(steps), eval_every=1, local_steps=steps) for steps in (1, 2)]
    (axes,) = flcog.plot([runs[0], runs[1].run_dir], "train/loss").axes
    for line, run in zip(axes.get_lines(), runs, strict=True):
        assert line.get_ydata() == pytest.approx([row["train/loss"] for row in run.history])
    with pytest.raises(ValueError, match=r"no run has the column test/F1; they have .*test/accuracy"):
        flcog.plot(runs, "test/accuracy", "test/F1")


def test_a_confusion_matrix_counts_the_predictions_for_each_class(tmp_path: Path) -> None:
    trainer = fit(tmp_path)
    found, counts = trainer.predict(), np.zeros((3, 3))
    np.add.at(counts, (found["target"].numpy(), found["prediction"].numpy()), 1)
    (axes,) = trainer.plot("confusion").axes
    assert axes.images[0].get_array().tolist() == np.rint(100 * counts / counts.sum(1, keepdims=True)).tolist()
    numbers = flcog.Regressor(MLP(6, (8,), 1), optimizer=SGD)
    with pytest.raises(ValueError, match=r"a confusion matrix needs a flcog\.Classifier"):
        fit(tmp_path, module=numbers, data=TinyData(targets="regression")).plot("confusion")
