"""The notes below the tables of a comparison, which tell a reader how to read the figures."""

import math
from collections.abc import Iterator

from flcog.commands.compare.filled import Filled
from flcog.commands.compare.findings import compared, paper_table, percent
from flcog.commands.compare.plan import file_name
from flcog.commands.compare.table import Spread


def notes(filled: Filled, spread: Spread) -> list[str]:
    """One or two sentences on each topic that concerns the table."""
    found = (
        _on_scores(filled),
        _on_spread(filled, spread),
        _on_comparisons(filled),
        _on_the_split(filled),
        _on_the_paper(filled),
        _on_times(filled),
        _on_bytes(filled),
        _on_runs(filled),
    )
    different = [f"Different from the paper, or not stated there: {text.rstrip('.')}." for text in filled.table.deviations]
    return [*(note for topic in found for note in topic), *different]


def _on_scores(filled: Filled) -> Iterator[str]:
    metrics = dict.fromkeys(result.metric for column in filled.columns for result in filled.in_column(column) if result.metric)
    if not metrics:
        return
    unit = "in percent" if any(map(filled.is_percent, filled.columns)) else "as logged"
    text = f"Scores are {' and '.join(metrics)}, {unit}."
    if any(metric.startswith("test/") for metric in metrics):
        chosen = any("val" in result.scores for result in filled.results)
        other = "the score at the best validation is not" if chosen else "no run had a validation set"
        text += f" The best score is picked on the test set, as papers do, and is therefore too good; {other}."
    yield text


def _on_spread(filled: Filled, spread: Spread) -> Iterator[str]:
    words = {
        "std": "the standard deviation over seeds",
        "sem": "the standard error of the mean over seeds",
        "interval": f"half of the {percent(filled.table.confidence)} interval of the mean over seeds",
    }
    if any(len(filled.of(row, column)) > 1 for row in filled.table.rows for column in filled.columns):
        yield f"± is {words[spread]}."
    if filled.table.over_rounds:
        yield "The ± of the mean of the last evaluations is their standard deviation, averaged over seeds."


def _on_comparisons(filled: Filled) -> Iterator[str]:
    score = compared(filled.table)
    if len(filled.columns) > 1:
        brackets = "; the paper's is in brackets" if filled.table.published else ""
        yield f"The first table has the {score} of each run{brackets}."
    pairs = [found.difference.count for column in filled.columns for found in filled.comparisons(column).values()]
    if pairs and max(pairs) == 1:
        yield f"Rows are compared by the {score} of one seed, which allows neither an interval nor a test."
    elif pairs:
        yield (
            f"Rows are compared by the {score} of finished runs, in pairs of the same seed and split: the mean difference, Student's "
            f"{percent(filled.table.confidence)} interval, a two-sided paired t-test, and Holm's correction over the rows of a setting."
        )


def _on_the_split(filled: Filled) -> Iterator[str]:
    several = any(filled.estimate(result.row, result.column).count > 1 for result in filled.results)
    if several and not filled.table.varies_split:
        yield "All seeds share one split of the data, so the intervals tell nothing about other splits."


def _on_the_paper(filled: Filled) -> Iterator[str]:
    if paper_table(filled):
        yield (
            f"A published figure is reproduced if our {percent(filled.table.confidence)} interval of the mean over seeds, widened by the "
            "paper's rounding, contains it. A published gain over the compared row is reproduced if our interval of the paired difference "
            "contains it and the difference has the same sign. A wide interval contains many figures, so look at its width, too. One seed "
            "has no interval and no mark. Bytes are reproduced within one per cent. Seconds depend on the machine and are not judged, "
            "and neither are runs with other settings than the table's."
        )


def _on_times(filled: Filled) -> Iterator[str]:
    if any(result.seconds > 0 for result in filled.results):
        yield (
            "Times are means over runs, and relative to the first row's in the same settings and with the same seeds: the whole training, "
            "without evaluations and preparations before round 1, and a round with all of the arm's methods."
        )
    arms = {file_name(row): row for row in filled.table.rows}
    shared = dict.fromkeys((run.row, run.shared_rounds, run.trunk) for run in filled.results if run.shared_rounds)
    if shared:
        rounds = "; ".join(f"{arms.get(trunk, trunk)} trained the first {count} of {row}" for row, count, trunk in shared)
        yield (
            f"A time with * includes rounds that were trained, and timed, once for several arms: {rounds}. "
            "To time every arm by itself, run the table with --no-trunks."
        )
    slowed = [f"{result.name} ({percent(round(result.waiting, 2))})" for result in filled.results if result.disturbed]
    if slowed:
        yield (
            "A time with † is too long, because other programs used the same cores. The brackets show the share of the time that a run "
            f"waited for a core: {'; '.join(slowed)}. Do not compare such times."
        )


def _on_bytes(filled: Filled) -> Iterator[str]:
    if any(result.up_bytes > 0 or result.total_bytes > 0 for result in filled.results):
        targets = "; bytes to a target count in both directions" if any(result.targets for result in filled.results) else ""
        yield (
            "Bytes are means over runs, for all clients and rounds and for exchanges before round 1: sent up counts from clients to "
            f"server, sent in all counts in both directions{targets}."
        )


def _on_runs(filled: Filled) -> Iterator[str]:
    """Runs that differ from the others, or that some figures leave out."""
    if unfinished := [f"{result.name} (round {result.rounds})" for result in filled.unfinished]:
        yield f"Not finished, and left out if another seed has finished: {'; '.join(unfinished)}."
    given: dict[str, list[str]] = {}
    for result in filled.results:
        if result.arguments:
            given.setdefault(result.arguments, []).append(result.name)
    named = [
        f"{words} ({'every run' if len(names) == len(filled.results) else '; '.join(names)})" for words, names in given.items()
    ]
    if named:
        yield f"Run with other settings than the table's: {', and '.join(named)}."
    infinite = [
        " · ".join(filter(None, (row, column, f"seed {seed}")))
        for column in filled.table.columns
        for row in filled.table.rows
        for seed, score in filled.scores(row, column, filled.table.summary_of(column), finished=True).items()
        if not math.isfinite(score)
    ]
    if infinite:
        yield f"Without a finite score at the end, and left out of intervals and differences: {'; '.join(infinite)}."
    if outdated := [result.name for result in filled.results if result.outdated]:
        yield f"Run before the table was changed: {'; '.join(outdated)}."
