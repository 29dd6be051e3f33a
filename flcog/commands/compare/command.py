"""The command ``flcog compare``: reads a table, trains its rows, prints and writes the filled table."""

import argparse
import shlex
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pandas
from docstring_parser import parse
from jsonargparse.typing import NonNegativeInt, PositiveInt

import flcog.callbacks
from flcog.commands import shipped_configs
from flcog.commands.compare.launcher import Launcher, LocalLauncher, check, fill
from flcog.commands.compare.report import report
from flcog.commands.compare.reproduced import write_page
from flcog.commands.compare.runs import OUTPUT, Run, runs_of
from flcog.commands.compare.saved_results import results_of, seeds_run, write_results
from flcog.commands.compare.slurm import SlurmLauncher
from flcog.commands.compare.table import Table, read_table, select, with_bounds
from flcog.commands.compare.tuning import FILE as TUNED
from flcog.commands.compare.tuning import studies_of, tune, with_choices
from flcog.core.commands import parser_of
from flcog.core.text import clock

EXTRA = "Arguments after -- go to every run, as to flcog fit: flcog compare configs/tables/sanity.yaml -- --trainer.rounds 5"

MANY = 100
"""The number of jobs in Slurm's queue at a time, without ``--jobs``."""


def compare(arguments: list[str]) -> None:
    """Fill a table: train every row in every column with every seed, and compare the rows.

    If the command is stopped, the same command continues. The result is written beside the runs as Markdown, LaTeX, CSV and curves:
    scores over seeds, differences paired by seed with intervals and p-values, and marks for the paper's figures that are reproduced.
    """
    end = arguments.index("--") if "--" in arguments else len(arguments)
    own, extra = arguments[:end], arguments[end + 1 :]
    options = _parser().parse_args(own)
    if options.reproduced:
        write_page(options.table, options.out or [Path("runs")], options.results, Path("REPRODUCED.md"))
        return
    if len(options.table) != 1 or len(options.out) > 1:
        raise ValueError("flcog compare takes one table and one --out, or several with --reproduced; flcog compare --help")
    path = options.table[0]
    out, saved = options.out[0] if options.out else Path("runs") / path.stem, options.results / f"{path.stem}.csv"
    given, train = _chosen(options, path, out, saved), partial(fill, launcher=_launcher(options))
    if options.tune and options.dry_run:
        grid = [run for study in studies_of(given, out, extra).values() for run in study.runs]
        print(f"The search for hyper-parameters, which comes first:\n\n{describe(grid)}\n\nThe table with its values so far:\n")
    elif options.tune:
        tune(given, out, extra, train)
    table = with_choices(given, out / TUNED, saved.with_suffix(".tuned.yaml"))
    runs = runs_of(table, out, extra)
    if options.dry_run:
        print(describe(runs, results_of(table, runs, saved)))
        return
    failed = [] if options.show else train(table, runs)
    results = results_of(table, runs, saved if options.show else None)
    report(table, results, out, options.by)
    if options.save_results:
        _save(table, runs, out, saved, options.seeds or table.file.seeds)
    _check_metrics(table, results)
    if failed:
        run, error, _ = failed[0]
        told = f"{run.name}: {error} (all of it: {run.folder / OUTPUT})"
        raise ValueError(f"{len(failed)} of {len(runs)} runs failed, the first, {told}")


def describe(runs: Sequence[Run], results: Sequence[Mapping[str, Any]] = ()) -> str:
    """The command of each run, what is done for it, and its time, as its column's finished runs took it on average."""
    lines, left = [], 0.0
    done = pandas.DataFrame([one for one in results if one["finished"]], columns=["column", "seconds"])
    took = done.groupby("column").seconds.mean().dropna()
    check(runs)
    for run in runs:
        plan = "finished" if run.finished else f"to be resumed after round {len(run.history)}" if run.begun else "to be trained"
        if not run.finished and run.column in took:
            left += took[run.column]
            plan += f", about {clock(took[run.column])}"
        lines += [f"{run.name}: {plan}", f"  flcog {shlex.join(run.command)}"]
    todo = sum(not run.finished for run in runs)
    time = f", about {clock(left)} one after another" if left else ""
    return "\n".join([*lines, "", f"{len(runs)} runs: {len(runs) - todo} are finished, {todo} are to be trained{time}"])


def _chosen(options: argparse.Namespace, path: Path, out: Path, saved: Path) -> Table:
    """The table of the file, changed by the options."""
    table = with_bounds(read_table(path)) if options.bounds else read_table(path)
    given = {"seeds": tuple(dict.fromkeys(options.seeds or ())), "last": options.last, "spread": options.spread}
    table = replace(table, **{name: value for name, value in given.items() if value}, whole=table)
    if options.only:
        table = select(table, options.only)
    if options.against is not None:
        if options.against not in table.rows:
            raise ValueError(f"--against {options.against}: the table has the rows {shlex.join(table.rows)}")
        table = replace(table, against=dict.fromkeys(table.rows, options.against))
    if options.show and not options.seeds:
        table = replace(table, seeds=seeds_run(table, out, saved) or table.seeds)
    return table


def _launcher(options: argparse.Namespace) -> Launcher:
    """The launcher that the options name."""
    if options.launcher == "slurm":
        return SlurmLauncher(options.jobs or MANY, options.partition, options.time, options.gpus)
    if given := [f"--{name}" for name in ("partition", "time", "gpus") if getattr(options, name) is not None]:
        raise ValueError(f"{given[0]} is for jobs of a cluster: add --launcher slurm, or leave {given[0]} out")
    return LocalLauncher(options.jobs or 1)


def _save(table: Table, runs: Sequence[Run], out: Path, saved: Path, seeds: Sequence[int]) -> None:
    """Save the finished runs of these seeds, and the values that a search has chosen."""
    count = write_results(saved, table, [run for run in runs if run.seed in seeds])
    if (out / TUNED).is_file():
        shutil.copy(out / TUNED, saved.with_suffix(".tuned.yaml"))
    print(f"{count} finished runs saved in {saved}")
    if others := sorted({run.seed for run in runs if run.seed not in seeds and run.finished}):
        print(f"seeds that the table does not name are not saved; to save them, add --seeds {' '.join(map(str, others))}")


def _check_metrics(table: Table, results: Sequence[Any]) -> None:
    """Name a metric of the table that no finished run has logged."""
    for name, view in table.views.items():
        found = [result for result in results if result["view"] == name and result["finished"] and result["rounds"]]
        if view.metric and found and not any(result["metric"] for result in found):
            logged = sorted({column for result in found for row in result["history"] for column in row})
            raise ValueError(f"no run logged the table's metric {view.metric}, but {', '.join(logged)}; nothing is run twice")


def _parser() -> argparse.ArgumentParser:
    keys = "\n".join(f"  {key.arg_name}: {' '.join(str(key.description).split())}" for key in parse(Table.__doc__ or "").params)
    epilog = f"{EXTRA}\n\nThe keys of a table's YAML file:\n{keys}"
    parser = parser_of("compare", compare, epilog=epilog, formatter_class=argparse.RawDescriptionHelpFormatter)
    flags = parser.add_mutually_exclusive_group()
    table = "a table's YAML file, or the name of a shipped table, such as digits"
    parser.add_argument("table", type=lambda text: Path(shipped_configs.find(text, within="tables")), nargs="*", help=table)
    out = "the folder of the runs and the filled table; runs/<name of the file> by default"
    parser.add_argument("--out", type=Path, action="append", default=[], help=out)
    jobs = f"the number of simultaneous runs, which share cores and GPU (default 1), or of jobs in Slurm's queue (default {MANY})"
    parser.add_argument("--jobs", type=PositiveInt, help=jobs)
    flags.add_argument("--show", action="store_true", help="print the table so far, and train nothing")
    dry_run = "print each run's command and its estimated time, with --tune those of the search, too; train and write nothing"
    flags.add_argument("--dry-run", action="store_true", help=dry_run)
    tuned = "first choose the values in the rows' `tune` by the clients' validation data: pip install flcog[tune]"
    parser.add_argument("--tune", action="store_true", help=tuned)
    parser.add_argument("--seeds", type=NonNegativeInt, nargs="+", help="seeds instead of the table's")
    parser.add_argument("--only", nargs="+", metavar="NAME", help="only these rows, columns or metrics")
    bounds = " and ".join(f"{name} ({meaning})" for name, meaning in flcog.callbacks.BOUNDS.items())
    parser.add_argument("--bounds", action="store_true", help=f"add the bounds that papers draw as lines: {bounds}")
    parser.add_argument("--last", type=PositiveInt, help="the number of evaluations in the mean, instead of the table's (or 5)")
    against = "the row that the others are compared with, instead of the table's (or the first)"
    parser.add_argument("--against", metavar="ROW", help=against)
    spread = "the figure after ±: standard deviation over seeds, standard error of the mean, or half of its 95 %% interval"
    parser.add_argument("--spread", choices=("std", "sem", "interval"), help=spread)
    axis = "the horizontal axis of the curves; rounds by default"
    parser.add_argument("--by", choices=("rounds", "bytes", "seconds"), default="rounds", help=axis)
    launcher = "local (default) trains on this machine; slurm submits each run as a job: pip install 'flcog[slurm]'"
    parser.add_argument("--launcher", choices=("local", "slurm"), default="local", help=launcher)
    parser.add_argument("--partition", help="the partition for Slurm's jobs, instead of the cluster's default")
    time = "the time limit of one of Slurm's jobs: minutes, or D-HH:MM:SS. A run that reaches it is submitted again and resumes"
    parser.add_argument("--time", help=time)
    parser.add_argument("--gpus", type=PositiveInt, help="the number of GPUs for each of Slurm's jobs; none by default")
    save = "write the results of finished runs to RESULTS/<name of the file>.csv"
    parser.add_argument("--save-results", action="store_true", help=save)
    results = "the folder of saved results, which replace missing runs for --show and --reproduced; results by default"
    parser.add_argument("--results", type=Path, default=Path("results"), help=results)
    reproduced = "write REPRODUCED.md from the given tables, by default all shipped; each --out is a folder of tables' folders"
    parser.add_argument("--reproduced", action="store_true", help=reproduced)
    return parser
