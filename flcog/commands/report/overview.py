"""The report's first part: the scores, bytes and times of each group of runs."""

import html
import math
import re
import statistics
from collections.abc import Iterable, Mapping, Sequence

from flcog.commands.report.charts import Axis, Series
from flcog.commands.report.groups import Group, mean, shown_methods
from flcog.commands.report.markup import long, note, on_demand, panel, table
from flcog.commands.report.run_files import RunFiles
from flcog.core.monitor import is_share
from flcog.core.text import human, seconds
from flcog.core.waiting import DISTURBED, share_of_waiting

SHARES = re.compile(r"accuracy|(^|/)acc$|-(AP|F1|P|R)$|jain")
"""Scores that are shown as per cent, unless the module logs them in percent."""

Axes = Mapping[str, Axis]
"""How each main score is written."""

SPREAD = ("_mean", "_std", "_q10", "_q50", "_q90", "_worst_decile")
"""Ends of the columns that tell how a score is spread over clients."""


def axis_of(column: str, groups: Sequence[Group]) -> Axis:
    """How a column's values are written. A score that one of the runs logs in percent stays as it is, and so does its spread."""
    measure = next((column.removesuffix(end) for end in SPREAD if column.endswith(end)), column)
    names = [measure, *(f"{measure}{end}" for end in SPREAD)]
    values = [row[name] for group in groups for run in group.runs for row in run.rows for name in names if name in row]
    share = SHARES.search(column) and is_share(column, filter(math.isfinite, values))
    return Axis(column, "%" if share else "bytes" if "bytes" in column else "")


def results(groups: Sequence[Group]) -> str:
    """A row for each group: the score of its best round and of its last, its bytes and its time. The score comes first."""
    mains = dict.fromkeys(run.main for group in groups for run in group.runs)
    axes = {name: axis_of(name, groups) for name in mains if name is not None}
    several_scores, several_runs = len(mains) > 1, any(len(group.runs) > 1 for group in groups)
    best = "best" if several_scores else f"best {next(iter(mains)) or 'score'}"
    head = [best, "method", "last", "rounds", "sent up", "sent down", "a round took"]
    timed = any("time/simulated" in run.rows[-1] for group in groups for run in group.runs)
    head += ["simulated time"] * timed + ["score"] * several_scores + ["runs"] * several_runs
    rows = []
    for group in groups:
        first, *rest = _result(group.runs, axes)
        name = f"{Series('', [], style=group.style).key}{html.escape(group.name)}{_settings(group)}"
        extra = (
            [_simulated(group.runs)] * timed
            + [group.runs[0].main or "none"] * several_scores
            + [_seeds(group.runs)] * several_runs
        )
        rows.append([f'<span class="score">{html.escape(first)}</span>', name, *map(html.escape, [*rest, *extra])])
    return panel(table(head, rows, named=1)) + _each_run(groups, axes) * several_runs + "".join(_notes(groups, several_runs))


def _settings(group: Group) -> str:
    """The methods' settings that are not the defaults, if the name does not have them."""
    text = " + ".join(shown_methods(group.runs[0]))
    return "" if text in group.name else long(text)


def _result(runs: Sequence[RunFiles], axes: Axes) -> list[str]:
    """Best and last score, rounds, bytes and time of one run, or their means over several."""
    axis = axes.get(runs[0].main or "")
    best = [run.chosen[run.main] for run in runs if run.chosen is not None and run.main in run.chosen]
    where = f", round {runs[0].chosen['round']:,}" if len(runs) == 1 and best and runs[0].chosen is not None else ""
    last = [run.points(run.main)[-1][1] for run in runs if run.main is not None]
    times = [row["time/round"] for run in runs for row in run.rows if "time/round" in row]
    disturbed = any(share_of_waiting(run.rows) > DISTURBED for run in runs)
    return [
        _score(axis, best) + where,
        _score(axis, last),
        _rounds(runs),
        *(_sent(runs, f"comm/{way}_bytes") for way in ("up", "down")),
        (seconds(statistics.median(times)) if times else "unknown") + " †" * disturbed,
    ]


def _sent(runs: Sequence[RunFiles], column: str) -> str:
    """The mean bytes of runs. Private runs withhold theirs."""
    amounts = [[row[column] for row in run.rows if column in row] for run in runs]
    return human(round(statistics.fmean(map(sum, amounts)))) if all(amounts) else "unknown"


def _simulated(runs: Sequence[RunFiles]) -> str:
    """The mean simulated time of runs; empty if some of them have none."""
    times = [run.rows[-1]["time/simulated"] for run in runs if "time/simulated" in run.rows[-1]]
    return f"{statistics.fmean(times):,.0f} s" if len(times) == len(runs) else ""


def _score(axis: Axis | None, values: Sequence[float]) -> str:
    if axis is None or not values:
        return "not measured"
    unit = " %" if axis.unit == "%" else ""
    if len(values) == 1:
        return f"{axis.text(values[0])}{unit}"
    middle = mean(values)
    deviation = statistics.stdev(values) if math.isfinite(middle) else math.nan
    return f"{100 * middle:.1f} ± {100 * deviation:.1f} %" if unit else f"{middle:.4g} ± {deviation:.2g}"


def _rounds(runs: Sequence[RunFiles]) -> str:
    """How many rounds the runs have, and of how many if some are not finished."""
    found = sorted({run.rows[-1]["round"] for run in runs})
    text = f"{found[0]:,}" if len(found) == 1 else f"{found[0]:,} to {found[-1]:,}"
    planned = {run.config.get("trainer", {}).get("rounds", found[-1]) for run in runs}
    return text if planned == set(found) else f"{text} of {max(planned):,}"


def _seeds(runs: Sequence[RunFiles]) -> str:
    seeds = [str(run.setting["seed"]) for run in runs if "seed" in run.setting]
    return f"{len(runs)}" + (f", seeds {', '.join(seeds)}" if seeds and len(seeds) == len(runs) > 1 else "")


def _each_run(groups: Sequence[Group], axes: Axes) -> str:
    """The same for every single run, closed until the reader opens it."""
    head = ["best", "method", "seed", "last", "rounds", "sent up", "sent down", "a round took", "folder"]
    rows = []
    for group in groups:
        for run in group.runs:
            first, *rest = _result([run], axes)
            seed = str(run.setting.get("seed", "unknown"))
            rows.append([html.escape(text) for text in (first, group.name, seed, *rest, run.name)])
    return on_demand("Each run", panel(table(head, rows, named=1)))


def _notes(groups: Sequence[Group], several_runs: bool) -> Iterable[str]:
    runs = [run for group in groups for run in group.runs]
    if several_runs:
        yield note("Runs that differ only in their seed share a row: means, and ± the standard deviation over runs.")
    for name in sorted({run.chooser for run in runs if run.chooser is not None}):
        if name.startswith("test/"):
            advised = any(run.chooser == name and _client_val_would_choose(run) for run in runs)
            advice = "; with data.client_val above 0 a run picks it on validation data" * advised
            yield note(f"The best round is picked by {name}, on the test set itself, which flatters{advice}.")
        else:
            yield note(f"The best round is picked by {name}, without the test set.")
    for name in sorted({run.saved_by for run in runs if run.saved_by not in (None, run.chooser)}):
        whose = [run.name for run in runs if run.saved_by == name != run.chooser]
        of = "" if len(whose) == len(runs) else f" of {', '.join(whose)}"
        yield note(f"best.ckpt{of}, which flcog predict and flcog export take, is of the round where {name} was best.")
    if any(share_of_waiting(run.rows) > DISTURBED for run in runs):
        yield note("† Other programs slowed these runs down: their times are too long.")


def _client_val_would_choose(run: RunFiles) -> bool:
    """Whether clients hold out nothing yet. Private runs, which withhold bytes, withhold the scores on what clients hold out, too."""
    partition = run.setting.get("partition") or {}
    return not partition.get("samples/client_val") and any("comm/up_bytes" in row for row in run.rows)
