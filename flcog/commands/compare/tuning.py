"""``flcog compare TABLE --tune``: chooses each row's hyper-parameters by the clients' validation data, never by the test set.

Each row with ``tune`` has an Optuna study in each column: the grid of its values, on a seed that the table does not use. Optuna's median
pruner stops poor configurations after half of the rounds in which all methods of the row act, once two others are done. A column
with a target has no pruning, because the configuration with the fewest rounds to the target wins. The file of studies lies beside the
runs, so that a stopped search continues. ``tuned.yaml`` has the choices, the grids and the costs.
"""

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from itertools import product
from pathlib import Path
from typing import Any

import pandas

from flcog.commands.compare.launcher import Ended, StopEarly
from flcog.commands.compare.results import History, on_validation, record_of, result_of
from flcog.commands.compare.runs import Run, joined, runs_of, stated, with_values
from flcog.commands.compare.table import Search, Table
from flcog.core.extras import require
from flcog.core.files import make_folder, write_yaml
from flcog.core.monitor import Metric, lower_is_better, main_of
from flcog.core.text import clock, figure, human
from flcog.core.yaml_files import load_yaml

FILE, STUDIES = "tuned.yaml", "tuning.log"
COSTS = ("rounds", "seconds", "total_bytes")
Fill = Callable[[Table, Sequence[Run], StopEarly], Sequence[Ended]]


class Study:
    """The search for the values of one row in one column. An option that the row fixes in the column is not tuned there.

    ``runs`` has the values of each configuration; ``settings`` states the options, the values to try, and the seed.
    """

    def __init__(self, table: Table, row: str, column: str, out: Path, extra: Sequence[str]) -> None:
        self.place, self._out, self._last = joined(row, column), out, table.last
        self._name, self._view = next((name, view) for name, view in table.views.items() if view.column == column)
        part, seed = table.rows[row], max(table.file.seeds) + 1
        self._grid = {option: values for option, values in part.tune.items() if option not in part.columns.get(column, {})}
        self.runs: dict[Run, dict[str, Any]] = {}
        for chosen in product(*self._grid.values()):
            values = dict(zip(self._grid, chosen, strict=True))
            name = ", ".join([row, *(f"{option.rpartition('.')[2]}={value}" for option, value in values.items())])
            rows, columns = {name: with_values(part, column, values)}, {column: table.columns[column]}
            one = replace(table, rows=rows, columns=columns, seeds=(seed,))
            self.runs |= dict.fromkeys(runs_of(one, out / "tuning", extra), values)
        first = next(iter(self.runs))
        self.settings = f"{stated([*first.words, *extra])}; {json.dumps(self._grid)}; seed {seed}"

    @cached_property
    def _study(self) -> Any:
        optuna = require("optuna", "--tune", "tune")
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        make_folder(self._out)
        storage = optuna.storages.JournalStorage(optuna.storages.journal.JournalFileBackend(str(self._out / STUDIES)))
        name = f"{self.place} {self.settings}"
        return optuna.create_study(storage=storage, study_name=name, direction="maximize", load_if_exists=True)

    def todo(self) -> list[Run]:
        """The runs whose configurations the study lacks. Those that have finished are added to it first."""
        for run in self.runs:
            if run.finished and self._trial(run) is None:
                self._add(run, "COMPLETE")
        return [run for run in self.runs if self._trial(run) is None]

    def stops(self, run: Run) -> bool:
        """Whether the pruner stops a run, which is then done."""
        self.todo()
        if run.saved is None or self._view.target is not None or not self._scores(run.history):
            return False  # whatever its scores, a configuration may be the first to reach a target
        trainer = run.saved.config.get("trainer", {})
        starts = [(part.get("init_args") or {}).get("start_round") or 0 for part in trainer.get("callbacks") or ()]
        half = (max(starts, default=0) + trainer.get("rounds", 0)) // 2
        pruner = require("optuna", "--tune", "tune").pruners.MedianPruner(n_startup_trials=2, n_warmup_steps=half)
        pruned: bool = pruner.prune(self._study, self._frozen(run, "RUNNING"))
        if pruned:
            self._add(run, "PRUNED")
        return pruned

    def _trial(self, run: Run) -> Any:
        return next((trial for trial in self._study.trials if trial.params == self._params(run)), None)

    def _params(self, run: Run) -> dict[str, Any]:
        return {option: _choice(value) for option, value in self.runs[run].items()}

    def _metric(self, history: History) -> Metric:
        """The compared metric on the validation data."""
        twin = on_validation(self._view.metric or main_of(history) or "")
        if main_of(history) and not any(twin in row for row in history):
            raise ValueError(f"--tune chooses by {twin}, and {self.place} logs none: set data.client_val, such as 0.1")
        return twin

    def _scores(self, history: History) -> dict[int, float]:
        """The validation scores by round; larger ones are better."""
        twin = self._metric(history)
        return {int(row["round"]): (-1 if lower_is_better(twin) else 1) * row[twin] for row in history if twin in row}

    def _frozen(self, run: Run, state: str, **more: Any) -> Any:
        optuna = require("optuna", "--tune", "tune")
        kind, scores = optuna.distributions.CategoricalDistribution, self._scores(run.history)
        choices = {option: kind(list(map(_choice, values))) for option, values in self._grid.items()}
        given = {"params": self._params(run), "distributions": choices, "intermediate_values": scores}
        return optuna.trial.create_trial(state=optuna.trial.TrialState[state], **given, **more)

    def _add(self, run: Run, state: str) -> None:
        """Add a configuration that was trained, or stopped early, to the study."""
        record = record_of(run)
        assert record is not None
        # Columns of `RoundsToTarget` may be about the test set.
        history = [{name: value for name, value in row.items() if not name.startswith("to_")} for row in record.history]
        view = self._view._replace(metric=self._metric(history))
        result = result_of(run, self._name, view, record._replace(history=history), self._last)
        score = None if result["diverged"] else result.get("best" if view.summary == "val" else view.summary)
        facts = {name: result[name] for name in COSTS if not math.isnan(result[name])} | {"stopped": state == "PRUNED"}
        for target in result["targets"].values():
            facts["rounds_to_target"] = target.rounds
        if score is None:
            self._study.add_trial(self._frozen(run, "FAIL", user_attrs=facts))
        else:
            value = -score if lower_is_better(view.metric or "") else score
            self._study.add_trial(self._frozen(run, state, value=value, user_attrs=facts | {"validation": score}))

    def result(self) -> dict[str, Any]:
        """The whole search, as ``tuned.yaml`` has it. A configuration without ``validation`` has diverged."""
        self.todo()
        trials = [self._trial(run) for run in self.runs]
        done = [trial for trial in trials if "validation" in trial.user_attrs and not trial.user_attrs["stopped"]]
        if not done:
            raise ValueError(f"every configuration of {self.place} diverged: add smaller values to its tune")
        best = min(done, key=lambda trial: (trial.user_attrs.get("rounds_to_target", math.inf), -trial.value))
        shown = ("validation", "rounds_to_target", "stopped")
        told = [{name: trial.user_attrs[name] for name in shown if name in trial.user_attrs} for trial in trials]
        each = zip(self.runs.values(), told, trials, strict=True)
        grid = [{"values": values, **facts, "chosen": trial is best} for values, facts, trial in each]
        costs = {name: sum(trial.user_attrs.get(name, 0) for trial in trials) for name in COSTS}
        return {"settings": self.settings, "runs": len(trials), **costs, "grid": grid}


def _choice(value: Any) -> Any:
    """A value as Optuna can store it."""
    return value if value is None or isinstance(value, bool | int | float | str) else json.dumps(value)


def studies_of(table: Table, out: Path, extra: Sequence[str]) -> dict[tuple[str, str], Study]:
    """A study for each row with ``tune`` in each column. Other rows take part in the table with their defaults."""
    if not any(part.tune for part in table.file.rows.values()):  # --only may choose rows without tune
        raise ValueError(f"--tune: no row of {table.name} has tune, the values to try: tune: {{model.optimizer.lr: [0.01, 0.1]}}")
    return {
        (row, column): Study(table, row, column, out, extra)
        for column in table.columns
        for row, part in table.rows.items()
        if part.tune.keys() - part.columns.get(column, {})
    }


def tune(table: Table, out: Path, extra: Sequence[str], fill: Fill) -> None:
    """Search, and write the choices into ``out``. Choices for rows and columns outside of ``table`` (``--only``) stay."""
    studies = studies_of(table, out, extra)
    todo = {run: study for study in studies.values() for run in study.todo()}
    if failed := fill(table, list(todo), lambda run: todo[run].stops(run)) if todo else ():
        run, error, _ = failed[0]
        raise ValueError(f"{len(failed)} of {len(todo)} runs of the search failed, the first, {run.name}: {error}")
    found = _searches(table, out / FILE) if (out / FILE).is_file() else {}
    found |= {place: study.result() for place, study in studies.items()}
    searches = [{"row": row, "column": column, **search} for (row, column), search in found.items()]
    if searches:
        write_yaml(out / FILE, {"table": table.name, "seed": max(table.file.seeds) + 1, "searches": searches})


def _searches(table: Table, path: Path) -> dict[tuple[str, str], dict[str, Any]]:
    """The searches in a file by row and column."""
    searches = {(search.pop("row"), search.pop("column")): search for search in load_yaml(path)["searches"]}
    return {place: search for place, search in searches.items() if place[0] in table.file.rows and place[1] in table.file.columns}


def with_choices(table: Table, *files: Path) -> Table:
    """The table with the values that ``--tune`` chose, from the first of these files that exists."""
    path = next((path for path in files if path.is_file()), None)
    if path is None or not any(part.tune for part in table.rows.values()):
        return table
    rows, searches = dict(table.rows), _searches(table, path)
    for (row, column), search in searches.items():
        if row in rows and column in table.columns:
            rows[row] = with_values(rows[row], column, next(line["values"] for line in search["grid"] if line["chosen"]))
    return replace(table, rows=rows, search=_told(searches, max(table.file.seeds) + 1))


def _told(searches: Mapping[tuple[str, str], Mapping[str, Any]], seed: int) -> Search:
    """The searches for the report: a sentence, and all configurations as a table, in which choices at the edge of the grid are marked."""
    lines, chosen = [], []
    for (row, column), search in searches.items():
        for line in search["grid"]:
            shown = dict(line["values"])
            for option, value in shown.items():
                numbers = {number for each in search["grid"] if isinstance(number := each["values"][option], int | float)}
                if line["chosen"] and len(numbers) > 1 and value in (min(numbers), max(numbers)):
                    shown[option] = f"{value} (edge of the grid)"
            if line["chosen"] and shown:
                chosen.append(f"{joined(row, column)}: {', '.join(f'{option} {value}' for option, value in shown.items())}")
            score = figure(line["validation"]) if "validation" in line else "diverged"
            rounds = f"{line['rounds_to_target']:.4g}" if "rounds_to_target" in line else ""
            end = "yes" if line["chosen"] else "stopped early" if line.get("stopped") else ""
            shown |= {"validation": score, "rounds to the target": rounds, "chosen": end}
            lines.append({"": row, "setting": column, **shown})
    runs, rounds, seconds, sent = (sum(search[name] for search in searches.values()) for name in ("runs", *COSTS))
    by = ", by the rounds to the target where the column has one" if any(line["rounds to the target"] for line in lines) else ""
    told = f"Tuned on seed {seed} by the clients' validation data{by}: {'; '.join(chosen)}. "
    told += f"The search took {runs} runs, {rounds:,} rounds, {clock(seconds)} and {human(sent)}."
    return Search(told, pandas.DataFrame(lines).fillna("").set_index(""))
