"""REPRODUCED.md: every table and figure of the papers with its command, its deviations, the trained cells and the reproduced figures."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from flcog.commands import shipped_configs
from flcog.commands.compare.filled import Filled
from flcog.commands.compare.folder import print_damage
from flcog.commands.compare.plan import Table, cells
from flcog.commands.compare.results import Result
from flcog.commands.compare.saved_results import read_results, results_of, seeds_run
from flcog.commands.compare.table_file import read_mapping, read_table
from flcog.commands.compare.verdicts import NO, NOT_JUDGED, NOT_RUN, ONE_SEED, YES, Verdict, verdicts
from flcog.core.files import replacing, short
from flcog.core.text import markdown

ITEM_KEYS = ("shows", "command", "deviations", "illustration")
SAME, DIFFERS = "as in the paper", "differences"
HEADER = ["", "shows", "command", "settings", "cells trained", "reproduced"]


@dataclass(frozen=True)
class Filling:
    """A table's file, the number of its trained cells, and the verdicts on the published figures.

    Args:
        path: the file.
        table: its content.
        done: the number of cells that have finished with exactly the table's settings.
        total: the number of all cells.
        added: additional arguments of other finished cells.
        outdated: the number of cells that finished before the table was changed.
        verdicts: on the published figures.
    """

    path: Path
    table: Table
    done: int
    total: int
    added: tuple[str, ...]
    outdated: int
    verdicts: Sequence[Verdict]


def write_page(tables: Sequence[Path], roots: Sequence[Path], saved: Path, page: Path) -> None:
    """Write the page.

    Args:
        tables: the tables' files; all tables of flcog if empty.
        roots: folders that contain a folder for each table, named like its file.
        saved: folder of saved results.
        page: the file to write.
    """
    configs = shipped_configs.folder()
    paths = list(tables) or sorted((configs / "tables").glob("*.yaml"))
    papers = read_papers(configs / "papers.yaml")
    fillings = [_filling(path, roots, saved) for path in paths]
    with replacing(page, "w") as file:
        file.write(page_text(papers, fillings))
    run = sum(filling.done > 0 for filling in fillings)
    print(f"{short(page)}: {len(fillings)} tables, {run} of them trained in part or completely")


def read_papers(path: Path) -> Mapping[str, Mapping[str, Any]]:
    """Read and check the list of the papers' tables and figures."""
    papers = read_mapping(path)
    for paper, content in papers.items():
        items = content.get("items") if isinstance(content, dict) else None
        if not isinstance(items, dict) or not all(isinstance(item, dict) and "shows" in item for item in items.values()):
            raise ValueError(f"{path}: {paper} must have a title and items, each with the key `shows`")
        for item, about in items.items():
            if unknown := about.keys() - ITEM_KEYS:
                raise ValueError(
                    f"{path}: {paper}, {item} has {', '.join(map(str, unknown))}; it may have {', '.join(ITEM_KEYS)}"
                )
    return papers


def _filling(path: Path, roots: Sequence[Path], saved: Path) -> Filling:
    table = read_table(path)
    kept = saved / f"{path.stem}.csv"
    results: list[Result] = []
    for root in roots:
        out = root / path.stem
        with_seeds = replace(table, seeds=tuple(dict.fromkeys([*table.seeds, *seeds_run(table, out, kept)])))
        runs = cells(with_seeds, out, [])
        print_damage([run.damage for run in runs])
        found = [*read_results(kept, runs), *results_of(with_seeds, runs, None)]
        results += [result for result in found if result.finished]
    whole = {result.name: result for result in results if not result.outdated and not result.arguments}
    # Several columns may show figures of the same runs.
    settings = {name: name if part.setting is None else part.setting for name, part in table.columns.items()}
    return Filling(
        path,
        table,
        done=len({(run.row, settings[run.column], run.seed) for run in whole.values() if run.seed in table.seeds}),
        total=len(table.rows) * len(set(settings.values())) * len(table.seeds),
        added=tuple(dict.fromkeys(result.arguments for result in results if result.arguments)),
        outdated=len({result.name for result in results if result.outdated} - whole.keys()),
        verdicts=verdicts(Filled(table, list(whole.values()))),
    )


def page_text(papers: Mapping[str, Mapping[str, Any]], fillings: Sequence[Filling]) -> str:
    """Make the page: a table for each paper, followed by a numbered list of the differences from the paper."""
    parts = [
        "# Reproduced tables of the papers",
        "`flcog compare --reproduced` writes this page from the runs and the saved results that it finds; do not edit it. *Cells trained* "
        "counts the cells of a table (method by setting by seed) that have finished with exactly the table's settings. A published figure "
        "is *reproduced* if our confidence interval over seeds contains it, and a published gain if the interval of our paired difference "
        "contains it and both have the same sign. One seed has no interval and reproduces nothing. `flcog compare TABLE --show` prints the "
        "figures. The numbers in the column *settings* refer to the list below each table.",
    ]
    for name, paper in papers.items():
        link = f"[{paper['title']}]({paper['url']})" if paper.get("url") else paper.get("title", name)
        numbers: dict[str, int] = {}
        rows = [row for item, about in paper["items"].items() for row in _rows(name, item, about, fillings, numbers)]
        parts += [f"## {name}", f"{link}", markdown(HEADER, rows)]
        if numbers:
            parts += ["Settings that differ from the paper, or that it does not state:", _listed(numbers)]
    known = {f"{name}, {item}" for name, paper in papers.items() for item in paper["items"]}
    others = [filling for filling in fillings if not set(filling.table.reproduces) & known]
    if others:
        parts += ["## Tables of our own", markdown(HEADER, [_row("", filling.table.title, filling, {}) for filling in others])]
    return "\n\n".join(parts) + "\n"


def _rows(
    paper: str, item: str, about: Mapping[str, Any], fillings: Sequence[Filling], numbers: dict[str, int]
) -> list[list[str]]:
    """Make a row for each table that reproduces an item, or a row with the command that reproduces it."""
    found = [filling for filling in fillings if f"{paper}, {item}" in filling.table.reproduces]
    shows = str(about["shows"])
    if found:
        return [_row(item, shows, found[0], numbers), *(_row("", "", filling, numbers) for filling in found[1:])]
    if about.get("illustration"):
        return [[item, shows, "", "", "", "nothing to reproduce"]]
    if "command" in about:
        return [[item, shows, f"`{about['command']}`", _deviations(about.get("deviations", []), numbers), "", "by eye"]]
    return [[item, shows, "none", "", "", NOT_RUN]]


def _row(item: str, shows: str, filling: Filling, numbers: dict[str, int]) -> list[str]:
    deviations = _deviations(filling.table.deviations, numbers) if filling.table.reproduces else ""
    ours = filling.path.resolve().parent == (shipped_configs.folder() / "tables").resolve()
    name = filling.path.stem if ours else short(filling.path)
    return [item, shows, f"`flcog compare {name}`", deviations, _run(filling), _reproduced(filling)]


def _deviations(deviations: Sequence[str], numbers: dict[str, int]) -> str:
    """The numbers of the deviations. New deviations are added to ``numbers``."""
    for text in deviations:
        numbers.setdefault(text.rstrip("."), len(numbers) + 1)
    found = sorted(numbers[text.rstrip(".")] for text in deviations)
    return f"{DIFFERS} {', '.join(map(str, found))}" if found else SAME


def _listed(numbers: Mapping[str, int]) -> str:
    return "\n".join(f"{number}. {text[:1].upper()}{text[1:]}." for text, number in numbers.items())


def _run(filling: Filling) -> str:
    text = f"{filling.done} / {filling.total}"
    if filling.outdated:
        text += f"; {filling.outdated} before the table was changed"
    if filling.added:
        text += "; others with " + " and with ".join(f"`{words}`" for words in filling.added)
    return text


def _reproduced(filling: Filling) -> str:
    """The numbers of reproduced figures and gains."""
    if filling.done == 0:
        return NOT_RUN
    judged = [verdict for verdict in filling.verdicts if verdict.marks[0] != NOT_JUDGED]
    if not judged:
        return "no published figures: see its table and curves"
    marks = {
        "figures": [verdict.marks[0] for verdict in judged],
        "gains": [verdict.marks[1] for verdict in judged if len(verdict.marks) > 1],
    }
    known = {name: [mark for mark in given if mark in (YES, NO)] for name, given in marks.items()}
    parts = [f"{given.count(YES)} of {len(given)} {name}" for name, given in known.items() if given]
    return "; ".join([*parts, *(f"{count} {mark}" for mark in (ONE_SEED, NOT_RUN) if (count := marks["figures"].count(mark)))])
