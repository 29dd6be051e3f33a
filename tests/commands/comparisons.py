"""Tables of ``flcog compare`` and made-up runs, for its tests."""

import csv
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import yaml
from harness import ROOT

from flcog.commands.compare.result_table import ResultTable
from flcog.commands.compare.runs import Run
from flcog.commands.compare.saved_results import results_of
from flcog.commands.compare.table import Table, read_table

TABLES = sorted((ROOT / "configs/tables").glob("*.yaml"))
QUICKSTART = str(ROOT / "configs/quickstart.yaml")


def table_file(folder: Path, **content: Any) -> Path:
    (folder / "base.yaml").write_text("trainer: {rounds: 2}\n")
    (folder / "arm.yaml").write_text("trainer: {rounds: 3}\n")
    path = folder / "table.yaml"
    rows = {"A": None, "B": {"configs": ["arm.yaml"]}}
    path.write_text(yaml.safe_dump({"configs": ["base.yaml"], "rows": rows} | content, sort_keys=False))
    return path


def table(folder: Path, **content: Any) -> Table:
    return read_table(table_file(folder, **content))


def fake_run(run: Run, accuracies: Sequence[float], time: float = 1.0, finished: bool = False, **columns: Sequence[Any]) -> Path:
    """Write a run's directory with these values for each round. Keywords add further columns; ``__`` in their names becomes ``/``."""
    directory, count = run.folder / "20260101-000000", len(accuracies)
    directory.mkdir(parents=True, exist_ok=True)
    series: dict[str, Sequence[Any]] = {"test/accuracy": accuracies, "time/round": [time] * count, "comm/up_bytes": [512] * count}
    series |= {name.replace("__", "/"): values for name, values in columns.items()}
    with (directory / "metrics.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, ["round", *series])
        writer.writeheader()
        for place in range(count):
            writer.writerow({"round": place + 1} | {name: values[place] for name, values in series.items()})
    if finished:
        run.mark_finished()
    return directory


def real_run(run: Run, *changes: str, **columns: Sequence[Any]) -> None:
    """Write a finished run of the run's command line with these changes."""
    changed = replace(run, extra=(*run.extra, *changes))
    fake_run(changed, [0.25, 0.5], finished=True, **{"test__loss": [1.5, 0.75], **columns})


def filled(plan: Table, runs: Sequence[Run], saved: Path | None = None) -> ResultTable:
    return ResultTable(plan, results_of(plan, runs, saved))


def cells(markdown: str) -> list[list[str]]:
    """The cells of a table in Markdown, the header first."""
    lines = [line for line in markdown.splitlines() if line.startswith("|") and not line.startswith("|---")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
