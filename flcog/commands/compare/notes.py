"""The notes below the tables of a comparison, which tell a reader how to read the figures."""

import math
from collections import Counter
from collections.abc import Iterator, Mapping

from flcog.commands.compare.facts import UNKNOWN
from flcog.commands.compare.findings import compared, paper_table, percent
from flcog.commands.compare.plan import joined
from flcog.commands.compare.result_table import ResultTable
from flcog.commands.compare.table import Spread
from flcog.core.git import CHANGED
from flcog.core.monitor import mode_of

MOST_NAMED = 5
"""The number of slowed runs that a note names."""


def notes(filled: ResultTable, spread: Spread) -> list[str]:
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
        _on_the_code(filled),
    )
    different = [f"Different from the paper: {text.rstrip('.')}." for text in filled.table.deviations]
    different += [f"Not stated in the paper: {text.rstrip('.')}." for text in filled.table.unstated]
    return [*(note for topic in found for note in topic), *filled.table.tuned, *different]


def _on_scores(filled: ResultTable) -> Iterator[str]:
    metrics: dict[str, str] = {}
    for column in filled.columns:
        unit = "in percent" if filled.is_percent(column) else "as logged"
        metrics |= {result.metric: unit for result in filled.in_column(column) if result.metric}
    if not metrics:
        return
    units = {unit: " and ".join(metric for metric in metrics if metrics[metric] == unit) for unit in metrics.values()}
    text = f"Scores are {', and '.join(f'{names}, {unit}' for unit, names in units.items())}."
    if any(metric.startswith("test/") for metric in metrics):
        chosen = any("val" in result.scores for result in filled.results)
        other = "the score at the best validation is not" if chosen else "no run had a validation set"
        text += f" The best score is picked on the test set, as papers do, and is therefore too good; {other}."
    yield text
    if len(metrics) > 1 and (combined := " and no ".join(filter(None, (filled.table.average, filled.table.worst)))):
        yield f"There is no {combined}, because the main metrics of the settings differ."
    if unknown := [metric for metric in metrics if mode_of(metric) is None]:
        yield (
            f"Larger values of {' and '.join(unknown)} count as better, because the name does not tell. If smaller ones are better, write "
            "mode: min beside the metric in the table."
        )


def _on_spread(filled: ResultTable, spread: Spread) -> Iterator[str]:
    words = {
        "std": "the standard deviation over seeds",
        "sem": "the standard error of the mean over seeds",
        "interval": f"half of the {percent(filled.table.confidence)} interval of the mean over seeds",
    }
    if any(len(filled.of(row, column)) > 1 for row in filled.table.rows for column in filled.columns):
        yield f"± is {words[spread]}."
    if filled.table.over_rounds:
        yield "The ± of the mean of the last evaluations is their standard deviation, averaged over seeds."


def _on_comparisons(filled: ResultTable) -> Iterator[str]:
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


def _on_the_split(filled: ResultTable) -> Iterator[str]:
    several = any(filled.estimate(result.row, result.column).count > 1 for result in filled.results)
    if several and not filled.table.varies_split:
        yield "All seeds share one split of the data, so the intervals tell nothing about other splits."


def _on_the_paper(filled: ResultTable) -> Iterator[str]:
    table = filled.table
    if not paper_table(filled):
        return
    if table.margins:
        margins = ", ".join(f"{name} {margin:g}" + " times" * (name == "rounds") for name, margin in table.margins.items())
        yield (
            f"A published figure is reproduced if the 90 % interval of ours minus the paper's lies within the margin ({margins}; for a "
            "gain at most half of it), contradicted if the 95 % interval lies wholly outside, and undecided otherwise. A gain is "
            f"reproduced only if our paired 95 % interval also excludes 0. The score that counts is the {compared(table)}. {table.reason} "
            f"The verdicts wait for all {len(table.planned)} seeds of the table, and count no others."
        )
    else:
        yield "The table names no margin, so its published figures are shown and not judged."
    if table.exploratory:
        yield f"Seeds {', '.join(map(str, table.exploratory))} had been seen before the margin was fixed: verdicts on them are exploratory."


def _on_times(filled: ResultTable) -> Iterator[str]:
    if any(result.facts.seconds > 0 for result in filled.results):
        yield (
            "Times are means over runs: the whole training, without evaluations and preparations before round 1, and a round with all of "
            "the arm's methods. A number before the brackets is the ratio to the first row's time, by setting and seed. "
            "It is left out unless the machine was equally fast during all of these runs."
        )
    if any(run.facts.shared_rounds for run in filled.results):
        yield "A time with * includes rounds that an earlier version trained, and timed, once for several arms."
    disturbed = sorted((result for result in filled.results if result.disturbed), key=lambda result: -result.facts.waiting)
    slowed = [f"{result.name} ({percent(round(result.facts.waiting, 2))})" for result in disturbed[:MOST_NAMED]]
    if slowed:
        if len(disturbed) > MOST_NAMED:
            slowed.append(f"and {len(disturbed) - MOST_NAMED} other runs less")
        yield (
            "A time with † is too long, because other programs used the same cores. The brackets show the share of the time that a run "
            f"waited for a core: {'; '.join(slowed)}. Do not compare such times."
        )


def _on_bytes(filled: ResultTable) -> Iterator[str]:
    if any(result.facts.up_bytes > 0 or result.facts.total_bytes > 0 for result in filled.results):
        targets = "; bytes to a target count in both directions" if any(result.targets for result in filled.results) else ""
        yield (
            "Bytes are means over runs, for all clients and rounds and for exchanges before round 1: sent up counts from clients to "
            f"server, sent in all counts in both directions{targets}."
        )


def _on_runs(filled: ResultTable) -> Iterator[str]:
    """Runs that differ from the others, or that some figures leave out."""
    if unfinished := [f"{result.name} (round {result.rounds})" for result in filled.unfinished]:
        yield f"Not finished, and left out if another seed has finished: {'; '.join(unfinished)}."
    if others := [f"{result.facts.other} ({result.name})" for result in filled.results if result.facts.other]:
        yield f"Run with other settings than the table's, and not judged: {'; '.join(others)}."
    if diverged := [result.name for result in filled.results if result.diverged]:
        yield f"Diverged, counted with the last score if there is one, not judged and in no gain: {'; '.join(diverged)}."
    infinite = [
        joined(row, column, f"seed {seed}")
        for column in filled.table.columns
        for row in filled.table.rows
        for seed, score in filled.scores(row, column, filled.table.summary_of(column), finished=True).items()
        if not math.isfinite(score)
    ]
    if infinite:
        yield f"Without a finite score at the end, and left out of intervals and differences: {'; '.join(infinite)}."


def _on_the_code(filled: ResultTable) -> Iterator[str]:
    """The versions of flcog that the runs were made with, and the commits of the user's own code."""
    made, own, rows = Counter[str](), Counter[str](), dict[str, None]()
    runs = {(run.row, run.seed, run.facts.settings, run.facts.date): run.facts for run in filled.results}
    for (row, *_), facts in runs.items():
        made[" at ".join(filter(None, (facts.version and f"flcog {facts.version}", _commit(facts.commit))))] += 1
        if facts.own_commit:
            own[facts.own_commit] += 1
            rows[row] = None
    del made[""]
    if len(made) > 1:
        yield f"The runs compare {len(made)} versions of the code: {_counts(made)}."
    elif made:
        yield f"All runs that say so were made with {next(iter(made))}."
    unsure = any(commit == UNKNOWN or commit.endswith(CHANGED) for commit in own)
    if len(own) > 1 or (unsure and own.total() > 1):
        commits = _counts({_commit(commit): count for commit, count in own.items()})
        yield (
            f"The runs of {' and '.join(rows)} use classes of your own, which may have changed between them: {commits}. To train such "
            "runs again, delete their folders."
        )


def _commit(text: str) -> str:
    return text and f"commit {text[:10]}" + " with changes" * text.endswith(CHANGED)


def _counts(made: Mapping[str, int]) -> str:
    return "; ".join(f"{name} ({count} runs)" for name, count in made.items())
