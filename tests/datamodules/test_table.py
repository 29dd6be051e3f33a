"""Table: rows of CSV and Parquet files and of data frames give the same as arrays with the same values."""

from pathlib import Path
from typing import Any

import numpy as np
import pandas
import pytest
import torch
from harness import distance

from datamodules.common import one_line
from datamodules.test_torch_dataset import COMMON, FEATURES, LABELS, trained
from flcog.datamodules import IID, ArrayData, Table

OWNERS = np.array(["ann", "bob", "cem"])[np.arange(60) % 3]


def frame(**columns: Any) -> pandas.DataFrame:
    own = {f"x{i}": FEATURES[:, i] for i in range(6)} | {"label": LABELS, "owner": OWNERS}
    return pandas.DataFrame(own | columns)


def test_rows_train_like_arrays(tmp_path: Path) -> None:
    table = Table(frame(), target="label", features=[f"x{i}" for i in range(6)], test=frame()[:9], **COMMON)
    arrays = {"train_inputs": FEATURES, "train_targets": LABELS, "test_inputs": FEATURES[:9], "test_targets": LABELS[:9]}
    expected = ArrayData(**arrays, mean="auto", std="auto", **COMMON)
    got, wanted = (trained(data, tmp_path) for data in (table, expected))
    assert distance(got.state, wanted.state) == 0 and got.rows[-1]["test/loss"] == wanted.rows[-1]["test/loss"]


@pytest.mark.parametrize("name", ["rows.csv", "rows.csv.gz", "rows.tsv", "rows.parquet"])
def test_files(name: str, tmp_path: Path) -> None:
    path = tmp_path / name
    if name.endswith("parquet"):
        frame().to_parquet(path)
    else:
        frame().to_csv(path, index=False, sep="\t" if "tsv" in name else ",")
    federation = Table(str(path), target="label", users="owner").federation
    assert federation.num_clients == 3 and federation.partition.client(1).tolist() == list(range(1, 60, 3))
    assert torch.equal(federation.train.inputs, torch.from_numpy(FEATURES))
    assert federation.train.targets.tolist() == LABELS.tolist()


def test_text_and_categories_become_columns() -> None:
    rows = pandas.DataFrame(
        {"size": pandas.Series([1, 2, 3], dtype="Int64"), "colour": ["red", "blue", "red"], "ok": [True, False, True]}
    )
    rows["y"] = ["yes", "no", "yes"]
    test = rows.assign(colour=["green", "blue", "red"])
    federation = Table(rows, target="y", test=test, num_clients=1, standardise=False).federation
    assert federation.train.inputs.tolist() == [[1, 0, 1, 1], [2, 1, 0, 0], [3, 0, 1, 1]]  # size, blue, red, ok
    assert federation.test.inputs[0].tolist() == [1, 0, 0, 1]  # type: ignore[union-attr]
    assert federation.class_names == ("no", "yes") and federation.train.targets.tolist() == [1, 0, 1]
    assert federation.task == "classification"


@pytest.mark.parametrize(("left", "right", "task"), [(0.5, 2.0, "regression"), (2, 5.5, "regression"), (1, 1, "multilabel")])
def test_several_columns_are_predicted(left: float, right: float, task: str) -> None:
    rows = frame(left=left * (np.arange(60) % 2), right=right * (np.arange(60) % 3))
    if task == "multilabel":
        rows["right"] = rows["right"].clip(0, 1)
    data = Table(rows, target=["right", "left"], features=["x1"], test=rows[:9], **COMMON).federation
    targets = rows[["right", "left"]].to_numpy().tolist()
    assert data.task == task and data.train.targets.tolist() == targets and data.test.targets.tolist() == targets[:9]  # type: ignore[union-attr]
    others = Table(rows, target=["right", "left"], num_clients=2).federation.train.inputs
    assert others.shape == (60, 6 + len(["label"]) + len(set(OWNERS)))


def test_a_part_is_held_out_for_testing() -> None:
    rows = frame(number=np.arange(60.0))
    options: dict[str, Any] = {"target": "label", "features": ["number"], "test_fraction": 0.25, "standardise": False}
    data, again = Table(rows, num_clients=3, partitioner=IID(), **options).federation, Table(rows, **options).federation
    train, test, same = (set(samples.inputs[:, 0].tolist()) for samples in (data.train, data.test, again.test))  # type: ignore[union-attr]
    assert len(test) == 15 and len(train) == 45 and not train & test
    assert test != set(range(15)) and test == same


@pytest.mark.parametrize(
    ("make", "what"),
    [
        (lambda: Table(frame(), target="y"), "train has no 'y'; it has x0, x1"),
        (lambda: Table(frame(), target="label", users="who", features=["x9"]), "train has no 'x9' and no 'who'"),
        (lambda: Table(frame(x0=[np.nan, *range(59)]), target="label"), "'x0' of train has 1 missing values, the first in row 0"),
        (
            lambda: Table(frame(), target="label", test=frame(x0=["a"] * 60)),
            "'x0' holds numbers in train, and in test values such",
        ),
        (lambda: Table(frame(), target="label", test=frame(), test_fraction=0.1), "give only one"),
        (lambda: Table(frame(), target="label", test_fraction=1.0), r"test_fraction must lie in \[0, 1\)"),
        (lambda: Table("none.csv", target="label"), "Table found no none.csv"),
        (
            lambda: Table(pandas.DataFrame({"name": [f"n{i}" for i in range(1001)], "y": 0}), target="y"),
            "column 'name' of train holds 1,001 different texts",
        ),
        (lambda: Table(frame(), "label", features=["x1", "label"]), "column 'label' is a target or the users, and no feature"),
    ],
)
def test_what_it_refuses(make: Any, what: str) -> None:
    with one_line((ValueError, FileNotFoundError), what):
        make().setup()
