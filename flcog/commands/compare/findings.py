"""What a comparison found, in tables and sentences: how the rows differ, which published figures are reproduced, what to bear in mind."""

import math
from collections.abc import Mapping, Sequence

from flcog.commands.compare.filled import Comparison, Filled
from flcog.commands.compare.paired import Difference, Estimate
from flcog.commands.compare.plan import Summary, Table, file_name
from flcog.commands.compare.published import Figure, Quantity
from flcog.commands.compare.results import Result, number
from flcog.commands.compare.table import Spread, figure_text
from flcog.commands.compare.verdicts import Verdict, verdicts
from flcog.core.text import markdown

SUMMARIES: Mapping[Summary, str] = {
    "best": "best evaluation",
    "last": "last evaluation",
    "mean": "mean of the last evaluations",
    "val": "score at the best validation",
}


FIGURES: Mapping[Quantity, str] = {
    "score": "score",
    "rounds": "rounds to the target",
    "seconds": "total time",
    "bytes": "bytes sent in all",
    "saved": "bytes saved",
}


def compared(table: Table) -> str:
    """Which score of a run is compared: "best evaluation", or "best evaluation (of training the last evaluation)"."""
    own: dict[Summary, list[str]] = {}
    for column, part in table.columns.items():
        if part.summary is not None and part.summary != table.summary:
            own.setdefault(part.summary, []).append(column)
    others = "; ".join(f"of {' and '.join(columns)} the {SUMMARIES[summary]}" for summary, columns in own.items())
    return SUMMARIES[table.summary] + (f" ({others})" if others else "")


def percent(confidence: float) -> str:
    return f"{100 * confidence:g} %"


def interval_text(found: Estimate) -> str:
    """ "72.10 to 74.04", or why there is none."""
    if found.count == 1:
        return "one seed: no interval"
    if not found.has_interval:
        return f"the same with all {found.count} seeds: no interval"
    return f"{number(found.low)} to {number(found.high)}"


def p_text(p: float) -> str:
    return "" if p != p else f"{p:.3f}" if p >= 0.001 else "< 0.001"


def difference_table(filled: Filled) -> str:
    """How each row differs from the one that it is compared with; empty where none has run."""
    confidence = percent(filled.table.confidence)
    header = ["", "setting", "against", "seeds", "difference", f"{confidence} interval", "p", "p (Holm)"]
    found = [(column, row, found) for column in filled.columns for row, found in filled.comparisons(column).items()]
    return _table(header, [[row, column, *_difference_row(comparison)] for column, row, comparison in found])


def _difference_row(comparison: Comparison) -> list[str | int]:
    found = comparison.difference
    shown = [_signed(found.mean), interval_text(found), p_text(found.p), p_text(comparison.p_holm)]
    return [comparison.against, found.count, *shown]


def paper_table(filled: Filled) -> str:
    """Ours beside the paper's figures; empty where it has none, or none of its rows has been run."""
    confidence = percent(filled.table.confidence)
    header = ["", "setting", "figure", "ours", f"{confidence} interval", "seeds", "published"]
    header += ["our gain", "published gain", "reproduced"]
    rows = [_paper_row(verdict) for verdict in verdicts(filled) if verdict.ours is None or verdict.ours.count]
    return _table(header, rows)


def _paper_row(verdict: Verdict) -> list[str | int]:
    ours, quantity = verdict.ours, verdict.quantity
    gain = ["", ""] if verdict.gain is None else [_gain_text(verdict.gain[0]), _signed(verdict.gain[1])]
    mean = verdict.text if ours is None else figure_text(Figure(ours.mean), quantity)
    half = "" if ours is None or not ours.has_interval else figure_text(Figure(ours.half), quantity)
    interval = "" if ours is None or quantity == "bytes" else f"± {half}" if half else interval_text(ours)
    published = figure_text(verdict.published, quantity)
    count = "" if ours is None else ours.count
    return [verdict.row, verdict.column, FIGURES[quantity], mean, interval, count, published, *gain, verdict.mark]


def _gain_text(gain: Difference) -> str:
    return _signed(gain.mean) + (f" ± {gain.half:.2f}" if gain.has_interval else "")


def _signed(value: float) -> str:
    return f"{value:+.2f}"


def _table(header: list[str], rows: Sequence[Sequence[str | int]]) -> str:
    """In Markdown, without columns that say nothing."""
    if not rows:
        return ""
    kept = [place for place in range(len(header)) if any(row[place] != "" for row in rows)]
    return markdown([header[place] for place in kept], [[row[place] for place in kept] for row in rows])


def notes(filled: Filled, spread: Spread) -> list[str]:
    """What a reader has to know of the figures, a sentence or two each."""
    table = filled.table
    results = [result for column in table.columns for result in filled.in_column(column)]
    what = compared(table)
    said = [_note_on_scores(filled), _note_on_spread(filled, spread)]
    if len(filled.columns) > 1:
        brackets = "; the paper's is in brackets" if table.published else ""
        said.append(f"The first table has the {what} of each run{brackets}.")
    pairs = [found.difference.count for column in filled.columns for found in filled.comparisons(column).values()]
    if pairs and max(pairs) == 1:
        said.append(f"Rows are compared by the {what} of one seed, of which there is neither interval nor test.")
    elif pairs:
        said.append(
            f"Rows are compared by the {what}, paired by seed and split, finished runs only: the mean difference, Student's "
            f"{percent(table.confidence)} interval and two-sided paired t-test, and p adjusted by Holm over the rows of a setting."
        )
    if not table.varies_split and any(filled.estimate(result.row, result.column).count > 1 for result in results):
        said.append(
            "All seeds share one split of the data: an interval is of what else a seed draws, and says nothing of other splits."
        )
    if paper_table(filled):
        said.append(
            f"Reproduced: the published figure lies in our {percent(table.confidence)} interval of the mean over seeds (widened by the "
            "paper's rounding), and the published gain over the row compared with lies in our interval of the paired difference, whose "
            "mean has its sign. A wide interval holds many figures, so look at its width, too. One seed has no interval and no mark; "
            "bytes are the paper's within one per cent; seconds are another machine's and not judged, nor are runs with other settings "
            "than the table's."
        )
    if any(result.seconds > 0 for result in results):
        said.append(
            "Times are means over runs, beside the first row's over the settings and seeds that both have: the whole training, without "
            "evaluations and what is prepared before round 1, and a round in which all of the arm's methods act."
        )
    said += [_note_on_shared_rounds(filled, results), _note_on_other_load(results), _note_on_bytes(results)]
    unfinished = [f"{result.name} (round {result.rounds})" for result in filled.unfinished]
    if unfinished:
        said.append(f"Not finished, and left out wherever another seed has: {'; '.join(unfinished)}.")
    said += [_note_on_other_settings(results), _note_on_no_numbers(filled)]
    outdated = [result.name for result in results if result.outdated]
    if outdated:
        said.append(f"Run before the table was changed: {'; '.join(outdated)}.")
    said += [f"Not as in the paper, or not said there: {deviation.rstrip('.')}." for deviation in table.deviations]
    return [note for note in said if note]


def _note_on_other_load(results: Sequence[Result]) -> str:
    """Which runs other programs slowed down."""
    slowed = [f"{result.name} ({percent(round(result.waiting, 2))})" for result in results if result.disturbed]
    if not slowed:
        return ""
    return (
        "A time with † is too long, because other programs ran on the same cores. In brackets, the share of the time that a run waited "
        f"for a core: {'; '.join(slowed)}. Do not compare such times."
    )


def _note_on_bytes(results: Sequence[Result]) -> str:
    """What bytes are of."""
    if not any(result.up_bytes > 0 or result.total_bytes > 0 for result in results):
        return ""
    to_target = "; those beside rounds to a target are both ways, until then" if any(result.targets for result in results) else ""
    return (
        "Bytes are of all clients and rounds, means over runs: sent up is from clients to server, sent in all is both ways, with what "
        f"was sent before round 1{to_target}."
    )


def _note_on_other_settings(results: Sequence[Result]) -> str:
    """Which runs had options of the command beside the table's."""
    given: dict[str, list[str]] = {}
    for result in results:
        if result.arguments:
            given.setdefault(result.arguments, []).append(result.name)
    named = [f"{words} ({'every run' if len(names) == len(results) else '; '.join(names)})" for words, names in given.items()]
    return f"Run with other settings than the table's: {', and '.join(named)}." if named else ""


def _note_on_no_numbers(filled: Filled) -> str:
    """Which finished runs have no number to compare, as those that diverged."""
    names = [
        f"{row} · {column} · seed {seed}" if column else f"{row} · seed {seed}"
        for column in filled.table.columns
        for row in filled.table.rows
        for seed, score in filled.scores(row, column, filled.table.summary_of(column), finished=True).items()
        if not math.isfinite(score)
    ]
    return f"Without a number at the end, and left out of intervals and differences: {'; '.join(names)}." if names else ""


def _note_on_scores(filled: Filled) -> str:
    metrics = dict.fromkeys(result.metric for column in filled.columns for result in filled.in_column(column) if result.metric)
    if not metrics:
        return ""
    unit = "in percent" if any(map(filled.is_percent, filled.columns)) else "as logged"
    text = f"Scores are {' and '.join(metrics)}, {unit}."
    if any(metric.startswith("test/") for metric in metrics):
        text += " The best one is picked on the test set, as papers do, which flatters"
        chosen = any("val" in result.scores for column in filled.columns for result in filled.in_column(column))
        text += ": the one at the best validation does not." if chosen else "; no run had a validation set to choose by."
    return text


def _note_on_shared_rounds(filled: Filled, results: Sequence[Result]) -> str:
    """Whose rounds are in times that are not an arm's own."""
    arms = {file_name(row): row for row in filled.table.rows}
    found = dict.fromkeys((result.row, result.shared_rounds, result.trunk) for result in results if result.shared_rounds)
    if not found:
        return ""
    whose = "; ".join(f"the first {rounds} of {row} are those of {arms.get(trunk, trunk)}" for row, rounds, trunk in found)
    return (
        f"A time with * counts rounds that were trained, and timed, once for several arms: {whose}. "
        "To time every arm by itself, run the table with --no-trunks."
    )


def _note_on_spread(filled: Filled, spread: Spread) -> str:
    words = {
        "std": "the standard deviation over seeds",
        "sem": "the standard error of the mean over seeds",
        "interval": f"half of the {percent(filled.table.confidence)} interval of the mean over seeds",
    }
    several = any(len(filled.of(row, column)) > 1 for row in filled.table.rows for column in filled.columns)
    over_rounds = "after ±, that of the mean of the last evaluations is their standard deviation, averaged over seeds"
    text = f"± is {words[spread]}" if several else ""
    if filled.table.over_rounds:
        text = f"{text}; {over_rounds}" if text else over_rounds.replace("after ±, that", "The ±")
    return f"{text}." if text else ""
