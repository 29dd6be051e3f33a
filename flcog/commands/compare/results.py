"""The results of runs: scores, rounds and bytes to targets, costs and origin."""

import math
import re
import statistics
from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import Any, NamedTuple

import numpy as np

from flcog.commands.compare.runs import Run, joined, stated
from flcog.commands.compare.table import View
from flcog.core.monitor import Metric, is_personal, lower_is_better, main_of, mode_of
from flcog.core.waiting import share_of_waiting

History = Sequence[Mapping[str, float]]
"""The rows of a ``metrics.csv``."""

ELAPSED = "time/elapsed"
"""The seconds of all rounds so far, which is added to the rows."""

FACTS: Mapping[str, type] = {
    "rounds": int,  # that are finished
    "seconds": float,  # of all rounds, without evaluations
    "acting_seconds": float,  # of a round in which all of the arm's methods act, on average
    "up_bytes": float,  # from clients to server, including exchanges before the first round
    "total_bytes": float,  # in both directions
    "waiting": float,  # the share of the rounds' time that the run's threads waited for a core that other programs used
    "diverged": bool,  # whether the run ended because its model became NaN or infinite
    "version": str,  # of flcog
    "commit": str,  # of flcog's clone; empty without one
    "own_commit": str,  # of the working directory, if that is another repository
    "machine": str,  # its system and number of processors, their instructions, the run's threads, and torch's version
    "date": str,  # on which the run began
    "command": str,
    "settings": str,  # that the table states
}
"""What is known of a run beside its evaluations, with the types."""


class Record(NamedTuple):
    """A run: the rows of its rounds or of its evaluations, its facts, whether it has ended, and its settings that are not the table's."""

    history: History
    facts: Mapping[str, Any]
    finished: bool = True
    other: str = ""


class Target(NamedTuple):
    """What a run needed to reach a score: rounds, bytes in both directions, and simulated seconds. NaN for what is unknown."""

    rounds: float
    bytes: float = math.nan
    simulated: float = math.nan


def record_of(run: Run) -> Record | None:
    """Read a run's directory; None before its first round."""
    saved = run.saved
    if saved is None or not (saved.rows or run.finished):
        return None
    history, about = saved.rows, saved.description
    newest: Mapping[str, float] = history[-1] if history else {}  # none if the run diverged in round 1
    times = {row["round"]: row["time/round"] for row in history if "time/round" in row}
    first, last = about.get("acting_rounds") or (1, math.inf)
    acting = [took for round, took in times.items() if first <= round <= last]
    sent = [row["comm/up_bytes"] for row in history if "comm/up_bytes" in row]
    day, commits = re.match(r"(\d{4})(\d\d)(\d\d)-", saved.directory.name), (about.get("flcog_commit"), about.get("git_commit"))
    packages = about.get("packages") or {}
    machine = {**(about.get("machine") or {}), **{name: about[name] for name in ("instructions", "threads") if name in about}}
    facts = {
        "rounds": int(newest.get("round", 0)),
        "seconds": sum(times.values()) if history else math.nan,
        "acting_seconds": statistics.fmean(acting) if acting else math.nan,
        "up_bytes": newest.get("comm/up_bytes_total", sum(sent) if sent else math.nan),  # private runs withhold bytes
        "total_bytes": newest.get("comm/total_bytes", math.nan),
        "waiting": share_of_waiting(history),
        "diverged": run.diverged,
        "version": str(packages.get("flcog") or ""),
        "commit": str(commits[0] or ""),
        "own_commit": str(commits[1] or "") if commits[0] != commits[1] else "",
        "machine": ", ".join(f"{name} {value}" for name, value in {**machine, "torch": packages.get("torch", "")}.items()),
        "date": "-".join(day.groups()) if day else "",
        "command": str(about.get("command") or ""),
        "settings": stated(run.words),
    }
    elapsed = dict(zip(times, accumulate(times.values()), strict=True))
    timed = [row | ({ELAPSED: elapsed[row["round"]]} if row["round"] in elapsed else {}) for row in history]
    return Record(timed, facts, run.finished, run.other_settings())


def result_of(run: Run, name: str, view: View, record: Record, last: int) -> dict[str, Any]:
    """The result of a run in one view: its place, scores, targets and facts, with the mean of the last few evaluations.

    A run that has diverged has its last score in all summaries. Where others have models at the clients, the global model is each
    client's model.
    """
    metric = view.metric or main_of(record.history)
    seen = [row for row in record.history if view.round is None or row["round"] <= view.round]
    first = view.chooser or metric
    for own in [own for name in {metric, first} if name and is_personal(name) for own in (name, on_validation(name))]:
        seen = [{own: row[common], **row} if (common := own.replace("/personal_", "/client_")) in row else row for row in seen]
    values = [row[metric] for row in seen if metric in row] if metric else []
    tail, diverged = values[-last:], record.facts["diverged"] or _ends_badly(seen, metric)
    scores = _scores(metric, values, tail, seen, first or metric) if metric and values else {}
    spent = Target(record.facts["rounds"], record.facts["total_bytes"])
    if view.round is not None and view.round < spent.rounds:
        known = [row["comm/total_bytes"] for row in seen if "comm/total_bytes" in row]
        spent = Target(view.round, known[-1] if known else math.nan)
    return {
        "row": run.row,
        "column": run.column,
        "view": name,
        "seed": run.seed,
        "label": joined(run.row, name, f"seed {run.seed}"),
        **record.facts,
        "metric": metric if values else None,
        "finished": record.finished,
        "diverged": diverged,
        **(dict.fromkeys(scores, scores["last"]) if diverged and scores else scores),
        "averaged": len(tail),
        "deviation": deviation(tail),
        "targets": _logged(seen) | crossing(view.target, metric, seen),
        "asked": _target_name(metric, view.target) if metric and view.target is not None else "",
        "spent": spent,
        "other": record.other,
        "history": seen,
    }


def _ends_badly(history: History, metric: str | None) -> bool:
    """Whether the last evaluation has a score or a loss that is no finite number."""
    last: Mapping[str, float] = next((row for row in reversed(history) if metric and metric in row), {})
    return any(not math.isfinite(last[name]) for name in (metric, "test/loss", "val/loss", "train/loss") if name and name in last)


def _scores(metric: str, values: Sequence[float], tail: Sequence[float], history: History, first: str) -> dict[str, float]:
    scores = {"best": best_of(metric, values), "last": values[-1], "mean": statistics.fmean(tail)}
    if (chooser := chooser_of(first, history)) is not None:
        rows = [row for row in reversed(history) if metric in row and not math.isnan(row.get(chooser, math.nan))]
        if chosen := {row[chooser]: row[metric] for row in rows}:
            scores["val"] = chosen[best_of(chooser, list(chosen))]
    return scores


def chooser_of(metric: str, history: History) -> str | None:
    """The validation metric that chooses a round: the same metric as the compared one if there is one, or the main one."""
    twin = on_validation(metric)
    if any(twin in row for row in history):
        return twin if twin != metric else None
    found = main_of(history, selecting=True)
    return found if found and found.startswith("val/") and found != metric else None


def on_validation(metric: str) -> Metric:
    """The same metric on the validation set, such as ``val/accuracy``."""
    return Metric(f"val/{metric.removeprefix('test/')}", mode_of(metric))


def best_of(metric: str, values: Sequence[float]) -> float:
    """The best value. NaN counts only if all values are NaN."""
    numbers = [value for value in values if not math.isnan(value)]
    return math.nan if not numbers else min(numbers) if lower_is_better(metric) else max(numbers)


def deviation(values: Sequence[float]) -> float:
    """The sample's standard deviation; NaN for fewer than two values."""
    return float(np.std(values, ddof=1)) if len(values) > 1 else math.nan


def _logged(history: History) -> dict[str, Target]:
    """The targets that ``RoundsToTarget`` logged in columns such as ``to_accuracy_0.8/rounds``. Private runs withhold the bytes."""
    found = {}
    for row in history:
        for name in row:
            if name.startswith("to_") and name.endswith("/rounds"):
                target = name.removesuffix("/rounds")
                sent = row.get(f"{target}/up_bytes", math.nan) + row.get(f"{target}/down_bytes", math.nan)
                found[target.removeprefix("to_")] = Target(row[name], sent, row.get(f"{target}/simulated", math.nan))
    return found


def crossing(target: float | None, metric: str | None, history: History) -> dict[str, Target]:
    """The rounds and bytes at which the curve crosses a target, as McMahan et al. (2017) read them.

    The curve is made monotone (each point is the best so far) and interpolated between evaluations.
    """
    if target is None or metric is None:
        return {}
    sign = -1 if lower_is_better(metric) else 1
    rows = [row for row in history if not math.isnan(row.get(metric, math.nan))]
    scores = np.maximum.accumulate([sign * row[metric] for row in rows]) if rows else np.array([-math.inf])
    if scores[-1] < sign * target:
        return {}
    place = int(np.argmax(scores >= sign * target))
    before = max(0, place - 1)
    ends = [(rows[at]["round"], rows[at].get("comm/total_bytes", math.nan)) for at in (before, place)]
    rise = scores[place] - scores[before]
    share = (sign * target - scores[before]) / rise if 0 < rise < math.inf else 1.0
    rounds, sent = (float(ends[0][i] + share * (ends[1][i] - ends[0][i])) for i in (0, 1))
    return {_target_name(metric, target): Target(rounds, sent)}


def _target_name(metric: str, target: float) -> str:
    """ "accuracy_0.8", as ``RoundsToTarget`` names its columns."""
    return f"{metric.removeprefix('test/').replace('/', '_')}_{target:g}"
