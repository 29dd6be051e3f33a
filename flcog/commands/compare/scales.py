"""Refuses targets and published figures on another scale than the scores: fractions for per cent, and per cent for fractions."""

from flcog.commands.compare.result_table import ResultTable
from flcog.core.monitor import lower_is_better, names_a_share


def check_scales(filled: ResultTable) -> None:
    """Refuse a target that no share can reach, and published fractions beside scores in percent."""
    shares = {column: metric for column in filled.columns if filled.is_percent(column) and (metric := _metric(filled, column))}
    for column, metric in shares.items():
        _check_target(filled, column, metric)
    pairs = [
        (figure.value, abs(filled.estimate(row, column).mean), metric)
        for column, metric in shares.items()
        for row, cells in filled.table.published.items()
        if not lower_is_better(metric) and (figure := cells.get(column, {}).get("score"))
    ]
    if any(ours > 1 for _, ours, _ in pairs) and all(value <= 1 for value, _, _ in pairs):
        value, _, metric = max(pairs)
        raise ValueError(
            f"published in {filled.table.name} has no score above {value:g}, but {metric} is shown in percent: write {100 * value:g}"
        )


def _metric(filled: ResultTable, column: str) -> str | None:
    return next((result.metric for result in filled.in_column(column) if result.metric), None)


def _check_target(filled: ResultTable, column: str, metric: str) -> None:
    target = filled.table.columns[column].target if column in filled.table.columns else None
    if target is not None and target > 1 and names_a_share(metric):
        where = f"column {column}" if column else "the column"
        raise ValueError(
            f"target of {where} in {filled.table.name} is {target:g}, but {metric} lies between 0 and 1: write {target / 100:g}"
        )
