"""``flcog compare --tune``: Optuna searches the grid of each row by validation data, on a seed that the table does not use."""

import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml

from commands.comparisons import QUICKSTART, fake_run, table, table_file
from flcog.commands.cli import main
from flcog.commands.compare.launcher import Ended, StopEarly
from flcog.commands.compare.report import text
from flcog.commands.compare.result_table import ResultTable
from flcog.commands.compare.runs import Run, runs_of
from flcog.commands.compare.table import Table, select
from flcog.commands.compare.tuning import FILE, STUDIES, tune, with_choices

LR = "model.optimizer.lr"
ROWS: dict[str, Any] = {
    "A": {"arguments": {LR: 0.1}, "tune": {LR: [0.01, 0.1, 1.0]}, "columns": {"y": {LR: 0.3}}},
    "baseline": None,
}


def quickstart(folder: Path, **content: Any) -> Table:
    base: dict[str, Any] = {"configs": [QUICKSTART], "arguments": {"data.client_val": 0.2}, "seeds": [0, 1], "rows": ROWS}
    return table(folder, **{**base, "columns": {"x": None, "y": None}, **content})


def rate(run: Run) -> float:
    """The learning rate of a run. If the option occurs several times, the last value counts."""
    return float(run.command[len(run.command) - run.command[::-1].index(f"--{LR}")])


class Trainer:
    """Trains runs with given validation scores, and tests that are best for the smallest rate."""

    def __init__(self, scores: dict[float, list[float]], fails: bool = False, **columns: Any) -> None:
        self.scores, self.fails, self.columns, self.seen = scores, fails, columns, list[tuple[str, int, float, int]]()

    def __call__(self, table: Table, runs: Sequence[Run], stop_early: StopEarly = lambda run: False) -> list[Ended]:
        for run in runs:
            scores, rounds, stopped = self.scores[rate(run)], 0, False
            while not stopped and rounds < len(scores):
                rounds += 1
                test = [1 - rate(run)] * rounds
                columns = {"val__accuracy": scores[:rounds], "test__loss": scores[:rounds], "comm__total_bytes": [100] * rounds}
                (fake_run(run, test, **columns) / "config.yaml").write_text(f"trainer: {{rounds: {len(scores)}}}")
                stopped = not self.fails and rounds < len(scores) and stop_early(run)
            self.seen.append((run.column, run.seed, rate(run), rounds))
            if not stopped and not self.fails:
                run.mark_finished(diverged=scores[-1] != scores[-1])
        return [Ended(run, "no space", 1.0) for run in runs] if self.fails else []


def test_the_choice_is_by_validation_data_and_reported_with_the_whole_grid(tmp_path: Path) -> None:
    """An option that the row fixes in a column is not tuned there, and the baseline keeps its defaults."""
    given, train = quickstart(tmp_path), Trainer({0.01: [0.1, 0.2], 0.1: [0.2, 0.3], 1.0: [0.3, 0.4]})
    tune(given, tmp_path / "out", [], train)
    assert train.seen == [("x", 2, 0.01, 2), ("x", 2, 0.1, 2), ("x", 2, 1.0, 2)]
    chosen = with_choices(given, tmp_path / "out" / FILE)
    rates = {(run.row, run.column): rate(run) for run in runs_of(chosen, tmp_path / "out") if run.row == "A"}
    assert rates == {("A", "x"): 1.0, ("A", "y"): 0.3} and chosen.rows["baseline"] == given.rows["baseline"]
    said = text(ResultTable(chosen, []), [])
    assert (
        f"Tuned on seed 2 by the clients' validation data: A · x: {LR} 1.0 (edge of the grid). The search took 3 runs, 6 rounds"
        in said
    )
    assert "| A | x | 1.0 (edge of the grid) | 0.4000 | yes |" in said and "| A | x | 0.01 | 0.2000 |  |" in said
    train.seen.clear()
    before = (tmp_path / "out" / FILE).read_bytes()
    shutil.rmtree(tmp_path / "out/tuning")
    tune(given, tmp_path / "out", [], train)
    assert (tmp_path / "out" / FILE).read_bytes() == before and train.seen == [], "the study file has the finished configurations"


def test_the_search_goes_on_after_it_was_stopped(tmp_path: Path) -> None:
    scores = {0.01: [0.1, 0.2], 0.1: [0.2, 0.3], 1.0: [0.3, 0.4]}
    given, train = quickstart(tmp_path), Trainer(scores)

    class Stopped(Trainer):
        def __call__(self, table: Table, runs: Sequence[Run], stop_early: StopEarly = lambda run: False) -> list[Ended]:
            super().__call__(table, runs[:1], stop_early)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        tune(given, tmp_path / "out", [], Stopped(scores))
    tune(given, tmp_path / "out", [], train)
    assert [each[2] for each in train.seen] == [0.1, 1.0]
    with pytest.raises(ValueError, match=r"^1 of 1 runs of the search failed, the first, A, lr=0.5 · x · seed 2: no space$"):
        tune(
            quickstart(tmp_path, rows={"A": {"tune": {LR: [0.5]}}}, columns={"x": None}),
            tmp_path / "out",
            [],
            Trainer({0.5: [1]}, True),
        )


def test_the_median_pruner_stops_poor_configurations_after_half_of_the_rounds(tmp_path: Path) -> None:
    """Of eight rounds the first four are no reason. 0.4 is below the median of the two that are done, and 0.8 above."""
    rows = {"A": {"arguments": {LR: 0.1}, "tune": {LR: [0.1, 0.2, 0.4, 0.8]}}}
    given = quickstart(tmp_path, rows=rows, columns={"": None})
    train = Trainer({0.1: [0.3] * 8, 0.2: [0.5] * 8, 0.4: [0.1] * 8, 0.8: [0.1, 0.1, 0.1, 0.6, 0.6, 0.6, 0.6, 0.6]})
    tune(given, tmp_path / "out", [], train)
    assert [each[2:] for each in train.seen] == [(0.1, 8), (0.2, 8), (0.4, 4), (0.8, 8)]
    said = text(ResultTable(with_choices(given, tmp_path / "out" / FILE), []), [])
    assert (
        "| 0.4 | 0.1000 | stopped early |" in said and "| 0.8 (edge of the grid) | 0.6000 | yes |" in said and "28 rounds" in said
    )
    train.seen.clear()
    tune(quickstart(tmp_path, rows=rows, columns={"": {"target": 0.55}}), tmp_path / "target", [], train)
    assert [each[3] for each in train.seen] == [8] * 4, "low scores do not tell who reaches the target first"


def test_rounds_to_the_target_choose_first_and_diverged_configurations_lose(tmp_path: Path) -> None:
    columns, rows = {"x": {"target": 0.5}}, {"A": {"tune": {LR: [0.1, 0.2, 0.4]}}}
    train = Trainer({0.1: [0.5, 0.5], 0.2: [0.25, 0.75], 0.4: [0.9, float("nan")]})
    tune(quickstart(tmp_path, rows=rows, columns=columns), tmp_path / "out", [], train)
    (search,) = yaml.safe_load((tmp_path / "out" / FILE).read_text())["searches"]
    grid = {line["values"][LR]: (line.get("validation"), line["chosen"]) for line in search["grid"]}
    assert grid == {0.1: (0.5, True), 0.2: (0.75, False), 0.4: (None, False)}
    assert [line["rounds_to_target"] for line in search["grid"][:2]] == [1.0, 1.5]
    with pytest.raises(ValueError, match=r"^every configuration of A · x diverged: add smaller values to its tune$"):
        tune(quickstart(tmp_path, rows={"A": {"tune": {LR: [0.4]}}}, columns={"x": None}), tmp_path / "new", [], train)


def test_smaller_losses_are_better(tmp_path: Path) -> None:
    rows = {"A": {"tune": {LR: [0.1, 0.2]}}}
    given = quickstart(tmp_path, rows=rows, columns={"x": None}, metrics="test/loss")
    tune(given, tmp_path / "out", [], LossTrainer({0.1: [0.5, 0.4], 0.2: [0.5, 0.3]}))
    assert with_choices(given, tmp_path / "out" / FILE).rows["A"].columns["x"] == {LR: 0.2}


class LossTrainer(Trainer):
    def __call__(self, table: Table, runs: Sequence[Run], stop_early: StopEarly = lambda run: False) -> list[Ended]:
        for run in runs:
            fake_run(run, [0.5, 0.5], finished=True, test__loss=[9, 9], val__loss=self.scores[rate(run)])
        return []


def test_a_search_of_some_rows_keeps_the_choices_of_the_others(tmp_path: Path) -> None:
    rows = {name: {"tune": {LR: [0.02, 0.1]}} for name in "AB"}
    given, train = quickstart(tmp_path, rows=rows), Trainer({0.02: [0.1], 0.1: [0.2]})
    tune(given, tmp_path / "out", [], train)
    whole = yaml.safe_load((tmp_path / "out" / FILE).read_text())
    (tmp_path / "out" / STUDIES).unlink()
    tune(select(given, ["B", "y"]), tmp_path / "out", [], train)
    count, baseline = len(train.seen), quickstart(tmp_path, rows={"A": rows["A"], "C": None})
    tune(select(baseline, ["C"]), tmp_path / "new", [], train)
    assert len(train.seen) == count and not (tmp_path / "new").exists()
    assert yaml.safe_load((tmp_path / "out" / FILE).read_text()) == whole and len(whole["searches"]) == 4


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({"rows": {"A": None}}, "no row of table has tune, the values to try: tune: {model.optimizer.lr:"),
        ({"arguments": {}}, "--tune chooses by val/accuracy, and A · x logs none: set data.client_val, such as 0.1"),
    ],
)
def test_searches_that_are_refused(content: dict[str, Any], message: str, tmp_path: Path) -> None:
    class NoValidation(Trainer):
        def __call__(self, table: Table, runs: Sequence[Run], stop_early: StopEarly = lambda run: False) -> list[Ended]:
            for run in runs:
                fake_run(run, [0.5], finished=True)
            return []

    with pytest.raises(ValueError, match=message):
        tune(quickstart(tmp_path, **content), tmp_path / "out", [], NoValidation({}))


def test_a_dry_run_lists_the_search_first(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = table_file(
        tmp_path, configs=[QUICKSTART], arguments={"data.client_val": 0.2}, rows={"A": {"tune": {LR: [0.01, 0.02]}}}
    )
    main(["compare", str(path), "--out", str(tmp_path / "out"), "--tune", "--dry-run"])
    search, then = capsys.readouterr().out.split("The table with its values so far:")
    assert (
        "A, lr=0.01 · seed 1: to be trained\n" in search
        and f"--{LR} 0.01 --seed" in search
        and "2 runs: 0 are finished, 2 are to be trained" in search
    )
    assert "1 runs: 0 are finished" in then and not (tmp_path / "out").exists()


@pytest.mark.slow
def test_a_search_trains_prunes_and_fills_the_table(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = {"data.client_val": 0.2, "trainer.rounds": 12, "trainer.local_steps": 2, "trainer.logger": False, LR: 0.1}
    path = table_file(tmp_path, configs=[QUICKSTART], arguments=arguments, rows={"A": {"tune": {LR: [0.1, 0.2, 1e-9]}}})
    main(["compare", str(path), "--out", str(tmp_path / "out"), "--tune", "--save-results", "--results", str(tmp_path)])
    said = capsys.readouterr().out
    assert (
        "A, lr=1e-09 · seed 1: stopped early, best 0." in said and "| A |  | 1e-09 | " not in said and "stopped early |" in said
    )
    assert (tmp_path / "table.tuned.yaml").is_file() and "[1/1] A · seed 0: best" in said
