"""The figures of ``flcog compare``: scores against a number, and rounds to a target."""

import math
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest
from matplotlib.figure import Figure

from commands.test_compare import plan_file
from flcog.commands.compare.result_table import ResultTable
from flcog.commands.compare.results import Result
from flcog.commands.compare.score_figure import draw_scores
from flcog.commands.compare.table_file import read_table
from flcog.commands.compare.targets_figure import draw_targets

COLUMNS = {"none": {}, "flip 10": {}, "flip 30": {}}


def drawn(draw: Any, filled: ResultTable, where: str) -> list[Figure]:
    figures: list[Figure] = []
    with mock.patch(f"flcog.commands.compare.{where}.write_both", lambda make, out, name: figures.append(make()) or []):
        draw(filled, Path())
    return figures


def filled(folder: Path, scores: dict[str, dict[str, list[float]]], **content: Any) -> ResultTable:
    """A table whose arms have these scores by row, column and seed."""
    rows, columns = dict.fromkeys(scores), dict.fromkeys(next(iter(scores.values())))
    table = read_table(plan_file(folder, rows=rows, columns=columns, seeds=[0, 1, 2], **content))
    results = [
        Result(row, column, seed, True, 9, "test/accuracy", {"best": value})
        for row, cells in scores.items()
        for column, values in cells.items()
        for seed, value in enumerate(values)
    ]
    return ResultTable(table, results)


def test_rows_are_points_over_their_numbers(tmp_path: Path) -> None:
    scores = {"none": [0.9, 0.9, 0.9], "eps 8": [0.7, 0.8, 0.9], "eps 1": [0.4, 0.5, 0.6]}
    given = filled(
        tmp_path,
        {row: {"": values} for row, values in scores.items()},
        figure={"label": "Epsilon", "rows": {"eps 8": 8, "eps 1": 1}},
    )
    (figure,) = drawn(draw_scores, given, "score_figure")
    (axes,) = figure.axes
    (points,) = axes.containers
    assert [*points.lines[0].get_xdata()] == [1, 8] and [*points.lines[0].get_ydata()] == pytest.approx([50, 80])
    # Half of the interval is Student's t with two degrees of freedom, 4.303, times 10 / sqrt(3).
    (bars,) = points.lines[2]
    assert np.allclose(
        [segment[1][1] - segment[0][1] for segment in bars.get_segments()], 2 * 4.3027 * 10 / math.sqrt(3), rtol=1e-4
    )
    (level,) = [line for line in axes.lines if line.get_label() == "none"]
    assert np.allclose(level.get_ydata(), [90, 90]) and axes.get_xscale() == "log"
    assert axes.get_xlabel() == "Epsilon" and axes.get_ylabel() == "Test accuracy (%)"


def test_columns_are_points_of_a_line_for_each_row(tmp_path: Path) -> None:
    scores = {
        "mean": dict(zip(COLUMNS, ([0.8], [0.5], [0.1]), strict=True)),
        "median": dict(zip(COLUMNS, ([0.7], [0.7], [0.6]), strict=True)),
    }
    figure = {
        "label": "Attackers (%)",
        "columns": {"flip": {"none": 0, "flip 10": 10, "flip 30": 30}, "later": {"none": 0, "flip 10": 10}},
    }
    (found,) = drawn(draw_scores, filled(tmp_path, scores, figure=figure), "score_figure")
    first, second = found.axes
    assert [first.get_title(), second.get_title()] == ["flip", "later"]
    lines = {container.get_label(): container.lines[0] for container in first.containers}
    assert [*lines["mean"].get_ydata()] == pytest.approx([80, 50, 10]) and [*lines["median"].get_xdata()] == [0, 10, 30]


def test_tables_without_figure_or_targets_draw_nothing(tmp_path: Path) -> None:
    given = filled(tmp_path, {"A": {"": [0.5]}, "B": {"": [0.6]}})
    assert drawn(draw_scores, given, "score_figure") == drawn(draw_targets, given, "targets_figure") == []


def test_rounds_and_simulated_seconds_to_a_target(tmp_path: Path) -> None:
    table = read_table(plan_file(tmp_path, rows={"A": None, "B": None}, seeds=[0, 1]))
    name = "accuracy_0.75"
    results = [
        Result("A", "", 0, True, 9, targets={name: (4, 1)}, simulated={name: 40.0}, metric=None, scores={}),
        Result("A", "", 1, True, 9, targets={name: (6, 1)}, simulated={name: 90.0}, metric=None, scores={}),
        Result("B", "", 0, True, 9, targets={name: (5, 1)}, simulated={name: 10.0}, metric=None, scores={}),
        Result("B", "", 1, True, 9, metric=None, scores={}),
    ]
    (figure,) = drawn(draw_targets, ResultTable(table, results), "targets_figure")
    rounds, seconds = figure.axes
    assert [list(line.get_xdata()) for line in rounds.lines] == [[4, 6], [5, 5], [5]]  # A's points, A's mean, B's point
    assert list(seconds.lines[0].get_xdata()) == [40, 90]
    assert [text.get_text() for text in rounds.texts] == ["1 missed"]


@pytest.mark.parametrize(
    ("figure", "said"),
    [
        ("epsilon", "figure in .* must be .label: TEXT, rows"),
        ({"label": "x", "rows": {"A": 1}}, "must be .label"),
        ({"label": "x", "rows": {"A": 1, "B": "many"}}, "must be .label"),
        ({"label": "x", "rows": {"A": 1, "B": 2}, "columns": {}}, "must be .label"),
        ({"rows": {"A": 1, "B": 2}}, "must be .label"),
        ({"label": "x", "rows": {"A": 1, "C": 2}}, "names C; the rows of the table are A, B"),
        ({"label": "x", "columns": {"p": {"A": 1, "B": 2}}}, "names A; the columns of the table are"),
    ],
)
def test_wrong_figures_are_refused(figure: Any, said: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=said):
        read_table(plan_file(tmp_path, rows={"A": None, "B": None}, figure=figure))
