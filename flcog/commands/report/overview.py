"""The report's first part: what was run, what came out, what it cost."""

import html
import re
import statistics
from collections.abc import Callable, Iterable, Sequence

from flcog.commands.report.charts import DASHES, NUM_COLOURS, Axis
from flcog.commands.report.run_files import RunFiles
from flcog.core.text import seconds
from flcog.wire.ledger import human

SHARES = re.compile(r"accuracy|(^|/)acc$|-(AP|F1|P|R)$|jain")
"""Scores that are shown as per cent."""


def axis_of(column: str) -> Axis:
    """How a column's values are written."""
    unit = "%" if SHARES.search(column) and "variance" not in column else "bytes" if "bytes" in column else ""
    return Axis(column, unit)


def labels(runs: Sequence[RunFiles]) -> list[str]:
    """A short name for each run: its methods, and what else it takes to tell it from the others."""
    parts: tuple[Callable[[RunFiles], str], ...] = (
        _method_names,
        lambda run: f"{_method_names(run)}, seed {run.setting.get('seed', 'unknown')}",
        lambda run: f"{_method_names(run)}, {run.name}",
        lambda run: f"{_method_names(run)}, {run.directory}",
    )
    return next((found for part in parts if len(set(found := [part(run) for run in runs])) == len(runs)), [r.name for r in runs])


def _method_names(run: RunFiles) -> str:
    return " + ".join(text.partition("(")[0] for text in run.setting.get("methods") or []) or "FedAvg"


def results(runs: Sequence[RunFiles], names: Sequence[str]) -> str:
    """A row for each run: its best round and its last, its bytes and its time."""
    head = ["run", "score", "best", "last", "rounds", "sent up", "sent down", "a round took", "methods"]
    rows = [
        [f"{_key(number)}{html.escape(names[number])}", *map(html.escape, _result(run)), long(run.methods)]
        for number, run in enumerate(runs)
    ]
    return panel(table(head, rows)) + "".join(_warnings(runs))


def _result(run: RunFiles) -> list[str]:
    rows, main, chosen = run.rows, run.main, run.chosen
    best = last = "not measured"
    if main is not None and chosen is not None:
        axis, unit = axis_of(main), " %" if axis_of(main).unit == "%" else ""
        best = f"{axis.text(chosen[main])}{unit}, round {chosen['round']:,}" if main in chosen else "not measured"
        last = axis.text(run.points(main)[-1][1]) + unit
    times = [row["time/round"] for row in rows if "time/round" in row]
    planned = run.config.get("trainer", {}).get("rounds", len(rows))
    return [
        main or "none",
        best,
        last,
        f"{rows[-1]['round']:,}" + (f" of {planned:,}" if planned != rows[-1]["round"] else ""),
        *(human(sum(row.get(f"comm/{way}_bytes", 0) for row in rows)) for way in ("up", "down")),
        seconds(statistics.median(times)) if times else "unknown",
    ]


def long(text: str) -> str:
    """A cell that may have several lines."""
    return f'<div class="long">{html.escape(text)}</div>'


def _warnings(runs: Sequence[RunFiles]) -> Iterable[str]:
    for name in sorted({run.chooser for run in runs if run.chooser is not None}):
        if name.startswith("test/"):
            text = f"by {name}, on the test set itself, which flatters; with data.client_val above 0 a run picks it on validation data"
        else:
            text = f"by {name}: the test set had no say in it"
        yield f'<p class="note">The best round is picked {text}.</p>'


def _key(number: int) -> str:
    return (
        f'<svg class="key" viewBox="0 0 30 10" aria-hidden="true"><line class="s{number % NUM_COLOURS} line" '
        f'stroke-dasharray="{DASHES[number % len(DASHES)]}" x1="1" x2="29" y1="5" y2="5"/></svg>'
    )


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table whose cells are HTML already; the first of each row names it."""
    header = "".join(f'<th scope="col">{html.escape(name)}</th>' for name in head)
    body = "".join(
        f'<tr><th scope="row">{first}</th>{"".join(f"<td>{cell}</td>" for cell in rest)}</tr>' for first, *rest in rows
    )
    return (
        f'<div class="wide" tabindex="0" role="region" aria-label="{html.escape(head[0])}"><table><thead><tr>{header}</tr></thead>'
        f"<tbody>{body}</tbody></table></div>"
    )


def panel(content: str) -> str:
    return f'<div class="panel">{content}</div>'
