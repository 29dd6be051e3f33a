"""``metrics.csv``: one row per round."""

import csv
import io
import warnings
from pathlib import Path

from flcog.core.files import RUN_REMEDY, append, short, write_table

Row = dict[str, float]


def read_rows(path: Path) -> list[Row]:
    """Read the rows up to the first line that a kill or a power cut has left incomplete."""
    rows: list[Row] = []
    if not path.is_file():
        return rows
    lines = path.read_text(encoding="utf-8", errors="replace").splitlines(keepends=True)
    try:
        columns, *table = [*csv.reader(line for line in lines if line.endswith("\n"))] or [[]]
        for cells in table:
            row = {name: _number(cell) for name, cell in zip(columns, cells, strict=True) if cell}
            rows.append(row | {"round": int(row["round"])})
    except (ValueError, KeyError, csv.Error) as error:
        warnings.warn(
            f"{short(path)}: row {len(rows) + 1} is damaged ({error}), and the rows from there on are left out", stacklevel=2
        )
    return rows


def _number(text: str) -> float:
    try:
        return int(text)
    except ValueError:
        return float(text)


class MetricsTable:
    """The rows of a run, flushed to the disk after each row. A new column rewrites the file."""

    def __init__(self, path: Path | None) -> None:
        self.path, self.rows, self.columns = path, list[Row](), list[str]()

    def load(self, rounds: int) -> None:
        """Load the rows of the first ``rounds`` rounds. Later rounds are not in the checkpoint and will be run again."""
        rows = read_rows(self.path) if self.path is not None else []
        self.rows = [row for row in rows if row["round"] <= rounds]
        self.columns = list(dict.fromkeys(name for row in self.rows for name in row))
        self._rewrite()

    def append(self, row: Row) -> None:
        self.rows.append(row)
        new = [name for name in row if name not in self.columns]
        if new or len(self.rows) == 1:
            self.columns += new
            self._rewrite()
        elif self.path is not None:
            line = io.StringIO()
            csv.DictWriter(line, self.columns).writerow(row)
            append(self.path, line.getvalue(), RUN_REMEDY)

    def _rewrite(self) -> None:
        if self.path is not None and self.columns:
            write_table(self.path, self.rows, self.columns, RUN_REMEDY)
