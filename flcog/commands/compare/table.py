"""The filled table of a comparison: best and last scores over seeds, rounds to a target, time and bytes sent."""

import math
import statistics
from collections.abc import Mapping, Sequence

from flcog.commands.compare.plan import Cell, Table
from flcog.commands.compare.published import Figure, Quantity
from flcog.core.ledger import human
from flcog.core.monitor import lower_is_better, main_metric
from flcog.core.text import seconds


def summarise(table: Table, runs: Sequence[Cell]) -> tuple[list[str], list[list[str]]]:
    """Header and rows: for each setting best, last and the mean of the last evaluations, over seeds; then the cost.

    Where runs counted the rounds to a target (``RoundsToTarget``), these stand beside the scores, with the bytes both ways.
    """
    several = len(table.columns) > 1
    histories = {(cell.row, cell.column, cell.seed): cell.history() for cell in runs}
    targets = {column: _targets([history for key, history in histories.items() if key[1] == column]) for column in table.columns}
    header = [""]
    for column in table.columns:
        whats = ["best", "last", f"last {table.last}", *(f"rounds to {target.removeprefix('to_')}" for target in targets[column])]
        header += [f"{column} {what}".strip() for what in whats]
    if table.published:
        header += [f"{column} published".strip() for column in table.columns]
    header += ["time" if not several else "time (all)", "sent up"]
    rows, first_time = [], math.nan
    for row in table.rows:
        line, times, sent = [f"{row}"], [], []
        for column in table.columns:
            found = [history for key, history in histories.items() if key[:2] == (row, column) and history]
            line += scores(table.metric, found, table.last)
            line += [_rounds_to(target, found) for target in targets[column]]
            for history in found:
                times.append(statistics.median(values["time/round"] for values in history if "time/round" in values))
                sent.append(sum(values.get("comm/up_bytes", 0) for values in history))
        if table.published:
            line += [_published(table.published.get(row, {}).get(column, {})) for column in table.columns]
        mean_time = statistics.mean(times) if times else math.nan
        if math.isnan(first_time):
            first_time = mean_time
        ratio = mean_time / first_time
        line += [f"{ratio:.2f} ({seconds(mean_time)})" if times else "", human(round(statistics.mean(sent))) if sent else ""]
        rows.append(line)
    return header, rows


def _targets(histories: Sequence[Sequence[dict[str, float]]]) -> list[str]:
    """The targets that ``RoundsToTarget`` logged, such as ``to_accuracy_0.8``."""
    names = {name for history in histories for values in history for name in values}
    return sorted(name.removesuffix("/rounds") for name in names if name.startswith("to_") and name.endswith("/rounds"))


def _rounds_to(target: str, histories: Sequence[Sequence[dict[str, float]]]) -> str:
    """The mean over seeds, of rounds and of bytes up and down; how many rounds did not suffice where one seed did not get there."""
    reached = [next((values for values in history if f"{target}/rounds" in values), None) for history in histories]
    if not all(reached):
        return f"> {max(int(history[-1]['round']) for history in histories)}"
    rows = [values for values in reached if values]
    if not rows:
        return ""
    sent = statistics.mean(values[f"{target}/up_bytes"] + values[f"{target}/down_bytes"] for values in rows)
    return f"{statistics.mean(values[f'{target}/rounds'] for values in rows):g} ({human(round(sent))})"


def compared_metric(metric: str | None, histories: Sequence[Sequence[dict[str, float]]]) -> str | None:
    """The column that is compared: the named one, or the main one of what was evaluated."""
    return metric or next((name for history in histories for values in history[-1:] if (name := main_metric(values))), None)


def _published(quantities: Mapping[Quantity, Figure]) -> str:
    figure = quantities.get("score")
    return "" if figure is None else f"{figure.value:.2f}" + ("" if figure.spread is None else f" ± {figure.spread:.2f}")


def check_metric(metric: str | None, histories: Sequence[Sequence[dict[str, float]]]) -> None:
    """Complain of a table's metric that no finished run has logged."""
    logged = sorted({name for history in histories for values in history for name in values})
    if metric and logged and metric not in logged:
        raise ValueError(
            f"no run logged the table's metric {metric}, but {', '.join(logged)}: correct `metric` and give the same command again; "
            f"nothing is run twice"
        )


def scores(metric: str | None, histories: Sequence[Sequence[dict[str, float]]], count: int = 1) -> list[str]:
    """Best, last, and the mean of the last ``count``; in percent where the metric is a share."""
    found = compared_metric(metric, histories)
    series = [[values[found] for values in history if found in values] for history in histories] if found else []
    series = [values for values in series if values]
    if not series or found is None:
        return ["", "", ""]
    lower = lower_is_better(found)
    best = [min(values) if lower else max(values) for values in series]
    share = not lower_is_better(found.removesuffix("_std"))  # the spread of a share is shown in percentage points
    scale = 1.0 if not share or max(abs(value) for values in series for value in values) > 1 else 100.0
    return [
        _spread([scale * v for v in values])
        for values in (best, [s[-1] for s in series], [statistics.mean(s[-count:]) for s in series])
    ]


def _spread(values: Sequence[float]) -> str:
    mean = statistics.mean(values)
    text = f"{mean:.2f}" if abs(mean) < 1e4 else f"{mean:.4g}"
    return text if len(values) == 1 else f"{text} ± {statistics.stdev(values):.2f}"
