"""The tables of a report: scores, bytes and times of each group of runs, the partition, and the configuration."""

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import yaml

from flcog.commands.report.runs import Group, RunFiles
from flcog.core.arguments import flat
from flcog.core.monitor import is_share
from flcog.core.text import human, seconds
from flcog.core.waiting import DISTURBED, share_of_waiting

SHARES = re.compile(r"accuracy|(^|/)acc$|-(AP|F1|P|R)$|jain")
"""Scores that are shown as per cent, unless the module logs them in percent."""

SPREAD = ("_mean", "_std", "_q10", "_q50", "_q90", "_worst_decile", "_weighted")
"""Ends of the columns that tell how a score is spread over clients."""


class Table(NamedTuple):
    """The cells of a table as text. ``title`` may be empty."""

    title: str
    head: Sequence[str]
    rows: Sequence[Sequence[str]]


def is_percent(column: str, groups: Sequence[Group]) -> bool:
    """Whether a column is shown in percent. A score that one of the runs logs in percent stays as it is, and so does its spread."""
    measure = next((column.removesuffix(end) for end in SPREAD if column.endswith(end)), column)
    names = [measure, *(f"{measure}{end}" for end in SPREAD)]
    values = [row[name] for group in groups for run in group.runs for row in run.rows for name in names if name in row]
    return bool(SHARES.search(column)) and is_share(column, filter(math.isfinite, values))


def results(groups: Sequence[Group]) -> Iterator[Table]:
    """The score of each group's best round and of its last, its bytes and its time; and the same for every single run."""
    mains = dict.fromkeys(run.main for group in groups for run in group.runs)
    percent = {name: is_percent(name, groups) for name in mains if name is not None}
    several_scores, several_runs = len(mains) > 1, any(len(group.runs) > 1 for group in groups)
    best = "best" if several_scores else f"best {next(iter(mains)) or 'score'}"
    head = [best, "method", "last", "rounds", "sent up", "sent down", "a round took"]
    columns = {
        "worst tenth of clients": [_worst(group.runs, percent) for group in groups],
        "simulated time": [_simulated(group.runs) for group in groups],
        "score": [group.runs[0].main or "none" for group in groups] * several_scores,
        "seeds": [", ".join(run.seed for run in group.runs) for group in groups] * several_runs,
    }
    columns = {name: texts for name, texts in columns.items() if any(texts)}
    rows = []
    for place, group in enumerate(groups):
        first, *rest = _result(group.runs, percent)
        rows.append([first, group.name, *rest, *(texts[place] for texts in columns.values())])
    yield Table("", [*head, *columns], rows)
    if several_runs:
        single = [(group, run, _result([run], percent)) for group in groups for run in group.runs]
        rows = [[first, group.name, *rest, run.seed, run.name] for group, run, (first, *rest) in single]
        yield Table("Each run", [*head, "seed", "folder"], rows)


def _result(runs: Sequence[RunFiles], percent: Mapping[str, bool]) -> list[str]:
    """Best and last score, rounds, bytes and time of one run, or their means over several."""
    main = runs[0].main or ""
    best = [run.chosen[main] for run in runs if main in run.chosen]
    where = f", round {runs[0].chosen['round']:,}" if len(runs) == 1 and best else ""
    last = [run.column(main).iloc[-1] for run in runs if run.main]
    times = [row["time/round"] for run in runs for row in run.rows if "time/round" in row]
    disturbed = any(share_of_waiting(run.rows) > DISTURBED for run in runs)
    sent = [[run.column(f"comm/{way}_bytes") for run in runs] for way in ("up", "down")]
    return [
        _score(best, percent.get(main, False)) + where,
        _score(last, percent.get(main, False)),
        _rounds(runs),
        # Private runs withhold their bytes.
        *(human(np.mean([of.sum() for of in series])) if all(map(len, series)) else "unknown" for series in sent),
        (seconds(float(np.median(times))) if times else "unknown") + " †" * disturbed,
    ]


def _worst(runs: Sequence[RunFiles], percent: Mapping[str, bool]) -> str:
    """The mean score of the worst tenth of the clients in the best round; empty if the score is no mean over clients."""
    name = re.sub("_mean$", "_worst_decile", main := runs[0].main or "")
    found = [run.chosen[name] for run in runs if name != main and name in run.chosen]
    return _score(found, percent.get(main, False)) if found else ""


def _simulated(runs: Sequence[RunFiles]) -> str:
    """The mean simulated time of runs; empty if some of them have none."""
    times = [run.rows[-1]["time/simulated"] for run in runs if "time/simulated" in run.rows[-1]]
    return f"{np.mean(times):,.0f} s" if len(times) == len(runs) else ""


def _score(values: Sequence[float], percent: bool) -> str:
    if not values:
        return "not measured"
    scaled = np.array(values) * (100 if percent else 1)
    unit = " %" * percent
    if len(values) == 1:
        return f"{scaled[0]:.4g}{unit}"
    with np.errstate(invalid="ignore"):
        mean, deviation = scaled.mean(), scaled.std(ddof=1)
    return f"{mean:.1f} ± {deviation:.1f}{unit}" if percent else f"{mean:.4g} ± {deviation:.2g}"


def _rounds(runs: Sequence[RunFiles]) -> str:
    """How many rounds the runs have, and of how many if some are not finished."""
    found = sorted({run.rows[-1]["round"] for run in runs})
    text = f"{found[0]:,}" if len(found) == 1 else f"{found[0]:,} to {found[-1]:,}"
    planned = {run.config.get("trainer", {}).get("rounds", found[-1]) for run in runs}
    return text if planned == set(found) else f"{text} of {max(planned):,}"


def notes(groups: Sequence[Group]) -> Iterator[str]:
    """How to read the results."""
    runs = [run for group in groups for run in group.runs]
    if len(runs) > len(groups):
        yield (
            "Runs that differ only in their seed share a row and a line: means, ± the standard deviation over runs, and bands from the "
            "lowest run to the highest."
        )
    for name in sorted({run.chooser for run in runs if run.chooser is not None}):
        if name.startswith("test/"):
            yield (
                f"The best round is picked by {name}, on the test set itself, which flatters; with data.client_val above 0 a run picks it "
                "on validation data."
            )
        else:
            yield f"The best round is picked by {name}, without the test set."
    if any(share_of_waiting(run.rows) > DISTURBED for run in runs):
        yield "† Other programs slowed these runs down: their times are too long."


def partition_table(members: Sequence[RunFiles], named: bool) -> Table:
    """The numbers of a split, which these runs share."""
    title = f"{', '.join(dict.fromkeys(run.methods for run in members))}, seed {', '.join(dict.fromkeys(run.seed for run in members))}"
    numbers = members[0].setting["partition"].items()
    texts = [[name, f"{value:.4g}" if isinstance(value, float) else str(value)] for name, value in numbers]
    return Table(title if named else "", ["number", "value"], texts)


def differing_settings(groups: Sequence[Group]) -> Table:
    """The settings in which the groups' first runs differ."""
    flats = [flat(group.runs[0].config) for group in groups]
    keys = dict.fromkeys(key for one in flats for key in one)
    rows = [[key, *(str(one.get(key, "not set")) for one in flats)] for key in keys]
    compared = "first runs of the groups" if any(len(group.runs) > 1 for group in groups) else "runs"
    differ = [row for row in rows if len(set(row[1:])) > 1]
    return Table(f"Where the {compared} differ", ["setting", *(group.name for group in groups)], differ)


def whole_configurations(groups: Sequence[Group]) -> Iterator[tuple[str, str]]:
    """A title and the whole ``config.yaml`` and ``run.yaml`` of each run."""
    for group in groups:
        for run in group.runs:
            setting: dict[str, Any] = {key: value for key, value in run.setting.items() if key != "partition"}
            texts = [yaml.safe_dump(one, sort_keys=False, allow_unicode=True) if one else "" for one in (run.config, setting)]
            name = group.name if len(group.runs) == 1 else f"{group.name}, {run.name}"
            yield f"{name}: config.yaml", texts[0] or "none: the run was made in Python\n"
            yield f"{name}: run.yaml", texts[1]
