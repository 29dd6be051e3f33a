"""Groups of runs that differ only in their seed: the report shows each group's mean over seeds, and its range."""

import ast
import dataclasses
import inspect
import json
import math
import re
import statistics
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from typing import Any

import flcog.callbacks
from flcog.commands.report.charts import NUM_STYLES, Point, Series
from flcog.commands.report.run_files import RunFiles
from flcog.core.arguments import flat
from flcog.core.monitor import lower_is_better

VARIES = re.compile(r"(^|\.)(seed|seed_everything|partition_seed|default_root_dir|save_dir|ckpt_path)$")
"""Settings that may differ within a group."""

SAME = ("methods", "model", "num_parameters", "data", "num_clients", "acting_rounds")
"""Entries of run.yaml that are the same within a group."""


@dataclass(frozen=True)
class Group:
    """Runs of the same experiment with different seeds.

    Args:
        name: how the page calls it.
        runs: at least one.
        style: its line style, from 0 to 7; None for a thin grey line.
    """

    name: str
    runs: Sequence[RunFiles]
    style: int | None = None

    def series(self, lines: Sequence[Sequence[Point]]) -> Series:
        """The mean of its runs' lines, with a band from the lowest run to the highest."""
        by_x: dict[float, list[float]] = {}
        for px, py in (point for line in lines for point in line if point[1] == point[1]):
            by_x.setdefault(px, []).append(py)
        several = len(self.runs) > 1 and self.style is not None
        band = [(px, min(values), max(values)) for px, values in sorted(by_x.items())] if several else []
        means = [(px, mean(values) if len(values) > 1 else values[0]) for px, values in sorted(by_x.items())]
        return Series(self.name, means, band, self.style)

    def column(self, name: str) -> Series:
        """A column of metrics.csv by round."""
        return self.series([run.points(name) for run in self.runs])


def mean(values: Sequence[float]) -> float:
    """The mean of values that may be infinite or NaN. ``statistics.fmean`` refuses inf beside -inf."""
    return statistics.fmean(values) if all(map(math.isfinite, values)) else sum(values)


def grouped(runs: Sequence[RunFiles]) -> list[Group]:
    """The groups in the order of their first runs. If there are more than eight, the eight with the best last scores get a line style."""
    members: dict[tuple[str, int], list[RunFiles]] = {}
    for run in runs:
        same, seed = _experiment(run), run.setting.get("seed")
        repeat = sum(other.setting.get("seed") == seed for (key, _), found in members.items() for other in found if key == same)
        members.setdefault((same, repeat), []).append(run)
    groups = list(members.values())
    styled = sorted(range(len(groups)), key=lambda i: -_last_score(groups[i]))[:NUM_STYLES]
    styles = {i: style for style, i in enumerate(sorted(styled))}
    return [Group(name, found, styles.get(i)) for i, (name, found) in enumerate(zip(_names(groups), groups, strict=True))]


def _experiment(run: RunFiles) -> str:
    """A text that runs share if they are known to differ only in their seed and in their folder."""
    config = {key: value for key, value in flat(run.config).items() if not VARIES.search(key) and key != "init_from"}
    whole = all("class_path" in run.config.get(part, {}) for part in ("model", "data"))  # else objects were made in Python
    known = None if whole else run.setting.get("experiment", str(run.directory))
    origin = (run.setting.get("init_from") or {}).get("weights")
    return json.dumps([{key: run.setting.get(key) for key in SAME}, config, known, origin], sort_keys=True, default=str)


def _last_score(runs: Sequence[RunFiles]) -> float:
    last = [run.points(run.main)[-1][1] * (-1 if lower_is_better(run.main) else 1) for run in runs if run.main is not None]
    return max((value for value in last if value == value), default=-float("inf"))


def _names(groups: Sequence[Sequence[RunFiles]]) -> list[str]:
    """The shortest names that differ: the methods, then with their settings, then with the configuration, then the run's folder."""
    first = [found[0] for found in groups]
    parts: tuple[Callable[[RunFiles], str], ...] = (
        lambda run: " + ".join(shown_methods(run)),
        lambda run: ", ".join([" + ".join(shown_methods(run)), *_distinct(run, first)]),
        lambda run: f"{method_names(run)}, {run.name}",
        lambda run: f"{method_names(run)}, {run.directory}",
    )
    names = [method_names(run) for run in first]
    for part in parts:
        doubled = {name for name in names if names.count(name) > 1}
        names = [part(run) if name in doubled and len(part(run)) <= 60 else name for name, run in zip(names, first, strict=True)]
    return names


def _distinct(run: RunFiles, runs: Sequence[RunFiles]) -> list[str]:
    """The different settings of runs with the same methods, as ``lr=0.1``; methods' own are in the methods' names."""
    alike = [flat(other.config) for other in runs if shown_methods(other) == shown_methods(run)]
    own = flat(run.config)
    keys = [key for key in own if not VARIES.search(key) and len({str(other.get(key)) for other in alike}) > 1]
    return [f"{key.rpartition('.')[2]}={own[key]}" for key in keys if not key.startswith("trainer.callbacks")]


def method_names(run: RunFiles) -> str:
    """The methods' names, without settings."""
    return " + ".join(text.partition("(")[0] for text in _methods(run)) or "FedAvg"


def shown_methods(run: RunFiles) -> list[str]:
    """The methods with those settings that are not the defaults."""
    return [without_defaults(text) for text in _methods(run)] or ["FedAvg"]


def _methods(run: RunFiles) -> list[str]:
    found = run.setting.get("methods") or []
    return [str(text) for text in found] if isinstance(found, list) else [str(found)]


@cache
def without_defaults(text: str) -> str:
    """A method's text without the settings that have flcog's defaults.

    >>> without_defaults("FedProx(start_round=0, stop_round=None, mu=0.1)")
    'FedProx(mu=0.1)'
    """
    try:
        call: Any = ast.parse(text, mode="eval").body
        name, keywords = call.func.id, call.keywords
    except (AttributeError, SyntaxError, ValueError, RecursionError, MemoryError):
        return text
    defaults = _defaults(name)
    kept = [ast.unparse(part) for part in keywords if defaults.get(part.arg) != ast.unparse(part.value)]
    return f"{name}({', '.join([*map(ast.unparse, call.args), *kept])})" if kept or call.args else name


@cache
def _defaults(name: str) -> dict[str | None, str]:
    """The default settings of a method of flcog, as code; classes from other packages are not imported."""
    if name not in flcog.callbacks.__all__:
        return {}
    method: Any = getattr(flcog.callbacks, name)
    found: dict[str | None, str] = {}
    fields = dataclasses.fields(method) if dataclasses.is_dataclass(method) else ()
    made = {field.name: field.default_factory() for field in fields if field.default_factory is not dataclasses.MISSING}
    for parameter in inspect.signature(method).parameters.values():
        with suppress(SyntaxError):
            found[parameter.name] = ast.unparse(ast.parse(repr(made.get(parameter.name, parameter.default)), mode="eval"))
    return found
