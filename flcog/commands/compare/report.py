"""What a comparison prints and writes: the filled table for people, programs and papers, and its curves."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from flcog.commands.compare.curves import draw_curves
from flcog.commands.compare.filled import Filled
from flcog.commands.compare.findings import difference_table, notes, paper_table
from flcog.commands.compare.folder import OUT_REMEDY
from flcog.commands.compare.latex import latex
from flcog.commands.compare.plan import Cell, Table
from flcog.commands.compare.results import Result
from flcog.commands.compare.table import Spread, in_setting, summarise
from flcog.commands.compare.table_csv import write_csv
from flcog.core.files import replacing
from flcog.core.text import markdown


def text(filled: Filled, spread: Spread) -> str:
    """The table with its title, what the seeds say of differences and of the paper, and the notes."""
    found = {"Differences": difference_table(filled), "The paper": paper_table(filled)}
    settings = {column: markdown(*in_setting(filled, column, spread)) for column in filled.columns if _several(filled, column)}
    parts = [filled.table.title, markdown(*summarise(filled, spread)), *_titled(found), *notes(filled, spread)]
    return "\n\n".join([*parts, *_titled(settings)])


def _titled(tables: Mapping[str, str]) -> list[str]:
    return [f"**{title}**\n\n{table}" for title, table in tables.items() if table]


def _several(filled: Filled, column: str) -> bool:
    """Whether the setting is one of several, so that the first table does not say all of it, and something of it has been run."""
    return len(filled.columns) > 1 and bool(filled.in_column(column))


def report(table: Table, runs: Sequence[Cell], results: Sequence[Result], out: Path, spread: Spread) -> None:
    """Print the filled table, and write it and its curves beside the runs, where there are any."""
    filled = Filled(table, results)
    said = text(filled, spread)
    print(f"\n{said}\n", flush=True)
    if not out.is_dir():
        return
    paths = [out / "table.md", out / "table.tex", out / "table.csv"]
    for path, content in zip(paths, (f"{said}\n", latex(filled, spread)), strict=False):
        with replacing(path, "w", OUT_REMEDY) as file:
            file.write(content)
    write_csv(filled, paths[-1])
    print(", ".join(map(str, [*paths, *draw_curves(table, runs, out)])))
