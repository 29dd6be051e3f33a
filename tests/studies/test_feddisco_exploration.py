"""FedDisco's exploration agrees with plain torch, and runs as a program."""

import copy
import csv
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from feddisco_exploration import explore
from harness import NUM_CLASSES, ROOT, SGD, SIZES, TinyData, classifier, make_trainer, problem_of
from reference.common import average
from reference.common import train as train_locally


def read(path: Path) -> list[dict[str, float]]:
    with path.open() as file:
        return [{name: float(value) for name, value in row.items()} for row in csv.DictReader(file)]


@pytest.mark.slow
def test_models_and_their_mixtures(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    module, data = classifier(), TinyData()
    before = copy.deepcopy(module)
    trainer = make_trainer(tmp_path, clients_per_round=8)
    explore(trainer, module, data, trials=2, out=str(tmp_path / "out"))
    problem = problem_of(trainer, before, SGD)
    locals_ = {client.id: train_locally(problem, problem.model, client) for client in problem.rounds[0]}
    test = data.federation.test
    assert test is not None

    def accuracy(*clients: int, weights: tuple[float, ...] = (1.0,)) -> float:
        model = copy.deepcopy(before.model).double()
        model.load_state_dict(average([locals_[client] for client in clients], list(weights)))
        return 100 * float((model(test.inputs.double()).argmax(1) == test.targets).double().mean())

    rows = {int(row["client"]): row for row in read(tmp_path / "out" / "clients.csv")}
    assert rows.keys() == set(range(8))
    for client, row in rows.items():
        labels = next(each.labels for each in problem.rounds[0] if each.id == client).numpy()
        shares = np.bincount(labels, minlength=NUM_CLASSES) / len(labels)
        assert row["size"] == pytest.approx(SIZES[client] / sum(SIZES))
        assert row["discrepancy"] == pytest.approx(np.sqrt(((shares - 1 / NUM_CLASSES) ** 2).sum()), abs=1e-6)
        assert row["accuracy"] == pytest.approx(accuracy(client), abs=1e-4)
    mixtures = read(tmp_path / "out" / "mixtures.csv")
    pairs = {(int(row["worse"]), int(row["better"])) for row in mixtures}
    assert len(pairs) == 2 and len({client for pair in pairs for client in pair}) == 4
    for row in mixtures:
        worse, better = int(row["worse"]), int(row["better"])
        assert rows[worse]["accuracy"] <= rows[better]["accuracy"] and abs(SIZES[worse] - SIZES[better]) <= 1
        expected = accuracy(worse, better, weights=(1 - row["r"], row["r"]))
        assert row["accuracy"] == pytest.approx(expected, abs=1e-4)
    assert (tmp_path / "out" / "figure.png").stat().st_size > 5000
    assert "correlation of accuracy and discrepancy: " in capsys.readouterr().out


@pytest.mark.slow
def test_as_a_program(tmp_path: Path) -> None:
    program = [
        sys.executable,
        ROOT / "studies" / "feddisco_exploration.py",
        "-c",
        "quickstart",
        "--trainer.local_steps",
        "1",
        "--trials",
    ]
    result = subprocess.run([*program, "1"], cwd=tmp_path, capture_output=True, text=True, timeout=300)
    assert "best with r = " in result.stdout and len(read(tmp_path / "feddisco-exploration" / "mixtures.csv")) == 11
    result = subprocess.run([*program, "0"], cwd=tmp_path, capture_output=True, text=True, timeout=300)
    assert result.returncode == 2 and "trials must be at least 1; got 0" in result.stderr
