"""The command ``flcog compare``: reads a table, runs its arms, prints and writes the filled table."""

import argparse
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import flcog.callbacks
from flcog.commands import shipped_configs
from flcog.commands.compare.filling import fill
from flcog.commands.compare.folder import print_damage
from flcog.commands.compare.plan import Cell, Table, apart, cells, quoted, select
from flcog.commands.compare.results import check_metric
from flcog.commands.compare.saved_results import results_of, seeds_run, write_results
from flcog.commands.compare.table_file import read_table, with_bounds
from flcog.commands.compare.table_keys import KEYS
from flcog.core import signals
from flcog.core.commands import parser_of

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


def _share(text: str) -> float:
    value = float(text)
    if not 0 < value < 1:
        raise argparse.ArgumentTypeError(f"must lie between 0 and 1, such as 0.95; got {text}")
    return value


def compare(arguments: list[str]) -> None:
    """Fill a paper's table: every arm in every setting with every seed, and say how they differ.

    If it is stopped, the same command goes on where it was; what another table under the same folder has finished is not run
    again. It ends as table.md, table.tex, table.csv and curves (PNG and PDF) beside the runs: scores over seeds, differences
    paired by seed with intervals and p-values, and the paper's figures with a mark where they are reproduced.
    """
    end = arguments.index("--") if "--" in arguments else len(arguments)
    own, extra = arguments[:end], arguments[end + 1 :]
    options = _parser().parse_args(own)
    if options.reproduced:
        _reproduced(options, extra)
        return
    if len(options.table) != 1 or len(options.out) > 1:
        raise ValueError("flcog compare takes one table and one --out, or several with --reproduced; flcog compare --help")
    (path,), out = options.table, options.out[0] if options.out else Path("runs") / options.table[0].stem
    table = _chosen(options, path, out)
    runs = cells(table, out, extra)
    print_damage(
        [cell.damage for cell in runs],
        "" if options.show else ", and is trained again; the old run is kept in the folder damaged",
    )
    failed = [] if options.show else _fill(table, runs, out, options)
    _report(table, runs, out, path, options)
    _end(failed, len(apart(runs)))


def _fill(table: Table, runs: Sequence[Cell], out: Path, options: argparse.Namespace) -> list[Cell]:
    """Run what is not finished; returns what failed."""
    from flcog.commands.compare.filled import Filled
    from flcog.commands.compare.table import summarise

    def filled() -> tuple[list[str], list[list[str]]]:
        return summarise(Filled(table, results_of(table, runs, None)), options.spread)

    return fill(apart(runs), options.jobs, out.resolve().parent, table.trunks and not options.no_trunks, filled)


def _parser() -> argparse.ArgumentParser:
    keys = "\n".join(f"  {name}: {key.meaning}" for name, key in KEYS.items())
    bounds = " and ".join(f"{name} ({what})" for name, what in flcog.callbacks.BOUNDS.items())
    parser = parser_of(
        "compare",
        compare,
        epilog=f"{EXTRA}\n\nA table's YAML file may say:\n{keys}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "table", type=_table, nargs="*", help="the table's YAML file, or the name of one that comes with flcog, e.g. digits"
    )
    parser.add_argument(
        "--out",
        type=Path,
        action="append",
        default=[],
        help="where the runs and the table go; runs/<name of the file> by default",
    )
    parser.add_argument("--jobs", type=_number, default=1, help="runs side by side, which share the cores")
    parser.add_argument(
        "--no-trunks",
        action="store_true",
        help="train every run from round 1 on; else arms that are the same until a round (start_round) branch from one of them there, "
        "with the same numbers",
    )
    parser.add_argument("--seeds", type=_seed, nargs="+", help="seeds instead of the table's")
    parser.add_argument("--only", nargs="+", metavar="NAME", help="only these rows or columns")
    parser.add_argument(
        "--bounds",
        action="store_true",
        help=f"two rows more, which papers draw as lines: {bounds}",
    )
    parser.add_argument("--last", type=_number, help="mean of so many last evaluations, instead of the table's (or 5)")
    parser.add_argument(
        "--against", metavar="ROW", help="the row that the others are compared with, instead of the table's (or the first)"
    )
    parser.add_argument("--confidence", type=_share, help="of the intervals, instead of the table's (or 0.95)")
    parser.add_argument(
        "--spread",
        choices=("std", "sem", "interval"),
        default="std",
        help="what stands after ±: standard deviation over seeds (default), standard error of the mean, or half of its interval",
    )
    parser.add_argument("--show", action="store_true", help="print the table of what has been run so far, and run nothing")
    parser.add_argument(
        "--save-results",
        action="store_true",
        help="write the finished runs' results, a line each, to RESULTS/<name of the file>.csv",
    )
    parser.add_argument(
        "--results",
        type=Path,
        default=Path("results"),
        help="folder of saved results, which --show and --reproduced read where a run's directory is gone; results by default",
    )
    parser.add_argument(
        "--reproduced",
        action="store_true",
        help="write REPRODUCED.md: every table and figure of the papers, its command, what is not as in them, how much has been run "
        "and whether it came out the same. Runs nothing; takes the given tables or all that come with flcog, and each --out (runs by "
        "default) as a folder of tables' folders",
    )
    return parser


def _chosen(options: argparse.Namespace, path: Path, out: Path) -> Table:
    """The table of the file, with what the options change of it."""
    table = with_bounds(read_table(path)) if options.bounds else read_table(path)
    if options.seeds:
        table = replace(table, seeds=tuple(dict.fromkeys(options.seeds)))
    if options.last:
        table = replace(table, last=options.last)
    if options.confidence:
        table = replace(table, confidence=options.confidence)
    if options.only:
        table = select(table, options.only)
    if options.against is not None:
        if options.against not in table.rows:
            raise ValueError(f"--against {options.against}: the table has the rows {quoted(table.rows)}")
        table = replace(table, against=dict.fromkeys(table.rows, options.against))
    if options.show and not options.seeds:
        saved = _saved_file(options, path)
        table = replace(table, seeds=seeds_run(table, out, saved) or table.seeds)
    return table


def _report(table: Table, runs: Sequence[Cell], out: Path, path: Path, options: argparse.Namespace) -> None:
    """Print the filled table, write it and its curves beside the runs, and save the results if asked."""
    from flcog.commands.compare.report import report

    saved = _saved_file(options, path)
    results = results_of(table, runs, saved if options.show else None)
    report(table, runs, results, out, options.spread)
    if options.save_results:
        count = write_results(saved, results, runs)
        print(f"{count} finished runs saved in {saved}" if count else f"no run has finished: nothing is saved in {saved}")
    check_metric(results, runs)


def _saved_file(options: argparse.Namespace, path: Path) -> Path:
    return options.results / f"{path.stem}.csv"


def _reproduced(options: argparse.Namespace, extra: Sequence[str]) -> None:
    from flcog.commands.compare.reproduced import write_page

    if extra:
        raise ValueError("--reproduced runs nothing, so nothing can stand after --")
    write_page(options.table, options.out or [Path("runs")], options.results, Path("REPRODUCED.md"))


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
