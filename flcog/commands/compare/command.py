"""The command ``flcog compare``: reads a table, trains its arms, prints and writes the filled table."""

import argparse
import shutil
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import flcog.callbacks
from flcog.commands import shipped_configs
from flcog.commands.compare.filling import Known, Launcher, fill
from flcog.commands.compare.folder import print_damage
from flcog.commands.compare.plan import Cell, Table, apart, cells, quoted, select, with_against
from flcog.commands.compare.results import check_metric
from flcog.commands.compare.runner import Runner
from flcog.commands.compare.saved_results import results_of, seeds_run, write_results
from flcog.commands.compare.settings_of_runs import check_options
from flcog.commands.compare.table_file import read_table, with_bounds
from flcog.commands.compare.table_keys import KEYS
from flcog.commands.compare.tuning import FILE as TUNED
from flcog.commands.compare.tuning import checked_candidates, tune, with_choice
from flcog.core import signals
from flcog.core.commands import parser_of

EXTRA = "Arguments after -- go to every run, as to flcog fit: flcog compare configs/tables/sanity.yaml -- --trainer.rounds 5"

MANY = 100
"""The number of jobs in Slurm's queue at a time, without ``--jobs``."""


def _checked(kind: Callable[[str], Any], fits: Callable[[Any], bool], wanted: str) -> Callable[[str], Any]:
    """A function that converts an option's text, and refuses values that do not fit."""

    def convert(text: str) -> Any:
        with suppress(ValueError):
            if fits(value := kind(text)):
                return value
        raise argparse.ArgumentTypeError(f"must {wanted}; got {text}")

    return convert


SEED = _checked(int, lambda value: value >= 0, "be a whole number of at least 0")
COUNT = _checked(int, lambda value: value >= 1, "be a whole number of at least 1")
SHARE = _checked(float, lambda value: 0 < value < 1, "lie between 0 and 1, such as 0.95")


def _table(text: str) -> Path:
    return Path(shipped_configs.find(text, within="tables"))


def compare(arguments: list[str]) -> None:
    """Fill a paper's table: train every arm in every setting with every seed, and compare the arms.

    If the command is stopped, the same command continues. Runs that another table in the same folder has finished are not trained
    again. The result is written beside the runs as table.md, table.tex, table.csv and curves (PNG and PDF): scores over seeds,
    differences paired by seed with intervals and p-values, and marks for the paper's figures that are reproduced.
    """
    end = arguments.index("--") if "--" in arguments else len(arguments)
    own, extra = arguments[:end], arguments[end + 1 :]
    parser = _parser()
    options = parser.parse_args(own)
    if options.reproduced:
        from flcog.commands.compare.reproduced import write_page

        _check_alone(parser, options, extra)
        write_page(options.table, options.out or [Path("runs")], options.results, Path("REPRODUCED.md"))
        return
    if len(options.table) != 1 or len(options.out) > 1:
        raise ValueError("flcog compare takes one table and one --out, or several with --reproduced; flcog compare --help")
    (path,) = options.table
    options.out = options.out[0] if options.out else Path("runs") / path.stem
    options.saved = options.results / f"{path.stem}.csv"
    given, launcher = _chosen(options, path), _launcher(options)
    if options.tune:
        tune(given, options.out, extra, lambda grid, runs: _fill(grid, runs, options, launcher))
    table = with_choice(given, options.out / TUNED, options.saved.with_suffix(".tuned.yaml"), extra=extra)
    runs = cells(table, options.out, extra)
    print_damage(
        [cell.damage for cell in runs],
        "" if options.show or options.dry_run else ", and is trained again; the old run is kept in the folder damaged",
    )
    if options.dry_run:
        _describe(given, extra, table, runs, options)
        return
    check_options(runs)
    failed = [] if options.show else _fill(table, runs, options, launcher)
    _report(table, runs, options)
    _end(failed, len(apart(runs)))


def _check_alone(parser: argparse.ArgumentParser, options: argparse.Namespace, extra: Sequence[str]) -> None:
    """Refuse options that mean nothing beside ``--reproduced``."""
    own = ("table", "out", "results", "reproduced")
    given = [name for name, value in vars(options).items() if name not in own and value != parser.get_default(name)]
    if names := [*(f"--{name.replace('_', '-')}" for name in given), *["the arguments after --"] * bool(extra)]:
        raise ValueError(f"--reproduced trains nothing and takes only tables, --out and --results: remove {', '.join(names)}")


def _describe(given: Table, extra: Sequence[str], table: Table, runs: Sequence[Cell], options: argparse.Namespace) -> None:
    """Print the runs of the table and of its search (``--tune``). The ``given`` table has no values of an earlier search."""
    from flcog.commands.compare.dry_run import describe, describe_grid, unreadable

    results, root, once = results_of(table, runs, options.saved), options.out.resolve().parent, apart(runs)
    found = checked_candidates(given, options.out, extra) if any(part.tune for part in given.rows.values()) else []
    failing = unreadable(once)
    if len(failing) < len(once):
        print(describe(once, results, root))
        if found:
            print(f"\n{describe_grid(given, found, results, root)}")
    for name, reason in failing.items():
        raise ValueError(f"{len(failing)} of {len(once)} runs cannot be trained, the first, {name}: {reason}")


def _fill(table: Table, runs: Sequence[Cell], options: argparse.Namespace, launcher: Callable[[Known], Launcher]) -> list[Cell]:
    """Train the unfinished runs. Returns the failed cells."""
    from flcog.commands.compare.result_table import ResultTable
    from flcog.commands.compare.table import summarise

    def filled() -> tuple[list[str], list[list[str]]]:
        return summarise(ResultTable(table, results_of(table, runs, None)), options.spread)

    return fill(apart(runs), launcher, options.out.resolve().parent, filled)


def _launcher(options: argparse.Namespace) -> Callable[[Known], Launcher]:
    """Make the launcher that the options name."""
    wishes = {name: getattr(options, name) for name in ("partition", "time", "gpus")}
    if options.launcher == "local":
        if given := [f"--{name}" for name, value in wishes.items() if value is not None]:
            raise ValueError(f"{given[0]} is for jobs of a cluster: add --launcher slurm, or leave {given[0]} out")
        return lambda known: Runner(options.jobs or 1, known)
    from flcog.commands.compare.slurm import SlurmRunner
    from flcog.commands.compare.slurm_queue import Queue

    queue = Queue(**wishes)
    if not (options.show or options.dry_run):
        queue.check()
    return lambda known: SlurmRunner(options.jobs or MANY, queue, known)


def _parser() -> argparse.ArgumentParser:
    keys = "\n".join(f"  {name}: {key.meaning}" for name, key in KEYS.items())
    parser = parser_of(
        "compare",
        compare,
        epilog=f"{EXTRA}\n\nThe keys of a table's YAML file:\n{keys}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "table", type=_table, nargs="*", help="a table's YAML file, or the name of a shipped table, such as digits"
    )
    out = "the folder of the runs and the filled table; runs/<name of the file> by default"
    parser.add_argument("--out", type=Path, action="append", default=[], help=out)
    jobs = f"the number of simultaneous runs, which share the cores (default 1), or of jobs in Slurm's queue (default {MANY})"
    parser.add_argument("--jobs", type=COUNT, help=jobs)
    instead = parser.add_mutually_exclusive_group()
    instead.add_argument("--show", action="store_true", help="print the table so far, and train nothing")
    dry_run = "print each cell's configuration, its estimated time and the results that it reuses; train and write nothing"
    tune = "first choose the values in the rows' `tune` by the clients' validation data, on seeds that the table does not use"
    instead.add_argument("--tune", action="store_true", help=tune)
    instead.add_argument("--dry-run", action="store_true", help=dry_run)
    _add_options_of_the_table(parser)
    _add_options_of_slurm(parser)
    save = "write the results of finished runs to RESULTS/<name of the file>.csv, one line each"
    parser.add_argument("--save-results", action="store_true", help=save)
    results = "the folder of saved results, which replace missing runs for --show and --reproduced; results by default"
    parser.add_argument("--results", type=Path, default=Path("results"), help=results)
    reproduced = (
        "write REPRODUCED.md: every table and figure of the papers with its command, deviations, trained cells and reproduced figures. "
        "Trains nothing. Reads the given tables, by default all shipped ones, and takes each --out as a folder of tables' folders"
    )
    parser.add_argument("--reproduced", action="store_true", help=reproduced)
    return parser


def _add_options_of_the_table(parser: argparse.ArgumentParser) -> None:
    """Options that change the table of the file."""
    bounds = " and ".join(f"{name} ({meaning})" for name, meaning in flcog.callbacks.BOUNDS.items())
    parser.add_argument("--seeds", type=SEED, nargs="+", help="seeds instead of the table's")
    parser.add_argument("--only", nargs="+", metavar="NAME", help="only these rows or columns")
    parser.add_argument("--bounds", action="store_true", help=f"add the bounds that papers draw as lines: {bounds}")
    parser.add_argument("--last", type=COUNT, help="the number of evaluations in the mean, instead of the table's (or 5)")
    against = "the row that the others are compared with, instead of the table's (or the first)"
    parser.add_argument("--against", metavar="ROW", help=against)
    confidence = "the confidence of the shown intervals, instead of the table's (or 0.95); verdicts have their own"
    parser.add_argument("--confidence", type=SHARE, help=confidence)
    spread = "the figure after ±: standard deviation over seeds (default), standard error of the mean, or half of its interval"
    parser.add_argument("--spread", choices=("std", "sem", "interval"), default="std", help=spread)


def _add_options_of_slurm(parser: argparse.ArgumentParser) -> None:
    launcher = "local (default) trains on this machine; slurm submits each run as a job: pip install 'flcog[slurm]'"
    parser.add_argument("--launcher", choices=("local", "slurm"), default="local", help=launcher)
    parser.add_argument("--partition", help="the partition for Slurm's jobs, instead of the cluster's default")
    time = "the time limit of one of Slurm's jobs: minutes, or D-HH:MM:SS. A run that reaches it is submitted again and resumes"
    parser.add_argument("--time", help=time)
    parser.add_argument("--gpus", type=COUNT, help="the number of GPUs for each of Slurm's jobs; none by default")


def _chosen(options: argparse.Namespace, path: Path) -> Table:
    """The table of the file, changed by the options."""
    if options.bounds and options.tune:
        raise ValueError(
            "--bounds adds rows without values to try: give --tune first, and then the same command with --bounds instead"
        )
    table = with_bounds(read_table(path)) if options.bounds else read_table(path)
    seeds = tuple(dict.fromkeys(options.seeds or ()))
    given: dict[str, Any] = {"seeds": seeds, "last": options.last, "confidence": options.confidence}
    if options.last and options.last != table.last and table.published and "mean" in map(table.summary_of, table.columns):
        raise ValueError(
            f"{table.name} is compared with the paper by the mean of the last {table.last} evaluations; got --last {options.last}: "
            "leave it out, or set last in a copy of the table"
        )
    table = replace(table, **{name: value for name, value in given.items() if value})
    if options.only:
        table = select(table, options.only)
    if options.against is not None:
        if options.against not in table.rows:
            raise ValueError(f"--against {options.against}: the table has the rows {quoted(table.rows)}")
        table = with_against(table, dict.fromkeys(table.rows, options.against))
    if options.show and not options.seeds:
        table = replace(table, seeds=seeds_run(table, options.out, options.saved) or table.seeds)
    return table


def _report(table: Table, runs: Sequence[Cell], options: argparse.Namespace) -> None:
    """Print the filled table, write it and its curves beside the runs, and save the results with ``--save-results``."""
    from flcog.commands.compare.report import report

    results = results_of(table, runs, options.saved if options.show else None)
    report(table, results, options.out, options.spread)
    if options.save_results:
        _save(table, runs, options)
    check_metric(results, runs)


def _save(table: Table, runs: Sequence[Cell], options: argparse.Namespace) -> None:
    """Save the finished runs of the table's seeds, or of those in ``--seeds``, and the values that a search has chosen."""
    wanted = options.seeds or table.planned
    count = write_results(options.saved, table, [cell for cell in runs if cell.seed in wanted])
    if (options.out / TUNED).is_file():
        shutil.copy(options.out / TUNED, options.saved.with_suffix(".tuned.yaml"))
    none = f"no run with the settings of the table and the command has finished: nothing is saved in {options.saved}"
    print(f"{count} finished runs saved in {options.saved}" if count else none)
    if others := sorted({cell.seed for cell in runs if cell.seed not in wanted and cell.finished}):
        seeds = " ".join(map(str, others))
        print(f"seeds in {options.out} that the table does not name are not saved; to save them, add --seeds {seeds}")


def _end(failed: Sequence[Cell], count: int) -> None:
    """Report the runs that failed or belong to another process, as the command's error or exit status."""
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
