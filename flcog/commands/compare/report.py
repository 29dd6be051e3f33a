"""Prints and writes a comparison: the filled table as text, CSV and LaTeX, and its curves."""

from collections.abc import Sequence
from pathlib import Path

from flcog.commands.compare.curves import draw_curves
from flcog.commands.compare.findings import difference_table, paper_table
from flcog.commands.compare.folder import OUT_REMEDY
from flcog.commands.compare.latex import latex
from flcog.commands.compare.megabytes import draw_megabytes
from flcog.commands.compare.notes import notes
from flcog.commands.compare.plan import Table
from flcog.commands.compare.result_table import ResultTable
from flcog.commands.compare.results import Result
from flcog.commands.compare.scales import check_scales
from flcog.commands.compare.score_figure import draw_scores
from flcog.commands.compare.table import Spread, in_setting, summarise
from flcog.commands.compare.table_csv import write_csv
from flcog.commands.compare.targets_figure import draw_targets
from flcog.core.files import replacing
from flcog.core.text import markdown


def text(filled: ResultTable, spread: Spread) -> str:
    """The title, the table, the differences, the paper's figures, the notes, and a table for each of several settings."""
    table = filled.table
    begun = [column for column in filled.columns if filled.in_column(column)] if len(filled.columns) > 1 else []
    parts = [
        table.title,
        f"Hypothesis, stated before the runs: {table.hypothesis}" if table.hypothesis else "",
        markdown(*summarise(filled, spread)),
        _titled("Differences", difference_table(filled)),
        _titled("The paper", paper_table(filled)),
        *notes(filled, spread),
        _titled("The search for hyper-parameters", table.grid),
        *(_titled(column, markdown(*in_setting(filled, column, spread))) for column in begun),
    ]
    return "\n\n".join(filter(None, parts))


def _titled(title: str, table: str) -> str:
    return f"**{title}**\n\n{table}" if table else ""


def report(table: Table, results: Sequence[Result], out: Path, spread: Spread) -> None:
    """Print the filled table. If there are results, write the table and its curves into the folder of the runs."""
    filled = ResultTable(table, results)
    check_scales(filled)
    said = text(filled, spread)
    print(f"\n{said}\n", flush=True)
    if not results:
        return
    paths = [out / "table.md", out / "table.tex", out / "table.csv"]
    for path, content in zip(paths, (f"{said}\n", latex(filled, spread)), strict=False):
        with replacing(path, "w", OUT_REMEDY) as file:
            file.write(content)
    write_csv(filled, paths[-1])
    figures = [
        *draw_curves(table, results, out),
        *draw_megabytes(table, results, out),
        *draw_scores(filled, out),
        *draw_targets(filled, out),
    ]
    print(", ".join(map(str, [*paths, *figures])))
