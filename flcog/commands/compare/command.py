"""The command ``flcog compare``: reads a table, runs its arms, prints and writes the filled table."""

import argparse
import csv
import signal
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from flcog.commands import shipped_configs
from flcog.commands.compare.plan import OUT_REMEDY, Cell, Table, cells, seeds_run, select
from flcog.commands.compare.runner import Runner, claim
from flcog.commands.compare.table import check_metric, scores, summarise
from flcog.commands.compare.table_file import KEYS, read_table
from flcog.core import signals
from flcog.core.commands import Command
from flcog.core.files import replacing
from flcog.core.text import markdown, seconds

EXTRA = "Arguments after -- go to every run, as to flcog fit: flcog compare configs/tables/sanity.yaml -- --trainer.rounds 5"


def _seed(text: str) -> int:
    value = int(text)
    if value < 0:
        raise argparse.ArgumentTypeError(f"must be at least 0; got {value}")
    return value


def _number(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"must be at least 1; got {value}")
    return value


def _table(text: str) -> Path:
    return Path(shipped_configs.find(text, within="tables"))


def compare(arguments: list[str]) -> None:
    """Fill a paper's table: every arm in every setting with every seed.

    If it is stopped, the same command goes on where it was.
    """
    end = arguments.index("--") if "--" in arguments else len(arguments)
    own, extra = arguments[:end], arguments[end + 1 :]
    options = _parser().parse_args(own)
    out = options.out or Path("runs") / options.table.stem
    table = _chosen(options, out)
    runs = cells(table, out, extra)
    failed = [] if options.show else _fill(runs, options.jobs, table.metric)
    _report(table, runs, out)
    check_metric(table.metric, [cell.history() for cell in runs if cell.finished])
    _end(failed, len(runs))


def _parser() -> argparse.ArgumentParser:
    keys = "\n".join(f"  {key}: {meaning}" for key, meaning in KEYS.items())
    parser = COMPARE.parser(
        epilog=f"{EXTRA}\n\nA table's YAML file may say:\n{keys}", formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("table", type=_table, help="the table's YAML file, or the name of one that comes with flcog, e.g. digits")
    parser.add_argument("--out", type=Path, help="where the runs and the table go; runs/<name of the file> by default")
    parser.add_argument("--jobs", type=_number, default=1, help="runs side by side, which share the cores")
    parser.add_argument("--seeds", type=_seed, nargs="+", help="seeds instead of the table's")
    parser.add_argument("--only", nargs="+", metavar="NAME", help="only these rows or columns")
    parser.add_argument("--last", type=_number, help="mean of so many last evaluations, instead of the table's (or 5)")
    parser.add_argument("--show", action="store_true", help="print the table of what has been run so far, and run nothing")
    return parser


def _chosen(options: argparse.Namespace, out: Path) -> Table:
    """The table of the file, with what the options change of it."""
    table = read_table(options.table)
    if options.seeds:
        table = replace(table, seeds=tuple(dict.fromkeys(options.seeds)))
    if options.last:
        table = replace(table, last=options.last)
    if options.only:
        table = select(table, options.only)
    if options.show and not options.seeds:
        table = replace(table, seeds=seeds_run(table, out) or table.seeds)
    return table


def _report(table: Table, runs: Sequence[Cell], out: Path) -> None:
    """Print the filled table, and write it and its curves beside the runs."""
    from flcog.commands.compare.curves import draw_curves

    header, rows = summarise(table, runs)
    text = markdown(header, rows)
    print(f"\n{table.title}\n\n{text}\n", flush=True)
    if out.is_dir():
        with replacing(out / "table.md", "w", OUT_REMEDY) as file:
            file.write(f"{table.title}\n\n{text}\n")
        with replacing(out / "table.csv", "w", OUT_REMEDY) as file:
            csv.writer(file).writerows([header, *rows])
    drawn = out.is_dir() and draw_curves(table, runs, out / "curves.png")
    print(f"{out / 'table.md'}, {out / 'table.csv'}" + (f", {out / 'curves.png'}" if drawn else ""))


def _end(failed: Sequence[Cell], count: int) -> None:
    """Say which of ``count`` runs failed or belong to another process, as the command's error or exit status."""
    busy, broken = [cell for cell in failed if cell.busy], [cell for cell in failed if not cell.busy]
    if busy:
        print(f"{len(busy)} of {count} runs belong to another process: give the same command again when it has ended", flush=True)
    if broken:
        first = broken[0]
        raise ValueError(
            f"{len(broken)} of {count} runs failed, the first, {first.name}: {first.error} (all of it: {first.folder}/output.txt)"
        )
    if busy:
        raise SystemExit(signals.EXIT_STATUS)


def _fill(runs: Sequence[Cell], jobs: int, metric: str | None) -> list[Cell]:
    """Run what is not finished, telling each one's ``metric``; returns what failed."""
    for cell in runs:
        claim(cell)
    todo, runner = [cell for cell in runs if not cell.finished], Runner(jobs)
    before = signals.answer(runner.stop)
    try:
        print(f"{len(runs)} runs, {len(runs) - len(todo)} of them finished before", flush=True)
        for count, (cell, took) in enumerate(runner.run(todo), start=1):
            print(f"[{count}/{len(todo)}] {cell.name}: {_outcome(cell, metric)} ({seconds(took)})", flush=True)
    finally:
        signals.put_back(before)
    finished = sum(cell.finished for cell in runs)
    if runner.signal and finished < len(runs):
        what = f"stopped by {signals.name(runner.signal)}, {finished} of {len(runs)} runs finished"
        print(f"\n{what}. The same command goes on with the others, where each of them was\n", flush=True)
        raise KeyboardInterrupt if runner.signal == signal.SIGINT else SystemExit(signals.EXIT_STATUS)
    return [cell for cell in todo if cell.error]


def _outcome(cell: Cell, metric: str | None) -> str:
    if cell.error:
        return cell.error if cell.busy else f"failed: {cell.error}"
    history = cell.history()
    return "best " + ", last ".join(scores(metric, [history])[:2] if history else ["no evaluation"])


COMPARE = Command("compare", compare)
