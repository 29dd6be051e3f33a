"""Prints and writes a comparison: tables for people, and the same numbers as CSV, LaTeX and a figure."""

import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pandas

import flcog.callbacks
from flcog.commands.compare.figure import By, draw_curves
from flcog.commands.compare.notes import SAID, notes
from flcog.commands.compare.result_table import SUMMARIES, ResultTable
from flcog.commands.compare.statistics import estimate
from flcog.commands.compare.table import Figure, Quantity, Summary, Table
from flcog.commands.compare.verdicts import Verdict, verdicts
from flcog.core.files import replacing
from flcog.core.text import human, markdown, seconds
from flcog.core.waiting import DISTURBED

QUANTITIES: Mapping[Quantity, str] = {
    "score": "score",
    "gain": "gain",
    "rounds": "rounds to the target",
    "seconds": "total time",
    "bytes": "bytes sent in all",
    "saved": "bytes saved",
}
COSTS = ["seconds", "acting_seconds", "up_bytes", "total_bytes"]
BOUNDS = {name.lower() for name in flcog.callbacks.BOUNDS}
"""The config files of bounds for methods, such as centralised training."""
MARKS = {1.0: "textbf:--rwrap;", 2.0: "underline:--rwrap;"}
"""LaTeX for the best and the second score of a column, in the form of pandas."""


def report(table: Table, results: Sequence[Mapping[str, Any]], out: Path, by: By) -> None:
    """Print the filled table. If there are results, write the table and its curves into the folder of the runs."""
    filled = ResultTable(table, results)
    judged = verdicts(filled)
    said = text(filled, judged)
    print(f"\n{said}\n", flush=True)
    if not results:
        return
    frames = {"table.csv": numbers(filled), "differences.csv": differences(filled), "paper.csv": published_figures(judged)}
    contents = {"table.md": f"{said}\n", "table.tex": latex(filled)}
    contents |= {name: frame.to_csv(index=False, float_format="%.10g") for name, frame in frames.items() if len(frame)}
    for name, content in contents.items():
        with replacing(out / name, "w") as file:
            file.write(content)
    print(", ".join(str(path) for path in [*(out / name for name in contents), *draw_curves(filled, out, by)]))


def text(filled: ResultTable, judged: Sequence[Verdict]) -> str:
    """The title, the table, the differences, the paper's figures, the notes, and a table for each of several views."""
    table, several = filled.table, len(filled.views) > 1
    main = overview(filled) if several else in_view(filled, filled.views[0])
    parts = [
        table.title,
        f"Hypothesis, stated before the runs: {table.hypothesis}" if table.hypothesis else "",
        _markdown(pandas.concat([main, _costs(filled, " (all)" if several else "")], axis="columns")),
        _titled("Differences", _differences_text(filled)),
        _titled("The paper", _paper_text(filled, judged)),
        *notes(filled),
        *([_titled("The search for hyper-parameters", table.search.grid)] if table.search else []),
        *(_titled(view, in_view(filled, view)) for view in filled.views if several and len(filled.in_view(view))),
    ]
    return "\n\n".join(filter(None, parts))


def _titled(title: str, frame: pandas.DataFrame) -> str:
    return f"**{title}**\n\n{_markdown(frame)}" if len(frame) else ""


def _markdown(frame: pandas.DataFrame) -> str:
    """A table in Markdown without its empty columns."""
    kept = frame.loc[:, (frame != "").any()]
    return markdown(["", *kept], [[row, *cells] for row, cells in zip(kept.index, kept.to_numpy().tolist(), strict=True)])


def _lines(lines: Iterable[Mapping[str, Any]]) -> pandas.DataFrame:
    """A table of these lines, whose empty key is the row."""
    frame = pandas.DataFrame(list(lines))
    return frame.set_index("") if len(frame) else frame


def _by_row(filled: ResultTable, columns: Mapping[str, Callable[[str], str]]) -> pandas.DataFrame:
    """A table with a line for each row, and columns with functions for their texts."""
    return pandas.DataFrame({name: {row: write(row) for row in filled.table.rows} for name, write in columns.items()})


def overview(filled: ResultTable) -> pandas.DataFrame:
    """The compared score in each view, with the paper's in brackets."""

    def cell(view: str, row: str) -> str:
        paper = _published(filled, view, "score", row)
        return f"{score_text(filled, view, filled.summary(view), row)} {paper and f'[{paper}]'}".strip()

    return _by_row(filled, {view: partial(cell, view) for view in filled.views})


def in_view(filled: ResultTable, view: str) -> pandas.DataFrame:
    """All scores of one view, rounds to targets, savings, and the paper's figures."""
    results = filled.in_view(view)
    chosen, on_test = results.val.notna().any(), filled.metric(view).startswith("test/")
    named: dict[str, Summary] = {"best on test" if chosen and on_test else "best": "best"}
    named |= {"at best val": "val"} if chosen else {}
    named |= {"last": "last", f"mean of last {span(results.averaged[results.averaged > 0]) or filled.table.last}": "mean"}
    columns: dict[str, Callable[[str], str]] = {name: partial(score_text, filled, view, one) for name, one in named.items()}
    for target in sorted({target for line in results.itertuples() for target in (*line.targets, line.asked)} - {""}):
        columns[f"rounds to {target}"] = partial(_rounds_to, filled, view, target)
    columns["rounds and bytes saved"] = partial(_saving, filled, view)
    for quantity, name in QUANTITIES.items():
        columns[f"published {name}".removesuffix(" score")] = partial(_published, filled, view, quantity)
    return _by_row(filled, columns)


def _costs(filled: ResultTable, suffix: str) -> pandas.DataFrame:
    def sent(name: str, row: str) -> str:
        mean = filled.frame.loc[filled.frame.row == row, name].mean()
        return "" if math.isnan(mean) else human(round(mean))

    columns = {f"total time{suffix}": partial(_time, filled, "seconds")}
    columns |= {"time of an acting round": partial(_time, filled, "acting_seconds")}
    return _by_row(filled, {**columns, "sent up": partial(sent, "up_bytes"), "sent in all": partial(sent, "total_bytes")})


def number(value: float, decimals: int = 2) -> str:
    """Format a score."""
    return f"{value:.{decimals}f}" if abs(value) < 1e4 else f"{value:.4g}"


def score_text(filled: ResultTable, view: str, summary: Summary, row: str) -> str:
    """A score over seeds, with ± for several seeds, and with their number if seeds are missing."""
    scores, runs = filled.scores(row, view, summary), filled.of(row, view)
    diverged = f" ({runs.diverged.sum()} of {len(runs)} diverged)" if runs.diverged.any() else ""
    if not len(scores):
        return diverged.strip()
    spread, places = spread_of(filled, view, summary, row), filled.decimals[view]
    said = number(scores.mean(skipna=False), places) + ("" if math.isnan(spread) else f" ± {spread:.{places}f}") + diverged
    return said if len(scores) == len(filled.table.seeds) else f"{said} (n = {len(scores)})"


def spread_of(filled: ResultTable, view: str, summary: Summary, row: str) -> float:
    """The figure after ±. NaN for none."""
    spread, scores = filled.table.spread, filled.scores(row, view, summary)
    if summary == "mean" and spread == "rounds":
        return float(filled.of(row, view).deviation.mean())
    if spread == "interval":
        return estimate(scores.tolist()).half
    return float(scores.sem(skipna=False) if spread == "sem" else scores.std(skipna=False))


def _rounds_to(filled: ResultTable, view: str, target: str, row: str) -> str:
    """The mean rounds over seeds, bytes in both directions, and simulated seconds if time was simulated.

    If a seed missed the target, the number of rounds that did not suffice.
    """
    runs = filled.of(row, view)
    reached = pandas.DataFrame([found[target] for found in runs.targets if target in found])
    if not len(runs):
        return ""
    if len(reached) < len(runs):
        most = max(spent.rounds for found, spent in zip(runs.targets, runs.spent, strict=True) if target not in found)
        return f"> {most} ({len(reached)} of {len(runs)} seeds reached it)"
    mean = reached.mean(skipna=False)
    costs = [human(round(mean.bytes))] if math.isfinite(mean.bytes) else []
    costs += [f"{mean.simulated:,.0f} s simulated"] if math.isfinite(mean.simulated) else []
    return _count(mean.rounds) + (f" ({', '.join(costs)})" if costs else "")


def _count(mean: float) -> str:
    """A mean of whole numbers: "8" or "21.7"."""
    return f"{mean:.1f}".removesuffix(".0")


def span(counts: Collection[int]) -> str:
    """Format counts: "5", or "2 to 5"; empty for none."""
    return " to ".join(map(str, sorted({min(counts), max(counts)}))) if len(counts) else ""


def _saving(filled: ResultTable, view: str, row: str) -> str:
    """ "22.0x, 95.0 %", or "> 25.0x, > 95.6 %" for lower bounds."""
    found = filled.saving(row, view)
    more = "> " if found and found.beyond else ""
    percent = f", {more}{found.percent.mean:.1f} %" if found and found.percent.count else ""
    return f"{more}{found.times.mean:.1f}x{percent}" if found else ""


def _published(filled: ResultTable, view: str, quantity: Quantity, row: str) -> str:
    figure = filled.table.figures(row, view).get(quantity)
    return "" if figure is None else figure_text(figure, quantity, filled.decimals[view])


def figure_text(figure: Figure, quantity: Quantity, decimals: int = 2) -> str:
    """Format a paper's figure: "73.07 ± 0.08", "> 100", "983 s ± 100 s", "1.2 GiB", "> 95.6 %", "+14.00 to +20.00"."""
    writers: Mapping[Quantity, Callable[[float], str]] = {
        "score": lambda value: number(value, decimals),
        "gain": lambda value: f"{value:+.{decimals}f}",
        "rounds": _count,
        "seconds": seconds,
        "bytes": human,
        "saved": lambda value: f"{value:.1f} %",
    }
    write = writers[quantity]
    if figure.within:
        return f"{write(figure.value - figure.within)} to {write(figure.value + figure.within)}"
    spread = "" if figure.spread is None else f" ± {write(figure.spread).removeprefix('+')}"
    return ("> " if figure.beyond else "") + write(figure.value) + spread


def _time(filled: ResultTable, name: str, row: str) -> str:
    """The mean of a time over runs, and its ratio to the first row's in common views and seeds, if both had the same machine.

    † marks a time that is too long, because other programs used the same cores.
    """
    first = next(iter(filled.table.rows))
    timed = filled.frame[filled.frame[name] > 0].set_index(["view", "seed"])
    runs = timed[timed.row == row]
    if not len(runs):
        return ""
    pairs = runs.join(timed[timed.row == first], rsuffix="_first", how="inner")
    undisturbed = pairs[["waiting", "waiting_first"]].max(axis="columns") <= DISTURBED
    alike = len(pairs) and (undisturbed & (pairs.machine == pairs.machine_first)).all()
    ratio = f"{pairs[name].sum() / pairs[f'{name}_first'].sum():.2f} " if alike else ""
    return f"{ratio}({seconds(runs[name].mean())})" + " †" * bool((runs.waiting > DISTURBED).any())


def _differences_text(filled: ResultTable) -> pandas.DataFrame:
    """The differences between rows, with 95 % intervals or the reason for their absence."""

    def line(one: Any) -> dict[str, Any]:
        places, interval = filled.decimals[one.column], f"the same with all {one.seeds} seeds: no interval"
        if one.high > one.low:
            interval = f"{number(one.low, places)} to {number(one.high, places)}"
        elif one.seeds == 1:
            interval = "one seed: no interval"
        p, p_holm = ("" if p != p else f"{p:.3f}" if p >= 0.001 else "< 0.001" for p in (one.p, one.p_holm))
        place = {"": one.row, "setting": one.column, "against": one.against, "seeds": one.seeds}
        return place | {"difference": f"{one.difference:+.{places}f}", "95 % interval": interval, "p": p, "p (Holm)": p_holm}

    return _lines(map(line, differences(filled).itertuples()))


def _paper_text(filled: ResultTable, judged: Sequence[Verdict]) -> pandas.DataFrame:
    """The paper's figures beside ours, of rows that were run."""
    return _lines(figure_line(filled, one) for one in judged if one.ours.judged.count or one.ours.bound)


def figure_line(filled: ResultTable, one: Verdict) -> dict[str, Any]:
    """A published figure beside ours, as text."""
    places, rounds = filled.decimals[one.view], one.quantity == "rounds"
    form = "{:.2f} to {:.2f} times" if rounds else f"{{:+.{places}f}} to {{:+.{places}f}}"
    ours = one.ours.bound or (figure_text(Figure(one.ours.mean), one.quantity, places) if one.ours.judged.count else "")
    return {
        "": one.row,
        "setting": one.view,
        "figure": QUANTITIES[one.quantity],
        "ours": ours,
        "seeds": one.ours.judged.count,
        "published": figure_text(one.published, one.quantity, places),
        "95 % interval of the difference": form.format(*one.interval) if one.interval else "",
        "verdict": one.shown,
    }


def numbers(filled: ResultTable) -> pandas.DataFrame:
    """A line for each row and column: means over seeds, and deviations (``*_std``), of scores, costs, and rounds and bytes to targets."""
    frame = filled.frame.assign(column=filled.frame["view"])
    for target in sorted({target for found in frame.targets for target in found}):
        for name in ("rounds", "bytes", "simulated"):
            frame[f"{name}_to_{target}"] = [getattr(one[target], name) if target in one else math.nan for one in frame.targets]
    to_target = [name for name in frame if "_to_" in name]
    runs = frame.groupby(["row", "column"], sort=False)
    counts = runs.agg(
        seeds=("seed", "count"), finished=("finished", "sum"), diverged=("diverged", "sum"), metric=("metric", "first")
    )
    deviations = runs[list(SUMMARIES)].std().add_suffix("_std")
    means = runs[[*SUMMARIES, *COSTS, *to_target]].mean()
    means[to_target] = means[to_target].where(runs[to_target].count().eq(runs.size(), axis="index"))  # NaN if a seed missed it
    return pandas.concat([counts, means, deviations], axis="columns").dropna(axis="columns", how="all").reset_index()


def differences(filled: ResultTable) -> pandas.DataFrame:
    """A line for each comparison of two rows, paired by seed, with the ends of the 95 % interval."""
    columns = ["row", "column", "against", "seeds", "difference", "low", "high", "p", "p_holm"]
    lines = [
        (row, view, against, one.count, one.mean, one.low, one.high, one.p, p_holm)
        for view in filled.views
        for row, (against, one, p_holm) in filled.comparisons(view).items()
    ]
    return pandas.DataFrame(lines, columns=columns)


def published_figures(judged: Sequence[Verdict]) -> pandas.DataFrame:
    """A line for each published figure of a row that was run, with the 95 % interval of the difference."""
    columns = ["row", "column", "figure", "ours", "seeds", "published", "published_std", "low", "high", "verdict"]
    lines = [
        (row, view, quantity, ours.mean, ours.judged.count, *figure[:2], *(interval or (None, None)), shown)
        for row, view, quantity, figure, ours, interval, shown in ((*one[:6], one.shown) for one in judged)
        if ours.judged.count
    ]
    return pandas.DataFrame(lines, columns=columns)


def latex(filled: ResultTable) -> str:
    """The scores of finished runs in LaTeX with booktabs, the best of each column bold, the second underlined; bounds have no rank."""
    bounds = [row for row, part in filled.table.rows.items() if {path.stem for path in part.configs} & BOUNDS]
    shown, marks = {}, {}
    for view in filled.views:
        places, summary, texts = filled.decimals[view], filled.summary(view), {}
        means = {row: filled.scores(row, view, finished=True).mean(skipna=False) for row in filled.table.rows}
        for row, mean in means.items():
            spread = spread_of(filled, view, summary, row)
            after = "" if math.isnan(spread) else rf" {{\scriptsize $\pm$ {spread:.{places}f}}}"
            texts[row] = "--" if math.isnan(mean) else number(mean, places) + after
        smaller = filled.lower_is_better(view)
        ranks = pandas.Series(means).drop(bounds).round(places).rank(method="dense", ascending=smaller)
        shown[view or "Score"], marks[view or "Score"] = texts, ranks.map(lambda rank: MARKS.get(rank, ""))
    frame = pandas.DataFrame(shown, index=list(filled.table.rows))
    style = frame.style.apply(lambda _: pandas.DataFrame(marks, index=frame.index).fillna(""), axis=None)
    style = style.format_index(escape="latex", axis="index").format_index(escape="latex", axis="columns")
    title = filled.table.title.rstrip(".").translate({ord(letter): f"\\{letter}" for letter in "&%$#_{}"})
    caption = f"{title}. {SAID[filled.table.summary].capitalize()}; best in bold, second underlined."
    return style.to_latex(hrules=True, caption=caption, position_float="centering", column_format="l" + "c" * len(frame.columns))
