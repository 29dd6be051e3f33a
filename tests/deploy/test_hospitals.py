"""Hospitals with tables of their own: their standardisation is the simulation's, and unlike tables are refused before round 1."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas
import pytest
import yaml

pytest.importorskip("flwr")

from deploy.deployments import config, history, simulated
from deploy.test_server import train_app
from flcog.deploy.application import PACKAGE, write_app
from flcog.deploy.node import Node, Place
from flcog.deploy.trial import Here
from flcog.wire.packing import unpack

pytestmark = pytest.mark.slow

HOSPITALS = 3


def patients() -> Any:
    """Rows of three hospitals. One of them has older patients, and another one no patient with the blood group 0."""
    rng, count = np.random.default_rng(0), 90
    hospital = np.arange(count) % HOSPITALS
    age, dose = 50 + 15 * rng.normal(size=count) + 20 * (hospital == 0), 3.7 * rng.exponential(size=count)
    blood = np.where(hospital == 1, "A", rng.choice(["0", "A", "B"], size=count))
    outcome = np.where(age + 10 * dose + 9 * rng.normal(size=count) > 90, "ill", "well")
    return pandas.DataFrame({"age": age, "dose": dose, "blood": blood, "outcome": outcome, "hospital": hospital})


LISTED = {"categories": {"blood": ["0", "A", "B"]}, "classes": ["ill", "well"]}


def table(path: Path, **options: Any) -> dict[str, Any]:
    own = {"train": str(path), "target": "outcome", "batch_size": 8, **LISTED, **options}
    return {"class_path": "flcog.datamodules.Table", "init_args": own}


def content_of(data: dict[str, Any], callbacks: Any = ()) -> dict[str, Any]:
    content = config(*callbacks, rounds=3, precision="64-true")
    content["model"]["init_args"]["model"] = {
        "class_path": "flcog.models.MLP",
        "init_args": {"in_features": 5, "hidden": [4], "num_classes": 2},
    }
    return content | {"data": data}


class Hospitals(Here):
    """Three hospitals, each with its own file. Keeps the replies."""

    def __init__(self, folder: Path) -> None:
        places = [Place(folder / "app" / PACKAGE, (k,), folder / f"node{k}.yaml", folder / f"state{k}") for k in range(HOSPITALS)]
        super().__init__([Node(place) for place in places])
        self.sent = list[bytes]()

    def answer(self, message: Any) -> Any:
        reply = super().answer(message)
        assert reply is not None
        self.sent.append(reply.content["flcog.answer"]["answer"].data)
        return reply


Change = Callable[[Any], tuple[Any, dict[str, Any]]]
"""Returns hospital 1's rows and the options of its table."""


def deployed(folder: Path, change: Change | None = None, callbacks: Any = (), **options: Any) -> Hospitals:
    frame = patients()
    for k in range(HOSPITALS):
        mine, own = frame[frame.hospital == k].drop(columns="hospital"), dict(options)
        if change is not None and k == 1:
            mine, changed = change(mine)
            own |= changed
        mine.to_csv(folder / f"hospital{k}.csv", index=False)
        data = table(folder / f"hospital{k}.csv", num_clients=1, **own)
        (folder / f"node{k}.yaml").write_text(yaml.safe_dump({"data": data}))
    frame[frame.hospital == 0].drop(columns="hospital").to_csv(folder / "server.csv", index=False)
    write_app(
        folder / "app", content_of(table(folder / "server.csv", num_clients=1, **options), callbacks), HOSPITALS, HOSPITALS, 50
    )
    grid = Hospitals(folder)
    train_app(folder, grid, clients=HOSPITALS, max_client_samples=50)
    return grid


def trained(rows: list[dict[str, str]]) -> list[dict[str, str]]:
    return [{name: value for name, value in row.items() if name.startswith(("train/", "drift/", "clients/"))} for row in rows]


def test_hospitals_have_the_standardisation_of_a_simulation_and_send_no_row(tmp_path: Path) -> None:
    grid = deployed(tmp_path)
    patients().to_csv(tmp_path / "all.csv", index=False)
    whole = table(tmp_path / "all.csv", users="hospital")
    assert trained(history(tmp_path / "runs")) == trained(simulated(tmp_path / "simulated", content_of(whole)))
    sent = b"".join(grid.sent)
    for row in patients()[["age", "dose"]].to_numpy():
        assert all(
            each.tobytes() not in sent for each in (row[:1], row[1:], row.astype(np.float32)[:1], row.astype(np.float32)[1:])
        )
    kinds = [type(unpack(answer)[2]) for answer in grid.sent]
    assert kinds.count(dict) == 3 * HOSPITALS  # counts and sums, squared deviations, and the end of the exchange


def test_each_hospital_may_keep_its_own_standardisation(tmp_path: Path) -> None:
    grid = deployed(tmp_path, standardise="own")
    means = {node._datamodule.federation.preprocess.mean for node in grid.nodes}  # type: ignore[union-attr]
    assert len(means) == HOSPITALS


def test_private_methods_refuse_sums_that_they_do_not_protect(tmp_path: Path) -> None:
    private = {"class_path": "flcog.callbacks.DPFedAvg", "init_args": {"noise_multiplier": 1.0}}
    with pytest.raises(ValueError, match=r"DPFedAvg does not protect the sums of all clients' columns.*standardise to own"):
        deployed(tmp_path, callbacks=[private])


CHANGES: dict[str, tuple[Change, str]] = {
    "swapped columns": (
        lambda rows: (rows[["dose", "age", "blood", "outcome"]], {}),
        "column 1='dose', numbers: give both the same",
    ),
    "another name": (
        lambda rows: (rows.rename(columns={"dose": "amount"}), {}),
        "column 2='amount', numbers: give both the same",
    ),
    "a missing column": (lambda rows: (rows.drop(columns="dose"), {}), "columns=2: give both the same"),
    "text for numbers": (
        lambda rows: (rows.assign(dose=[f"much{k % 2}" for k in range(len(rows))]), {}),
        "column 2='dose', text: give both the same",
    ),
    "other categories": (
        lambda rows: (rows, {"categories": {"blood": ["A", "B", "0"]}}),
        r"categories of 'blood'=\['A', 'B', '0'\]: give both the same",
    ),
    "its rows' categories": (
        lambda rows: (rows, {"categories": None}),
        r"categories of 'blood'=\['A'\]: give both the same",
    ),
    "other classes": (lambda rows: (rows, {"classes": ["well", "ill"]}), r"class_names\[0\]=well: give both the same"),
    "its own mean": (lambda rows: (rows, {"standardise": "own"}), "standardisation=by the own mean: give both the same"),
    "an unknown category": (
        lambda rows: (rows.assign(blood="C"), {}),
        "the node of client|node 2.*column 'blood' of train holds 'C' in row 0, and its categories are 0, A, B",
    ),
    "too many samples": (
        lambda rows: (pandas.concat([rows] * 2), {}),
        r"node 2 has sent a bad answer to the request begin: sizes contain \[60\], and a client has at most 50 samples",
    ),
}


@pytest.mark.parametrize("name", CHANGES)
def test_unlike_tables_are_refused_in_one_line(tmp_path: Path, name: str) -> None:
    change, says = CHANGES[name]
    with pytest.raises(ValueError, match=says) as caught:
        deployed(tmp_path, change)
    assert "\n" not in str(caught.value) and not list(tmp_path.glob("runs/*/metrics.csv"))
