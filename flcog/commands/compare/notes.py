"""The notes below the tables of a comparison, which tell a reader how to read the figures."""

from collections import Counter
from collections.abc import Iterator, Mapping

from flcog.commands.compare.result_table import ResultTable
from flcog.commands.compare.table import Spread, Summary
from flcog.core.monitor import mode_of
from flcog.core.waiting import DISTURBED

SAID: Mapping[Summary, str] = {
    "best": "best evaluation",
    "last": "last evaluation",
    "mean": "mean of the last evaluations",
    "val": "score at the best validation",
}

SPREADS: Mapping[Spread, str] = {
    "std": "the standard deviation over seeds",
    "sem": "the standard error of the mean over seeds",
    "interval": "half of the 95 % interval of the mean over seeds",
    "rounds": "the standard deviation over seeds, and for the mean of the last evaluations theirs over rounds",
}


def notes(filled: ResultTable) -> list[str]:
    """One or two sentences on each topic that concerns the table."""
    table = filled.table
    found = [*_on_scores(filled), *_on_the_paper(filled), *_on_costs(filled), *_on_runs(filled)]
    found += [table.search.told] if table.search else []
    found += [f"Different from the paper: {said.rstrip('.')}." for said in table.deviations]
    return [*found, *(f"Not stated in the paper: {said.rstrip('.')}." for said in table.unstated)]


def _on_scores(filled: ResultTable) -> Iterator[str]:
    table, frame = filled.table, filled.frame
    units = {filled.metric(view): "in percent" if filled.percent[view] else "as logged" for view in filled.views}
    units.pop("", None)
    if not units:
        return
    said = [f"{' and '.join(name for name in units if units[name] == unit)}, {unit}" for unit in dict.fromkeys(units.values())]
    text = f"Scores are {', and '.join(said)}."
    if any(metric.startswith("test/") for metric in units):
        other = "the score at the best validation is not" if frame.val.notna().any() else "no run had a validation set"
        text += f" The best score is picked on the test set, as papers do, and is therefore too good; {other}."
    yield text
    if table.overall and len(units) > 1:
        yield f"There is no {' and no '.join(table.overall)}, because the main metrics of the columns differ."
    if unknown := [metric for metric in units if mode_of(metric) is None]:
        yield (
            f"Larger values of {' and '.join(unknown)} count as better, because the name does not tell. If smaller ones are better, write "
            "{metric: ..., mode: min} under metrics in the table."
        )
    if (frame.groupby(["row", "view"]).seed.count() > 1).any():
        yield f"± is {SPREADS[table.spread]}."
    views: dict[str, list[str]] = {}
    for name, view in table.views.items():
        views.setdefault(SAID[view.summary], []).append(name)
    compared = "; ".join(f"{said} for {' and '.join(names)}" for said, names in views.items())
    compared = compared if len(views) > 1 else next(iter(views))
    if len(filled.views) > 1:
        yield f"The first table has the {compared} of each run" + "; the paper's is in brackets" * bool(table.published) + "."
    pairs = [found.difference.count for view in filled.views for found in filled.comparisons(view).values()]
    if pairs and max(pairs) == 1:
        yield f"Rows are compared by the {compared} of one seed, which allows neither an interval nor a test."
    elif pairs:
        yield (
            f"Rows are compared by the {compared} of finished runs, in pairs of the same seed and split: the mean difference, Student's "
            "95 % interval, a two-sided paired t-test, and Holm's correction over the rows of a column."
            + " All seeds share one split of the data, so the intervals tell nothing about other splits."
            * (not table.varies_split)
        )


def _on_the_paper(filled: ResultTable) -> Iterator[str]:
    table = filled.table
    if not table.published or not len(filled.frame):
        return
    margins = ", ".join(f"{name} {margin:g}" + " times" * (name == "rounds") for name, margin in table.margin.items())
    yield (
        f"A published figure is reproduced if the 90 % interval of ours minus the paper's lies within the margin ({margins}; for a "
        "gain at most half of it), contradicted if the 95 % interval lies wholly outside, and undecided otherwise. A gain is "
        f"reproduced only if our paired 95 % interval also excludes 0. {table.reason} "
        f"The verdicts wait for all {len(table.file.seeds)} seeds of the table, and count no others."
        if margins
        else "The table names no margin, so its published figures are shown and not judged."
    )
    if table.exploratory:
        yield f"Seeds {', '.join(map(str, table.exploratory))} had been seen before the margin was fixed: verdicts on them are exploratory."


def _on_costs(filled: ResultTable) -> Iterator[str]:
    frame = filled.frame
    if frame.seconds.notna().any():
        yield (
            "Times and bytes are means over runs: all rounds without evaluations, and a round in which all methods of the row act, beside "
            "the ratio to the first row if it had the same machine; bytes of all clients and rounds, and of exchanges before round 1."
        )
    if len(slowed := frame[frame.waiting > DISTURBED].sort_values("waiting", ascending=False)):
        yield (
            f"A time with † is too long, because other programs used the same cores: {len(slowed)} runs waited for a core, "
            f"{slowed.label.iloc[0]} for {100 * slowed.waiting.iloc[0]:.0f} % of its time. Do not compare such times."
        )


def _on_runs(filled: ResultTable) -> Iterator[str]:
    """Runs that differ from the others, or that some figures leave out, and the code that they were made with."""
    frame = filled.frame[filled.frame.view.isin(list(filled.table.views))]
    if len(filled.unfinished):
        names = [f"{run.label} (round {run.rounds})" for run in filled.unfinished.itertuples()]
        yield f"Not finished, and left out if another seed has finished: {'; '.join(names)}."
    if others := [f"{run.other} ({run.label})" for run in frame.itertuples() if run.other]:
        yield f"Run with other settings than the table's, and not judged: {'; '.join(others)}."
    if diverged := frame.label[frame.diverged].tolist():
        yield f"Diverged, counted with the last score if there is one, not judged and in no gain: {'; '.join(diverged)}."
    for column, what in (("commit", "flcog"), ("own_commit", "the working directory")):
        made = Counter(frame.drop_duplicates(["row", "column", "seed"])[column])
        if commits := "; ".join(
            f"{commit[:10]}{' with changes' * commit.endswith('+changes')} ({count} runs)"
            for commit, count in made.items()
            if commit
        ):
            yield f"The runs were made at these commits of {what}: {commits}."
