"""The runs of a table: one for each row, column and seed, with its folder, its command line, and the settings that this states."""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

from flcog import SavedRun
from flcog.commands.compare.table import SPLIT, Row, Table
from flcog.core.files import replacing

FINISHED, DIVERGED = "finished", "diverged"
"""The file that marks a finished run, and its first line if the model became NaN or infinite. The second line has its settings."""

OUTPUT = "output.txt"
SEED, SPLIT_SEED, FOLDER = "seed_everything", f"data.{SPLIT}", "trainer.default_root_dir"

NO_SETTINGS = {
    *("default_root_dir", "data_dir", "cache_dir", "directory", "download", "logger", "resume_changed", "profiler", "max_time"),
    *("accelerator", "strategy", "devices", "num_nodes", "processes_per_device", "num_workers", "detect_anomaly"),
    *("enable_progress_bar", "enable_checkpointing", "enable_model_summary"),
}
"""Last names of options that change no result: paths, devices, processes, threads and trackers."""


def stated(words: Sequence[str]) -> str:
    """What a part of a command line states, by which a run is known to belong to its table.

    These are its configs by name and its options, without those that change no result. The contents of configs are not a part of it.

    >>> stated(["-c", "configs/digits.yaml", "--trainer.rounds=5", "--data.data_dir", "data"])
    'digits trainer.rounds=5'
    """
    parts = [part for word in words for part in (word.split("=", 1) if word.startswith("--") else [word])]
    pairs = [(option.removeprefix("--"), value) for option, value in zip(parts[::2], parts[1::2], strict=False)]
    said = {Path(value).stem if option == "-c" else option: "" if option == "-c" else f"={value}" for option, value in pairs}
    return " ".join(name + value for name, value in said.items() if name.rpartition(".")[2] not in NO_SETTINGS)


@dataclass(frozen=True)
class Run:
    """One run of a table. Its folder contains the run's directory, and beside it ``finished`` and ``output.txt``."""

    row: str
    column: str
    seed: int
    folder: Path
    words: tuple[str, ...] = ()  # the table's part of its command line, which is equal for all seeds
    extra: tuple[str, ...] = ()  # the user's own part
    varies_split: bool = False  # whether its seed draws the split, too

    @property
    def name(self) -> str:
        return joined(self.row, self.column, f"seed {self.seed}")

    @property
    def command(self) -> list[str]:
        """Its command line, without the name of the program. Columns come before rows, the user's own words last."""
        drawn = [f"--{SEED}", str(self.seed), *([f"--{SPLIT_SEED}", str(self.seed)] if self.varies_split else [])]
        return ["fit", *self.words, *self.extra, *drawn, f"--{FOLDER}", str(self.folder)]

    @property
    def saved(self) -> SavedRun | None:
        """Its directory; the newest if it was started more than once."""
        found = [*self.folder.glob("*/metrics.csv")] or [*self.folder.glob("*/run.yaml")]
        return SavedRun(max(found, key=lambda path: path.stat().st_mtime_ns).parent) if found else None

    @property
    def history(self) -> list[dict[str, float]]:
        """The rows of ``metrics.csv`` so far."""
        return self.saved.rows if self.saved else []

    @property
    def begun(self) -> bool:
        """Whether it has written a checkpoint."""
        return any(SavedRun(path).can_resume for path in self.folder.glob("*/"))

    @property
    def finished(self) -> bool:
        return (self.folder / FINISHED).is_file() and self.saved is not None

    @property
    def diverged(self) -> bool:
        """Whether it ended because the model became NaN or infinite."""
        return self.finished and (self.folder / FINISHED).read_text().startswith(DIVERGED)

    def mark_finished(self, diverged: bool = False) -> None:
        self.note(FINISHED, f"{DIVERGED * diverged}\n{stated((*self.words, *self.extra))}")

    def note(self, name: str, text: str) -> None:
        """Write a file in its folder."""
        with replacing(self.folder / name, "w") as file:
            file.write(text)

    def other_settings(self, extra: Sequence[str] = ()) -> str:
        """What it was trained with, if the table and these words state something else; empty if it has not finished."""
        found, now = "", stated((*self.words, *extra))
        if self.finished:
            found = (self.folder / FINISHED).read_text().partition("\n")[2]
        return f"{found} instead of {now}" if found and found != now else ""

    def check(self) -> None:
        """Refuse a finished run that has other settings than the command. One that has not finished refuses them when it is resumed."""
        if found := self.other_settings(self.extra):
            raise ValueError(f"{self.folder} holds this arm with other settings ({found}): choose another --out, or delete it")


def runs_of(table: Table, out: Path, extra: Sequence[str] = ()) -> list[Run]:
    """Every run of the table in the folder ``out``, with the user's own arguments, ``extra``."""
    found = dict[Path, Run]()
    for column, row, seed in product(table.columns, table.rows, table.seeds):
        folder = out.joinpath(*(file_name(name) for name in (column, row) if name), f"seed{seed}")
        run = Run(row, column, seed, folder, words_of(table, row, column), tuple(extra), table.varies_split)
        set_by_table = {SEED, FOLDER, *([SPLIT_SEED] if table.varies_split else [])}
        if given := {word.partition("=")[0].removeprefix("--") for word in (*run.words, *extra)} & set_by_table:
            raise ValueError(f"{min(given)} is given, and the table sets it for each run: give --seeds or --out before --")
        if (other := found.setdefault(folder, run)) is not run:
            raise ValueError(f"{other.name} and {run.name} would both be run in {folder}: rename a row or a column")
    return list(found.values())


def words_of(table: Table, row: str, column: str) -> tuple[str, ...]:
    """The table's part of a command line."""
    arm, setting = table.rows[row], table.columns[column]
    words = [word for part in (table, setting, arm) for config in part.configs for word in ("-c", str(config))]
    for options in (table.arguments, setting.arguments, arm.arguments, arm.columns.get(column, {})):
        words += [word for name, value in options.items() for word in (f"--{name}", _word(value))]
    return tuple(words)


def with_values(row: Row, column: str, values: Mapping[str, Any]) -> Row:
    """A row with these options in a column."""
    return Row(row.configs, row.arguments, {**row.columns, column: {**row.columns.get(column, {}), **values}}, row.tune)


def file_name(name: str) -> str:
    """A part of a path that cannot leave its folder, as "." and ".." can."""
    plain = "".join(letter if letter.isalnum() or letter in "-_.=" else "-" for letter in name)
    return plain if plain.strip(".") else plain.replace(".", "-")


def _word(value: Any) -> str:
    """An argument on a command line, whose parser reads YAML."""
    if isinstance(value, float) and not math.isfinite(value):
        return ".nan" if value != value else ".inf" if value > 0 else "-.inf"
    return value if isinstance(value, str) else json.dumps(value, default=str)


def joined(*names: str) -> str:
    """The name of a run or a place in the table, without its empty parts."""
    return " · ".join(filter(None, names))
