"""The filled table in LaTeX for a paper, with booktabs: the best score of a column is bold, the second underlined."""

import math
import statistics
import unicodedata
from collections.abc import Sequence

import flcog.callbacks
from flcog.commands.compare.findings import compared, percent
from flcog.commands.compare.plan import Table
from flcog.commands.compare.result_table import ResultTable
from flcog.commands.compare.results import number, span
from flcog.commands.compare.table import Spread, diverged_text, spread_of

ESCAPES = (
    {letter: f"\\{letter}" for letter in "&%$#_{}"}
    | {letter: f"{{{letter}}}" for letter in "[]*"}
    | {
        "\\": r"\textbackslash{}",
        "~": r"\textasciitilde{}",
        "^": r"\textasciicircum{}",
        "<": r"\textless{}",
        ">": r"\textgreater{}",
        "|": r"\textbar{}",
        "±": r"$\pm$",
        "·": r"\textperiodcentered{}",
        "×": r"$\times$",
        "≥": r"$\geq$",
        "≤": r"$\leq$",
        "≈": r"$\approx$",
        "≠": r"$\neq$",
        "→": r"$\rightarrow$",
        "←": r"$\leftarrow$",
        "∞": r"$\infty$",
        "−": "$-$",
    }
)
"""Texts for special characters. LaTeX would read [ or * at the start of a row as an option of the line break before it."""

CAPITALS = ("Gamma", "Delta", "Theta", "Lambda", "Xi", "Pi", "Sigma", "Upsilon", "Phi", "Psi", "Omega")
"""Capital Greek letters with a LaTeX command."""

NAMED = {name.lower() for name in CAPITALS} | {
    *("alpha", "beta", "epsilon", "zeta", "eta", "iota", "kappa", "mu", "nu", "rho", "tau", "chi"),
}
"""Small Greek letters with a LaTeX command."""


def latex(filled: ResultTable, spread: Spread) -> str:
    """The table environment. Its first line names the packages that it needs."""
    head = " & ".join(["", *(escape(column) or "Score" for column in filled.columns)])
    body = [
        " & ".join([escape(row), *cells]) + r" \\" for row, cells in zip(filled.table.rows, _cells(filled, spread), strict=True)
    ]
    return "\n".join(
        [
            r"% \usepackage{booktabs,graphicx}",
            r"\begin{table}",
            r"\centering",
            rf"\caption{{{escape(filled.table.title.rstrip('.'))}. {_explained(filled, spread)}}}",
            r"\resizebox{\ifdim\width>\linewidth\linewidth\else\width\fi}{!}{% smaller if it is wider than the text",
            rf"\begin{{tabular}}{{l{'c' * len(filled.columns)}}}",
            r"\toprule",
            rf"{head} \\",
            r"\midrule",
            *body,
            r"\bottomrule",
            r"\end{tabular}}",
            r"\end{table}",
            "",
        ]
    )


def _cells(filled: ResultTable, spread: Spread) -> list[list[str]]:
    """Each row's texts, column by column."""
    columns, bounds = [], _bounds(filled.table)
    for column in filled.columns:
        shown = {row: _mean(filled, row, column) for row in filled.table.rows}
        # Scores with the same printed text have the same rank.
        ranked = [text for row, text in shown.items() if text and row not in bounds]
        numbers = {float(text) for text in ranked if math.isfinite(float(text))}
        ranks = sorted(numbers, reverse=not filled.lower_is_better(column))[:2]
        columns.append([_cell(filled, row, column, text, [] if row in bounds else ranks, spread) for row, text in shown.items()])
    return [list(texts) for texts in zip(*columns, strict=True)]


def _bounds(table: Table) -> list[str]:
    """The rows that are bounds for the methods, such as centralised training."""
    names = [name.lower() for name in flcog.callbacks.BOUNDS]
    return [row for row, part in table.rows.items() if any(path.stem in names for path in part.configs)]


def _mean(filled: ResultTable, row: str, column: str) -> str:
    """The mean of finished runs. Scores of unfinished runs do not belong into a paper."""
    values = list(filled.scores(row, column, filled.table.summary_of(column), finished=True).values())
    return number(statistics.fmean(values), filled.decimals[column]) if values else ""


def _cell(filled: ResultTable, row: str, column: str, text: str, ranks: Sequence[float], spread: Spread) -> str:
    if not text:
        return "--" + escape(diverged_text(filled, row, column))
    marked = text
    if float(text) in ranks:
        marked = rf"\textbf{{{text}}}" if float(text) == ranks[0] else rf"\underline{{{text}}}"
    marked += escape(diverged_text(filled, row, column))
    deviation = spread_of(filled, row, column, filled.table.summary_of(column), spread)
    return marked if deviation != deviation else rf"{marked} {{\scriptsize $\pm$ {deviation:.{filled.decimals[column]}f}}}"


def _explained(filled: ResultTable, spread: Spread) -> str:
    """The meaning of the figures, for the caption."""
    over_rounds = filled.table.summary == "mean" and filled.table.over_rounds
    words = {"std": "standard deviation", "sem": "standard error", "interval": f"{percent(filled.table.confidence)} interval"}
    cells = [filled.of(row, column) for row in filled.table.rows for column in filled.columns]
    seeds = sorted({sum(result.finished for result in cell) for cell in cells} - {0})
    over = f"mean over {span(seeds) if seeds else 'no'} seed{'s' * (seeds != [1])}"
    after = "standard deviation over the last evaluations" if over_rounds else words[spread]
    shown = over_rounds or (bool(seeds) and seeds[-1] > 1)
    what = compared(filled.table)
    text = f"{what[:1].upper()}{what[1:]}, {over}" + (f" ± {after}" if shown else "")
    bounds = " and ".join(_bounds(filled.table))
    return f"{escape(text)}. Best in bold, second underlined{escape(f', {bounds} apart' if bounds else '')}."


def escape(text: str) -> str:
    """Text as LaTeX prints it; Greek letters as formulas."""
    return "".join(ESCAPES.get(letter) or _greek(letter) for letter in text)


def _greek(letter: str) -> str:
    name = unicodedata.name(letter, "")
    if not name.startswith("GREEK ") or " LETTER " not in name or " WITH " in name:
        return letter
    spelt = name.rpartition(" ")[2].lower().replace("lamda", "lambda")
    if "SMALL" in name:
        return f"$\\{spelt}$" if spelt in NAMED else letter
    return f"$\\{spelt.capitalize()}$" if spelt.capitalize() in CAPITALS else letter
