"""Targets and published figures on another scale than the scores of a table."""

from pathlib import Path
from typing import Any

import pytest

from commands.test_compare import fake_run, filled, plan_file
from flcog.commands.cli import main
from flcog.commands.compare.plan import cells
from flcog.commands.compare.result_table import ResultTable
from flcog.commands.compare.scales import check_scales
from flcog.commands.compare.table_file import read_table


def table(folder: Path, scores: list[float], **content: Any) -> ResultTable:
    plan = read_table(plan_file(folder, columns={"x": {"target": content.pop("target", None)}}, **content))
    runs = cells(plan, folder / "out", [])
    for cell in runs:
        fake_run(cell, scores, finished=True, test__mse=scores, test__reward=scores, test__accuracy_std=scores)
    return filled(plan, runs)


@pytest.mark.parametrize("metric", [{}, {"metric": "test/accuracy"}, {"metrics": {"": "test/accuracy"}}])
def test_a_target_that_no_share_can_reach_is_refused(metric: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(
        ValueError, match=r"^target of column x in table is 60, but test/accuracy lies between 0 and 1: write 0\.6$"
    ):
        check_scales(table(tmp_path, [0.5, 0.75], target=60, **metric))


def test_published_fractions_beside_scores_in_percent_are_refused(tmp_path: Path) -> None:
    figures = {"A": {"x": 0.43}, "B": {"x": [0.5, 0.01]}}
    message = r"^published in table has no score above 0\.5, but test/accuracy is shown in percent: write 50$"
    with pytest.raises(ValueError, match=message):
        check_scales(table(tmp_path, [0.5, 0.75], published=figures))


@pytest.mark.parametrize(
    ("scores", "content"),
    [
        ([0.5, 0.75], {"target": 0.6, "published": {"A": {"x": 43}}}),
        ([50, 75], {"target": 60, "published": {"A": {"x": 43}}}),  # a module that logs its accuracy in percent
        ([0.5, 0.75], {"target": 60, "metric": "test/reward"}),
        ([0.5, 0.75], {"target": 60, "metric": "test/mse", "published": {"A": {"x": 0.43}}}),
        ([0.5, 0.75], {"metric": "test/accuracy_std", "published": {"A": {"x": 0.43}}}),  # in percentage points
        ([0.002, 0.004], {"published": {"A": {"x": 0.43}}}),  # a poor method
        ([0.5, 0.75], {"published": {"A": {"x": 0.43}, "B": {"x": 60}}}),
        ([0.5, 0.75], {"published": {"A": {"x": {"gain": 0.43}}}}),
    ],
)
def test_other_scales_are_allowed(scores: list[float], content: dict[str, Any], tmp_path: Path) -> None:
    check_scales(table(tmp_path, scores, **content))


def test_the_refusal_is_the_one_line_of_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    table(tmp_path, [0.5, 0.75], target=60)
    with pytest.raises(SystemExit):
        main(["compare", str(tmp_path / "table.yaml"), "--out", str(tmp_path / "out"), "--show"])
    said = capsys.readouterr()
    assert said.out.strip() == "" and not (tmp_path / "out/table.md").exists()
    assert "target of column x in table is 60" in said.err and len(said.err.strip().splitlines()) == 1
