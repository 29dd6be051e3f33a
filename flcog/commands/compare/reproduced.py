"""REPRODUCED.md: the papers' claims, each table that was run, and the differences from the papers; not-run.md has the other tables."""

import shlex
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from flcog.commands import shipped_configs
from flcog.commands.compare.figure import MARKS, draw_differences
from flcog.commands.compare.report import figure_line, published_figures
from flcog.commands.compare.result_table import ResultTable
from flcog.commands.compare.runs import runs_of, stated, words_of
from flcog.commands.compare.saved_results import results_of, seeds_run
from flcog.commands.compare.table import Table, read_mapping, read_table
from flcog.commands.compare.tuning import FILE as TUNED
from flcog.commands.compare.tuning import with_choices
from flcog.commands.compare.verdicts import CONTRADICTED, DIVERGED, NOT_JUDGED, NOT_RUN, REPRODUCED, UNDECIDED, Verdict, verdicts
from flcog.core.files import replacing, short
from flcog.core.text import markdown

KINDS = {
    "deviations": ("D", "Deviations that contradict the papers"),
    "unstated": ("S", "Settings that the papers do not state"),
}
"""Kinds of differences from the papers, with the letters of their numbers and their headings."""

COUNTED = "counted above"
"""The mark of a verdict on the same runs as in an earlier table."""

Judged = dict[Path, list[tuple[Verdict, bool]]]
"""The verdicts of each table's file, and whether each counts, because no earlier table has it on the same runs."""

Numbers = dict[str, dict[str, int]]
"""The numbers of differences by kind and text."""

Paper = Mapping[str, Any]
FIGURE = ["published", "ours", "95 % interval of the difference", "verdict"]
CLAIMS = ["paper", "claim", *FIGURE, "seeds and splits", "main deviation", "command"]
DRAWN = Path("docs/assets/reproduced.svg")
HEADER = ["paper", "items", "content", "published figures", "runs", "seeds", "date", "table", "deviations"]

RULE = """`flcog compare --reproduced` writes this page from the runs and the saved results that it finds; do not edit it. A published \
figure is *reproduced* if the 90 % interval of ours minus the paper's lies within the table's margin, *contradicted* if the 95 % interval \
lies wholly outside, and *undecided* otherwise; a gain also needs an interval without 0. A published gain is the difference of two \
scores, and its ± comes from theirs. Verdicts wait for all seeds of the table. *Exploratory* verdicts have seeds that had been seen \
before the margin was fixed. If all seeds have one split, a verdict speaks of this split alone; if each seed has its own, our spread over \
splits counts for the paper's figure, too. With `--show`, a claim's command prints its runs and draws their curves; without, it trains \
them. The time of a claim that was not run is for all its runs on two cores of an Intel Xeon, estimated from a measured round or step. \
The last column of the tables refers to the lists below: D marks contradictions to the paper, S settings that it does not state. [The \
tables that were not run](results/not-run.md) and [each judged figure](results/verdicts.csv) have files of their own."""

DIFFERENCES = """![Ours minus published for {count} figures, with 95 % intervals, in margins]({path})

*Ours minus published for the {count} verdicts (some published figures have two), with 95 % intervals, in margins: the band from -1 to 1 \
is the margin. For rounds to a target, the axis has the logarithm of their ratio. Exploratory verdicts have hollow marks.*"""


def write_page(tables: Sequence[Path], roots: Sequence[Path], saved: Path, page: Path) -> None:
    """Write the page about these tables, or all that come with flcog.

    ``roots`` contain a folder of runs for each table, named like its file; ``saved`` has files of saved results.
    """
    configs = shipped_configs.folder()
    papers = read_mapping(configs / "papers.yaml")
    fillings = [_filling(path, roots, saved) for path in tables or sorted((configs / "tables").glob("*.yaml"))]
    found = _judged(fillings)
    own = [(each.table, one) for each in fillings for one, counts in found[each.table.path] if counts and one.ours.judged.count]
    own = [(table, one) for table, one in own if one.mark != DIVERGED]
    judged = published_figures([one for _, one in own])
    judged = judged.assign(margin=[one.margin for _, one in own], table=[table.name for table, _ in own])
    drawn = judged[judged.verdict.str.match("|".join(MARKS)) & judged.low.notna()]
    if len(drawn):
        draw_differences(drawn, page.parent / DRAWN)
    (reproduced, not_run), beside = pages_text(papers, fillings, found, len(drawn)), page.parent / "results"
    for path, text in ((page, reproduced), (beside / "not-run.md", not_run)):
        with replacing(path, "w") as file:
            file.write(text)
    with replacing(beside / "verdicts.csv", "w") as file:
        judged.to_csv(file, index=False)
    run = sum(bool(filling.results) for filling in fillings)
    print(f"{short(page)}: {len(fillings)} tables, {run} of them trained in part or completely")


def _filling(path: Path, roots: Sequence[Path], saved: Path) -> ResultTable:
    """A table with its finished runs of exactly its settings."""
    files = [*(root / path.stem / TUNED for root in roots), saved / f"{path.stem}.tuned.yaml"]
    table, kept = with_choices(read_table(path), *files), saved / f"{path.stem}.csv"
    found: dict[str, Mapping[str, Any]] = {}
    for root in roots:
        out = root / path.stem
        seeds = tuple(dict.fromkeys([*table.seeds, *seeds_run(table, out, kept)]))
        results = results_of(table, runs_of(replace(table, seeds=seeds), out), kept)
        found |= {result["label"]: result for result in results if result["finished"] and not result["other"]}
    return ResultTable(table, list(found.values()))


def _judged(fillings: Sequence[ResultTable]) -> Judged:
    """The verdicts of all tables. The papers' tables come first, so that verdicts on the same runs count there."""
    first: dict[Any, Path] = {}
    found: Judged = {}
    for filling in sorted(fillings, key=lambda filling: not filling.table.reproduces):
        path, judged = filling.table.path, verdicts(filling)
        found[path] = [(one, first.setdefault(_runs_and_figure(filling.table, one), path) == path) for one in judged]
    return found


def _runs_and_figure(table: Table, one: Verdict) -> tuple[Any, ...]:
    column = table.views[one.view].column if one.view in table.views else one.view
    arms = (stated(words_of(table, row, column)) if column in table.columns else row for row in (one.row, table.against[one.row]))
    return (*arms, one.view, one.quantity, one.published, table.file.seeds, one.mark)


def pages_text(papers: Mapping[str, Paper], fillings: Sequence[ResultTable], judged: Judged, drawn: int) -> tuple[str, str]:
    """The page of the claims, the tables with runs, the further items and the numbered deviations, and the page of the other tables."""
    numbers: Numbers = {kind: {} for kind in KINDS}
    known = {f"{name}, {item}" for name, paper in papers.items() for item in paper["items"]}
    no_paper: Paper = {"items": {}}
    lines = {"paper": list[list[str]](), "own": list[list[str]](), "not run": list[list[str]]()}
    for name, about in [*papers.items(), ("", no_paper)]:
        for filling in fillings:
            if _items(name, about, filling.table) if name else not set(filling.table.reproduces) & known:
                kind = ("paper" if name else "own") if filling.results else "not run"
                lines[kind].append(_line(name, about, filling, numbers, judged[filling.table.path]))
    claims = [_claim(name, claim, fillings, judged) for name, paper in papers.items() for claim in paper.get("claims", ())]
    filled = {item for filling in fillings for item in filling.table.reproduces}
    further = [
        [name, item, str(about["shows"]), *_command(about, numbers)]
        for name, paper in papers.items()
        for item, about in paper["items"].items()
        if f"{name}, {item}" not in filled
    ]
    header = ["paper", "item", "content", "command", "published", "ours", "deviations"]
    parts = [
        "# The papers' tables: runs and verdicts",
        *(["## The papers' claims", markdown(CLAIMS, claims)] if claims else []),
        *([DIFFERENCES.format(count=drawn, path=DRAWN.as_posix())] if drawn else []),
        RULE,
        "\n".join(f"- **{name}**: [{paper['title']}]({paper['url']})" for name, paper in papers.items()),
        *(["## Tables of the papers", markdown(HEADER, lines["paper"])] if lines["paper"] else []),
        *(["## Tables of our own", markdown(HEADER, lines["own"])] if lines["own"] else []),
        *(["## Other items of the papers", markdown(header, further)] if further else []),
    ]
    for kind, (letter, heading) in KINDS.items():
        listed = (f"- **{letter}{number}** {text[:1].upper()}{text[1:]}." for text, number in numbers[kind].items())
        parts += [f"## {heading}", "\n".join(listed)] if numbers[kind] else []
    why = "`flcog compare TABLE` fills each, `--dry-run` prints its runs. `REPRODUCED.md` has the deviations by their numbers."
    open_ = ["# Tables that were not run", why, markdown(HEADER, lines["not run"])]
    return "\n\n".join(parts) + "\n", "\n\n".join(open_).replace("](configs/", "](../configs/") + "\n"


def _claim(name: str, claim: Mapping[str, str], fillings: Sequence[ResultTable], judged: Judged) -> list[str]:
    """The line of a claim: the verdict on one published figure of a table."""
    filling, table = next((each, each.table) for each in fillings if each.table.name == claim["table"])
    one = next(
        each
        for each, _ in judged[table.path]
        if (each.row, each.view, each.quantity) == (claim["row"], claim.get("column", ""), claim.get("figure", "gain"))
    )
    line, differences = figure_line(filling, one), [*table.deviations, *table.unstated]
    seeds = f"{line['seeds']}, {'each with its split' if table.varies_split else 'one split'}" if line["seeds"] else ""
    names = dict.fromkeys(filter(None, (table.against[one.row], one.row, table.views[one.view].column)))
    command = f"`flcog compare {table.name} --only {shlex.join(names)}`"
    line["verdict"] += f": {claim['cost']}" if one.mark == NOT_RUN and "cost" in claim else ""
    return [name, claim["claim"], *(line[each] for each in FIGURE), seeds, claim.get("deviation") or differences[0], command]


def _items(name: str, paper: Paper, table: Table) -> list[str]:
    """The items of a paper that a table fills."""
    return [item for item in paper["items"] if f"{name}, {item}" in table.reproduces]


def _line(name: str, paper: Paper, filling: ResultTable, numbers: Numbers, judged: Sequence[tuple[Verdict, bool]]) -> list[str]:
    """The line of a table."""
    table, results, items = filling.table, filling.results, _items(name, paper, filling.table)
    shows = "; ".join(dict.fromkeys(str(paper["items"][item]["shows"]) for item in items)) or table.title
    done = {(result["row"], result["column"], result["seed"]) for result in results}
    seen = {seed for _, _, seed in done}
    total = len(table.rows) * len(table.columns) * len(seen.union(table.seeds))
    seeds = ", ".join(map(str, sorted(seen))) + ", one split" * bool(seen and not table.varies_split)
    date = max((result["date"] for result in results), default="")
    shipped = table.path.resolve().parent == (shipped_configs.folder() / "tables").resolve()
    link = f"[{table.name}](configs/tables/{table.path.name})" if shipped else str(short(table.path))
    about = {"deviations": table.deviations, "unstated": table.unstated}
    return [name, ", ".join(items), shows, _counts(judged), f"{len(done)} / {total}", seeds, date, link, _numbers(about, numbers)]


def _counts(judged: Sequence[tuple[Verdict, bool]]) -> str:
    """The numbers of verdicts of each kind. A verdict on the same runs as in a table above is not counted again."""
    marks = Counter(one.shown if counts else COUNTED for one, counts in judged if one.mark != NOT_JUDGED)
    others = [mark for mark in marks if mark not in (NOT_RUN, COUNTED)]
    order = dict.fromkeys((REPRODUCED, CONTRADICTED, UNDECIDED, *others, NOT_RUN, COUNTED))
    return ", ".join(f"{marks[mark]} {mark}" for mark in order if marks[mark]) or "none"


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
