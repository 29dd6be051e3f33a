"""The report's numbers agree with computations by hand, a slow count and scipy; its text and picture have all required parts."""

import io
import tracemalloc
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from matplotlib import pyplot
from matplotlib.image import imread
from rich.console import Console
from scipy import stats

from flcog.callbacks import FedDisco
from flcog.data import Federation, Partition, Samples, Task, label_statistics
from flcog.data.label_statistics import kl_to_uniform, label_table
from flcog.datamodules.partitioners import IID, BiasedUnbiased, Dirichlet
from flcog.method import ClientView
from flcog.run.partition_report import partition_report
from flcog.run.pictures import partition_figure


def federation_of(
    targets: np.ndarray,
    partition: Partition,
    num_classes: int,
    task: Task = "classification",
    names: tuple[str, ...] | None = None,
) -> Federation:
    samples = Samples(np.zeros(len(targets), np.uint8), torch.as_tensor(targets))
    return Federation(samples, partition, task, num_classes, preprocess=lambda inputs: inputs, class_names=names)


def printed(federation: Federation, width: int) -> list[str]:
    console = Console(file=io.StringIO(), width=width, no_color=True)
    console.print(partition_report(federation)[0])
    return console.file.getvalue().splitlines()  # type: ignore[attr-defined]


@pytest.fixture
def by_hand() -> Federation:
    """Client 0: labels 0, 0, 0, 1. Client 1: 2, 2. Samples 6 and 7 are held out, and sample 8 belongs to no client."""
    partition = Partition.from_clients([np.array([0, 1, 2, 3]), np.array([4, 5])])
    federation = federation_of(np.array([0, 0, 0, 1, 2, 2, 1, 2, 0]), partition, 4, names=("ant", "bee", "cat", "dog"))
    return replace(federation, client_test=Partition.from_clients([np.array([6]), np.array([7])]))


def test_clients_of_one_user_have_its_name(by_hand: Federation) -> None:
    for users, names in (
        ([*"aaaabbabc"], ["0 a", "1 b"]),
        (["ward 1"] * 4 + ["x" * 30] * 5, ["0 ward 1", f"1 {'x' * 19}…"]),
        ([*"acaabbabc"], ["0", "1 b"]),
    ):
        named = replace(by_hand, train=replace(by_hand.train, users=np.array(users)))
        rows = [line.split("  ")[0].strip() for line in printed(named, 120)]
        assert [row for row in rows if row[:2].strip() in ("0", "1")] == names


def test_numbers_by_hand(by_hand: Federation) -> None:
    numbers = partition_report(by_hand)[1]
    log = np.log
    first, second = log(4) + 0.75 * log(0.75) + 0.25 * log(0.25), log(4)
    pooled = log(4) + 0.5 * log(0.5) + (1 / 6) * log(1 / 6) + (1 / 3) * log(1 / 3)
    expected = {
        "clients": 2,
        "samples/train": 6,
        "samples/left_out": 1,
        "samples/client_test": 2,
        "classes": 4,
        "hash": by_hand.partition.hash,
        "imbalance/classes": float("inf"),
        "imbalance/clients": 2.0,
        "kl/pooled": pytest.approx(pooled),
        "size/min": 2.0,
        "size/median": 3.0,
        "size/max": 4.0,
        "size/mean": 3.0,
        "labels/min": 1.0,
        "labels/median": 1.5,
        "labels/max": 2.0,
        "labels/mean": 1.5,
        "kl/min": pytest.approx(first),
        "kl/median": pytest.approx((first + second) / 2),
        "kl/max": pytest.approx(second),
        "kl/mean": pytest.approx((first + second) / 2),
    }
    assert numbers == expected
    np.testing.assert_array_equal(label_table(by_hand).toarray(), [[3, 1, 0, 0], [0, 0, 2, 0]])
    np.testing.assert_array_equal(label_table(by_hand, by_hand.client_test).toarray(), [[0, 1, 0, 0], [0, 0, 1, 0]])


def test_kl_agrees_with_scipy() -> None:
    rng = np.random.Generator(np.random.PCG64(0))
    labels = rng.integers(0, 7, 500)
    federation = federation_of(labels, Dirichlet(0.3)(federation_samples(labels), 8, 0), 7)
    counts = label_table(federation)
    expected = [stats.entropy(row, np.ones(7)) for row in counts.toarray()]
    np.testing.assert_allclose(kl_to_uniform(counts), expected, rtol=1e-12, atol=1e-12)


def federation_samples(targets: np.ndarray) -> Samples:
    return Samples(np.zeros(len(targets), np.uint8), torch.as_tensor(targets))


@pytest.mark.parametrize("block", [7, 2**22])
@pytest.mark.parametrize("task", ["classification", "multilabel", "regression"])
def test_labels_are_those_that_methods_see(task: Task, block: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(label_statistics, "BLOCK", block)
    rng = np.random.Generator(np.random.PCG64(0))
    targets = {
        "classification": rng.integers(0, 5, 300),
        "multilabel": (rng.random((300, 5)) < 0.3).astype(np.float32),
        "regression": np.round(rng.normal(size=300), 1).astype(np.float32),
    }[task]
    federation = federation_of(targets, IID()(federation_samples(targets), 6, 0), 5, task)
    table = label_table(federation).toarray()
    for k in range(6):
        np.testing.assert_array_equal(table[k], federation.label_counts(k).numpy())


def test_a_client_without_labels_has_no_kl() -> None:
    rows = np.array([[0, 0], [0, 0], [1, 0], [1, 1]], np.float32)
    federation = federation_of(rows, Partition.from_clients([np.array([0, 1]), np.array([2, 3])]), 2, "multilabel")
    kl = kl_to_uniform(label_table(federation))
    assert np.isnan(kl[0]) and kl[1] == pytest.approx(np.log(2) + 2 / 3 * np.log(2 / 3) + 1 / 3 * np.log(1 / 3))
    assert partition_report(federation)[1]["kl/min"] == pytest.approx(kl[1])


def test_a_regression_has_the_bins_that_its_targets_make() -> None:
    values = np.array([0.0] * 70 + list(range(1, 31)), np.float32)  # 10 quantiles make the bins 0, 1 to 10, 11 to 20 and 21 to 30
    even, skewed = np.array([0, 1, 70, 71, 80, 81, 90, 91]), np.array([0, 1, 2, 80])
    federation = federation_of(values, Partition.from_clients([even, skewed]), 10, "regression")
    of_feddisco = [FedDisco().init_client({}, {}, ClientView.of(federation, k, 0)).message for k in range(2)]
    numbers = partition_report(federation)[1]
    assert numbers["classes"] == 4 and numbers["imbalance/classes"] == 2.5
    assert [numbers["kl/min"], numbers["kl/max"]] == pytest.approx(of_feddisco, abs=1e-12)
    assert printed(federation, 100)[0].endswith("2 clients, 4 bins of the target")
    assert len(partition_figure(federation).axes[2].patches) == 4


def test_few_clients_have_a_row_each(by_hand: Federation) -> None:
    lines = printed(by_hand, 100)
    assert lines[0] == f"Partition {by_hand.partition.hash}: 2 clients, 4 classes"
    assert lines[1] == "6 of 9 samples to train on, 1 left out"
    cells = [line.split() for line in lines]
    assert ["client", "samples", "test", "labels", "KL", "most", "frequent", "labels"] in cells
    assert ["0", "4", "1", "2", "0.824", "ant:3", "bee:1"] in cells
    assert ["1", "2", "1", "1", "1.386", "cat:2"] in cells
    assert ["all", "6", "2", "3", "0.375", "ant:3", "cat:2", "bee:1"] in cells
    assert ["KL", "to", "uniform", "0.824", "0.880", "1.105", "1.330", "1.386", "1.105"] in cells


@pytest.mark.parametrize("width", [80, 100, 120])
def test_table_fits_and_cuts_no_figure(width: int) -> None:
    targets = np.arange(50_000) % 10
    names = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
    partition = BiasedUnbiased()(federation_samples(targets), 6, 0)
    lines = printed(federation_of(targets, partition, 10, names=names), width)
    assert max(map(len, lines)) <= width
    assert not any("…" in line for line in lines)
    assert sum("8,330" in line and "4,165" in line for line in lines) == 5


def test_many_clients_are_summarised() -> None:
    targets = np.arange(200_000) % 17
    partition = IID()(federation_samples(targets), 100_000, 0)
    lines = printed(federation_of(targets, partition, 17), 80)
    assert len(lines) < 12 and max(map(len, lines)) <= 80
    assert ["samples", "2", "2", "2", "2", "2", "2"] in [line.split() for line in lines]


def test_many_clients_times_many_labels_cost_what_the_samples_cost() -> None:
    rng = np.random.Generator(np.random.PCG64(0))
    targets = rng.integers(0, 1628, 200_000)
    federation = federation_of(targets, IID()(federation_samples(targets), 100_000, 0), 1628)
    tracemalloc.start()
    try:
        partition_report(federation)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 50e6, "a dense table would take 1.3 GB"


def test_picture_has_a_circle_for_each_count_with_its_area(by_hand: Federation) -> None:
    figure = partition_figure(by_hand)
    chart = figure.axes[0]
    (circles,) = chart.collections
    np.testing.assert_array_equal(circles.get_offsets(), [[0, 0], [0, 1], [1, 2]])
    areas = circles.get_sizes()  # type: ignore[attr-defined]
    np.testing.assert_allclose(areas / areas.max(), [1, 1 / 3, 2 / 3])
    assert [tick.get_text() for tick in chart.get_yticklabels()] == ["ant", "bee", "cat", "dog"]
    assert [patch.get_height() for patch in figure.axes[1].patches] == [4, 2]
    assert [patch.get_width() for patch in figure.axes[2].patches] == [3, 1, 2, 0]
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["1", "3"]


@pytest.mark.parametrize(("num_clients", "num_classes"), [(1, 1), (10, 10), (200, 10), (1000, 10), (20, 300)])
def test_picture_of_any_size_is_drawn_without_pyplot(num_clients: int, num_classes: int, tmp_path: Path) -> None:
    targets = np.arange(3000) % num_classes
    federation = federation_of(targets, IID()(federation_samples(targets), num_clients, 0), num_classes)
    figure = partition_figure(federation)
    figure.savefig(tmp_path / "partition.png", dpi=50)
    assert (imread(tmp_path / "partition.png")[..., :3] < 0.5).any(), "something dark is drawn"
    assert max(figure.get_size_inches()) <= 13
    assert pyplot.get_fignums() == [], "pyplot does not know the figure"
    chart = figure.axes[0]
    assert chart.get_xlabel() == ("Client (200 of 1,000)" if num_clients == 1000 else "Client")
    assert chart.get_ylabel() == ("Class (100 most frequent of 300)" if num_classes == 300 else "Class")
