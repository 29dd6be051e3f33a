"""REPRODUCED.md: one line for each table and each other item of the papers, with its verdicts, and the differences from the papers."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from flcog.commands import shipped_configs
from flcog.commands.compare.folder import print_damage
from flcog.commands.compare.plan import Table, cells
from flcog.commands.compare.result_table import ResultTable
from flcog.commands.compare.results import Result
from flcog.commands.compare.saved_results import results_of, seeds_run
from flcog.commands.compare.table_file import read_mapping, read_table
from flcog.commands.compare.tuning import FILE as TUNED
from flcog.commands.compare.tuning import with_choice
from flcog.commands.compare.verdicts import CONTRADICTED, NOT_JUDGED, NOT_RUN, REPRODUCED, UNDECIDED, Verdict, verdicts
from flcog.core.files import replacing, short
from flcog.core.text import markdown

KINDS = {
    "deviations": ("D", "Deviations that contradict the papers"),
    "unstated": ("S", "Settings that the papers do not state"),
}
"""Kinds of differences from the papers, with the letters of their numbers and their headings."""

ITEM_KEYS = ("shows", "command", "published", "ours", *KINDS, "illustration")
Numbers = dict[str, dict[str, int]]
"""The numbers of differences by kind and text."""

HEADER = ["paper", "items", "content", "published figures", "runs", "seeds", "date", "table", "deviations"]


@dataclass(frozen=True)
class Filling:
    """A table's file with its finished runs and the verdicts on the published figures.

    Args:
        path: the file.
        table: its content.
        runs: the finished runs with exactly the table's settings.
        total: the number of all runs of the table.
        verdicts: on the published figures.
    """

    path: Path
    table: Table
    runs: Sequence[Result]
    total: int
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
    run = sum(bool(filling.runs) for filling in fillings)
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
    files = [*(root / path.stem / TUNED for root in roots), saved / f"{path.stem}.tuned.yaml"]
    table = with_choice(read_table(path), *files)
    kept = saved / f"{path.stem}.csv"
    whole: dict[str, Result] = {}
    for root in roots:
        out = root / path.stem
        with_seeds = replace(table, seeds=tuple(dict.fromkeys([*table.seeds, *seeds_run(table, out, kept)])))
        runs = cells(with_seeds, out, [])
        print_damage([run.damage for run in runs])
        found = results_of(with_seeds, runs, kept)
        whole |= {result.name: result for result in found if result.finished and not result.facts.other}
    total = len(table.rows) * len({*table.settings.values()}) * len(table.seeds)
    return Filling(path, table, list(whole.values()), total, verdicts(ResultTable(table, list(whole.values()))))


def page_text(papers: Mapping[str, Mapping[str, Any]], fillings: Sequence[Filling]) -> str:
    """Make the page: a line for each table, further items of the papers, and the numbered deviations."""
    numbers: Numbers = {kind: {} for kind in KINDS}
    known = {f"{name}, {item}" for name, paper in papers.items() for item in paper["items"]}
    lines = []
    for name, paper in papers.items():
        lines += [_line(name, paper, filling, numbers) for filling in fillings if _items(name, paper, filling.table)]
    own = [_line("", {"items": {}}, filling, numbers) for filling in fillings if not set(filling.table.reproduces) & known]
    parts = [
        "# Reproduced tables of the papers",
        "`flcog compare --reproduced` writes this page from the runs and the saved results that it finds; do not edit it. A published "
        "figure is *reproduced* if the 90 % interval of ours minus the paper's lies within the table's margin, *contradicted* if the 95 % "
        "interval lies wholly outside, and *undecided* otherwise; a gain also needs an interval without 0. They wait for all seeds of the "
        "table, and `flcog compare TABLE --show` prints each with its interval. The last column refers to the lists below: "
        "D marks contradictions to the paper, S settings that it does not state.",
        "\n".join(f"- **{name}**: {_link(name, paper)}" for name, paper in papers.items()),
        *([markdown(HEADER, lines)] if lines else []),
        *(["## Tables of our own", markdown(HEADER, own)] if own else []),
        *_further_items(papers, fillings, numbers),
    ]
    for kind, (letter, heading) in KINDS.items():
        listed = (f"- **{letter}{number}** {text[:1].upper()}{text[1:]}." for text, number in numbers[kind].items())
        parts += [f"## {heading}", "\n".join(listed)] if numbers[kind] else []
    return "\n\n".join(parts) + "\n"


def _link(name: str, paper: Mapping[str, Any]) -> str:
    return f"[{paper['title']}]({paper['url']})" if paper.get("url") else str(paper.get("title", name))


def _items(name: str, paper: Mapping[str, Any], table: Table) -> list[str]:
    """The items of a paper that a table fills."""
    return [item for item in paper["items"] if f"{name}, {item}" in table.reproduces]


def _line(name: str, paper: Mapping[str, Any], filling: Filling, numbers: Numbers) -> list[str]:
    """The line of a table."""
    table, runs = filling.table, filling.runs
    items = _items(name, paper, table)
    shows = "; ".join(dict.fromkeys(str(paper["items"][item]["shows"]) for item in items)) or table.title
    done = {(run.row, table.settings[run.column], run.seed) for run in runs if run.seed in table.planned}
    seeds = ", ".join(map(str, sorted({run.seed for run in runs})))
    date = max((run.facts.date for run in runs), default="")
    shipped = filling.path.resolve().parent == (shipped_configs.folder() / "tables").resolve()
    stem = filling.path.stem
    link = f"[{stem}](configs/tables/{filling.path.name})" if shipped else str(short(filling.path))
    about = {"deviations": table.deviations, "unstated": table.unstated} if table.reproduces else {}
    deviations = _numbers(about, numbers)
    return [name, ", ".join(items), shows, _counts(filling), f"{len(done)} / {filling.total}", seeds, date, link, deviations]


def _counts(filling: Filling) -> str:
    """The numbers of verdicts of each kind."""
    marks = Counter(verdict.mark for verdict in filling.verdicts if verdict.mark != NOT_JUDGED)
    first = [f"{marks.pop(mark)} {mark}" for mark in (REPRODUCED, CONTRADICTED, UNDECIDED) if mark in marks]
    last = [f"{marks.pop(NOT_RUN)} {NOT_RUN}"] if NOT_RUN in marks else []
    return ", ".join([*first, *(f"{count} {mark}" for mark, count in marks.items()), *last]) or "none"


def _further_items(papers: Mapping[str, Mapping[str, Any]], fillings: Sequence[Filling], numbers: Numbers) -> list[str]:
    """The items of the papers that no table fills, with their commands."""
    filled = {item for filling in fillings for item in filling.table.reproduces}
    rows = [
        [name, item, str(about["shows"]), *_command(about, numbers)]
        for name, paper in papers.items()
        for item, about in paper["items"].items()
        if f"{name}, {item}" not in filled
    ]
    if not rows:
        return []
    return [
        "## Other items of the papers",
        markdown(["paper", "item", "content", "command", "published", "ours", "deviations"], rows),
    ]


def _command(about: Mapping[str, Any], numbers: Numbers) -> list[str]:
    if about.get("illustration"):
        return ["nothing to reproduce", "", "", ""]
    command = f"`{about['command']}`" if "command" in about else "none"
    return [command, str(about.get("published", "")), str(about.get("ours", "")), _numbers(about, numbers)]


def _numbers(about: Mapping[str, Any], numbers: Numbers) -> str:
    """The numbers of the differences in a table or an item. New differences are added to ``numbers``."""
    found = []
    for kind, (letter, _) in KINDS.items():
        texts, known = [text.rstrip(".") for text in about.get(kind, ())], numbers[kind]
        places = [known.setdefault(text, len(known) + 1) for text in texts]
        found += [f"{letter}{number}" for number in sorted(places)]
    return ", ".join(found)
