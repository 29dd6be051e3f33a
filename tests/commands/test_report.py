"""``flcog report``: the page shows the contents of the run's files, and it needs no other file and no network."""

import base64
import csv
import html
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from PIL import Image

from flcog.commands.cli import main
from flcog.commands.report.runs import grouped, read_run

VOID = {"meta", "img"}


class Page(HTMLParser):
    """The tables, headings, addresses and charts of the page. Fails if a tag is not closed in the right place."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.addresses: list[str] = []
        self.headings: list[str] = []
        self.tables: list[list[list[str]]] = []
        self.charts: dict[str, str] = {}
        """The words of each chart for readers who cannot see it, by its section."""
        self.feed(text)
        assert not self.open, f"never closed: {self.open}"

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.addresses += [value or "" for name, value in attributes if name in ("src", "href", "data", "action")]
        if tag not in VOID:
            self.open.append(tag)
        if tag == "img" and "src" in dict(attributes) and "svg" in str(dict(attributes)["src"])[:20]:
            self.charts[self.headings[-1]] = str(dict(attributes)["alt"])
        if tag == "table":
            self.tables.append([])
        if tag == "tr":
            self.tables[-1].append([])
        if tag in ("td", "th"):
            self.tables[-1][-1].append("")

    def handle_startendtag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        assert tag in VOID

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if "td" in self.open or "th" in self.open:
            self.tables[-1][-1][-1] += data
        elif self.open and self.open[-1] in ("h1", "h2", "h3"):
            self.headings.append(data)

    def row(self, name: str) -> list[str]:
        """The cells of the first row with this name in its first cell or, after a score, in its second."""
        return next(row for table in self.tables for row in table if name in row[:2])


def make_run(root: Path, name: str, methods: list[str], accuracy: list[float], seed: int = 0, **columns: Any) -> Path:
    """Write a run's directory without a run."""
    directory = root / name
    (directory / "figures").mkdir(parents=True)
    with (directory / "metrics.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["round", "test/accuracy", "train/loss", "comm/up_bytes", "comm/down_bytes", "time/round", *columns])
        for number, value in enumerate(accuracy, start=1):
            further = [column if np.isscalar(column) else column[number - 1] for column in columns.values()]
            writer.writerow([number, value, 1 / number, 1024, 2048, 0.25, *further])
    setting = {
        "methods": methods,
        "data": "Digits",
        "seed": seed,
        "partition": {"hash": "ab12cd34", "clients": 10, "size/min": 3},
    }
    (directory / "run.yaml").write_text(yaml.safe_dump(setting))
    callbacks = [
        {"class_path": name, "init_args": {"mu": mu.strip(")")}} for name, _, mu in (one.partition("(mu=") for one in methods)
    ]
    config = {
        "trainer": {"rounds": len(accuracy), "callbacks": callbacks},
        "model": {"class_path": "flcog.Classifier"},
        "data": {"class_path": "Digits", "init_args": {"hf_token": "hunter2", "num_clients": 10}},
    }
    (directory / "config.yaml").write_text(yaml.safe_dump(config))
    Image.new("RGB", (4, 3), (200, 10, 10)).save(directory / "figures" / "partition-000000.png")
    return directory


def written(*arguments: object) -> Page:
    main(["report", *map(str, arguments)])
    return Page(Path(str(arguments[-1])).read_text())


def test_one_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    spread = {f"test/client_accuracy_{part}": [0.1, 0.2, 0.3] for part in ("q10", "q50", "q90", "worst_decile")}
    run = make_run(tmp_path, "a", ["FedProx(mu=0.01)"], [0.25, 0.75, 0.5], **spread)
    for number in range(1, 8):
        Image.new("RGB", (5, 5), (0, 0, number)).save(run / "figures" / f"generated_images-{number:06d}.png")
    page = written(run, "--output", tmp_path / "page.html")
    assert page.tables[0][0][:2] == ["best test/accuracy", "method"], "scores come before names"
    assert page.row("FedProx")[:4] == ["75 %, round 2", "FedProx", "50 %", "3"]
    assert page.row("FedProx")[4:] == ["3.0 KiB", "6.0 KiB", "0.25 s"]
    assert "test/accuracy, FedProx ends at 50;" in page.charts["Curves"] and "train/loss" in page.charts["Curves"]
    assert "Sent up, from clients to the server, FedProx ends at 0.00293" in page.charts["Bytes"]
    assert (
        "test/client_accuracy_q50, FedProx ends at 30" in page.charts["Clients"]
        and "time/round" in page.charts["Further measurements"]
    )
    assert {"Clients", "Pictures", "Partition", "Configuration"} <= set(page.headings)
    text = (tmp_path / "page.html").read_text()
    assert "picked by test/accuracy, on the test set itself, which flatters" in text
    pictures = [base64.b64decode(address.partition(",")[2]) for address in page.addresses if address.startswith("data:image/png")]
    files = [run / "figures" / f"{name}.png" for name in ("generated_images-000001", "generated_images-000004")]
    files += [run / "figures" / f"{name}.png" for name in ("generated_images-000007", "partition-000000")]
    assert pictures == [file.read_bytes() for file in files]
    main(["report", str(run)])
    assert (run / "report.html").read_text() == text


@pytest.mark.parametrize(("experiments", "rows"), [(("a1", "a1"), 1), (("a1", "b2"), 2), ((None, None), 2)])
def test_runs_made_in_python_share_a_row_if_they_are_known_to_be_alike(
    experiments: tuple[str | None, ...], rows: int, tmp_path: Path
) -> None:
    """They have no config.yaml. Earlier versions did not write the entry."""
    runs = [make_run(tmp_path, f"run{seed}", [], [0.5], seed) for seed in (0, 1)]
    for run, experiment in zip(runs, experiments, strict=True):
        (run / "config.yaml").unlink()
        setting = yaml.safe_load((run / "run.yaml").read_text()) | ({"experiment": experiment} if experiment else {})
        (run / "run.yaml").write_text(yaml.safe_dump(setting))
    assert len(written(*runs, "--output", tmp_path / "page.html").tables[0]) == 1 + rows


def without_column(run: Path, *names: str) -> Path:
    """The run without columns of its metrics.csv, as a method withholds them."""
    with (run / "metrics.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    kept = [name for name in rows[0] if name not in names]
    with (run / "metrics.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, kept, extrasaction="ignore")
        writer.writeheader()
        writer.writerows(rows)
    return run


def test_bytes_that_a_method_withholds_are_unknown(tmp_path: Path) -> None:
    """A mean over seeds is unknown, too, if one of them has none."""
    withheld = ("comm/up_bytes", "comm/down_bytes", "time/round")
    runs = [make_run(tmp_path, f"{name}{seed}", [name], [0.5], seed) for name in ("A", "B") for seed in (0, 1)]
    without_column(runs[0], *withheld)
    page = written(*runs, "--output", tmp_path / "page.html")
    assert page.row("A")[4:6] == ["unknown", "unknown"] and page.row("B")[4:6] == ["1.0 KiB", "2.0 KiB"]
    alone = written(runs[0], "--output", tmp_path / "alone.html")
    assert alone.row("A")[4:7] == ["unknown", "unknown", "unknown"] and "Bytes" not in alone.headings


def test_simulated_time_stands_beside_rounds_and_bytes(tmp_path: Path) -> None:
    """It is the mean over the seeds of a method. Runs without simulated time have an empty cell."""
    for seed, end in ((0, 1500.0), (1, 2500.0)):
        make_run(tmp_path, f"a{seed}", ["FedProx"], [0.25, 0.5], seed, **{"time/simulated": [700.0, end]})
    make_run(tmp_path, "b", [], [0.5])
    page = written(*(tmp_path / name for name in ("a0", "a1", "b")), "--output", tmp_path / "page.html")
    place = page.tables[0][0].index("simulated time")
    assert page.tables[0][0][3:place] == ["rounds", "sent up", "sent down", "a round took"]
    assert page.row("FedProx")[place] == "2,000 s" and page.row("FedAvg")[place] == ""


def test_the_worst_tenth_stands_beside_a_mean_over_clients(tmp_path: Path) -> None:
    """It is from the best round, which the validation scores of the clients' own models choose."""
    scores = {"test/personal_accuracy_mean": [0.7, 0.9, 0.8], "test/personal_accuracy_worst_decile": [0.3, 0.5, 0.4]}
    run = make_run(tmp_path, "a", ["Ditto"], [0.1, 0.2, 0.3], **scores, **{"val/personal_accuracy_mean": [0.5, 0.6, 0.7]})
    page = written(run, make_run(tmp_path, "b", [], [0.5]), "--output", tmp_path / "page.html")
    place = page.tables[0][0].index("worst tenth of clients")
    assert page.row("Ditto")[0] == "80 %, round 3" and page.row("Ditto")[place] == "40 %" and page.row("FedAvg")[place] == ""


def test_it_loads_nothing_and_shows_no_secrets(tmp_path: Path) -> None:
    script = "<script>alert(1)</script>"
    run = make_run(tmp_path, "a", ["FedProx"], [0.25, 0.5], **{script: 1.0})
    page = written(run, "--title", script, "--output", tmp_path / "page.html")
    text = (tmp_path / "page.html").read_text()
    assert {address.partition(":")[0] for address in page.addresses} <= {"data"}
    assert not re.search(r"url\(|@import|https?://", text)
    assert "hunter2" not in text and "hf_token: '***'" in html.unescape(text)
    assert "<script" not in text


def test_several_runs_side_by_side(tmp_path: Path) -> None:
    runs = [
        make_run(tmp_path, "a", [], [0.25, 0.5], **{"val/accuracy": [0.6, 0.3]}),
        make_run(tmp_path, "b", ["FedProx(mu=0.01)"], [0.5, 0.75, float("nan")], **{"val/accuracy": [0.3, 0.6, 0.1]}),
        make_run(tmp_path, "c", ["FedProx(mu=0.1)"], [0.5]),
    ]
    page = written(*runs, "--title", "Ours & theirs", "--output", tmp_path / "page.html")
    assert page.headings[0] == "Ours & theirs"
    names = ["FedAvg", "FedProx, mu=0.01, rounds=3", "FedProx, mu=0.1, rounds=1"]
    assert [row[1] for row in page.tables[0][1:]] == names
    ends = re.findall(r"test/accuracy, (.*?) ends at ([\d.]+)", page.charts["Curves"])
    assert ends == list(zip(names, ["50", "75", "50"], strict=True)), "NaN is not drawn"
    assert page.row("FedAvg")[0] == "25 %, round 1", "the validation set chooses, the test score of that round is shown"
    assert page.row("trainer.rounds")[1:] == ["2", "3", "1"]
    assert not any(row and row[0] == "data.num_clients" for table in page.tables for row in table), "only what differs"


def test_seeds_of_a_method_are_one_line(tmp_path: Path) -> None:
    """They have one row and one line: their mean, with a band from the lowest to the highest."""
    runs = [
        make_run(tmp_path, f"{name}{seed}", [name] if name else [], [0.2 + 0.1 * seed, 0.5 + 0.1 * seed], seed)
        for name in ("", "Mine")
        for seed in (0, 1, 2)
    ]
    page = written(*runs, "--output", tmp_path / "page.html")
    assert len(page.tables[0]) == 3 and page.row("FedAvg")[0] == "60.0 ± 10.0 %" and page.row("FedAvg")[-1] == "0, 1, 2"
    assert len(page.tables[1]) == 7, "each run, on demand"
    group = grouped([read_run(run) for run in runs])[0]
    curve = group.curve(lambda run: run.column("test/accuracy"))
    assert curve.round(9).to_numpy().tolist() == [[1, 0.3, 0.2, 0.4], [2, 0.6, 0.5, 0.7]]


def test_a_mistake_gets_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit):
        main(["report", "nowhere"])
    shown = capsys.readouterr().err
    assert (
        shown.startswith("flcog: error: nowhere holds no metrics.csv: give the directory of a run")
        and len(shown.splitlines()) == 1
    )
    make_run(tmp_path, "a", [], [0.5]).joinpath("config.yaml").unlink()
    with pytest.raises(SystemExit):
        main(["report", "a", "--confusion"])
    assert capsys.readouterr().err.startswith("flcog: error: a was made in Python and has no config.yaml: use the trainer")
