"""``flcog compare``: a paper's table as one command. Every arm in every setting with every seed, and one table at the end."""

import argparse
import csv
import json
import math
import os
import shlex
import signal
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass, field, replace
from itertools import product
from pathlib import Path
from types import FrameType
from typing import Any, Literal

import yaml

from flcog.commands.methods import markdown
from flcog.core import signals
from flcog.core.child_processes import started_by_us
from flcog.core.files import clear_errors, make_folder, replacing, write_figure
from flcog.core.ledger import human
from flcog.core.monitor import lower_is_better, main_metric
from flcog.core.text import seconds
from flcog.run.directory import LAST, write_yaml
from flcog.run.metrics_rows import read_rows
from flcog.run.writer_lock import ADVICE, BUSY, WriterLock

OUT_REMEDY = "free space or choose another --out"
KEYS = ("title", "configs", "arguments", "rows", "columns", "seeds", "metric", "last", "published")


@dataclass(frozen=True)
class Part:
    """What a row or a column adds to a run."""

    configs: tuple[Path, ...] = ()
    arguments: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Plan:
    """A table that is to be filled.

    Args:
        title: what it shows.
        common: what all runs share.
        rows: arms, by name. Seconds are told relative to the first.
        columns: settings, by name.
        seeds: every arm is run with each, in each setting.
        metric: the column of ``metrics.csv`` that is compared; None for the task's main one.
        last: of how many last evaluations the mean is told.
        published: a paper's figures in percent, by row and column, to stand beside ours.
    """

    title: str
    common: Part
    rows: Mapping[str, Part]
    columns: Mapping[str, Part]
    seeds: tuple[int, ...]
    metric: str | None
    last: int
    published: Mapping[str, Mapping[str, float]]


@dataclass
class Cell:
    """One run of the table."""

    row: str
    column: str
    seed: int
    folder: Path
    arguments: list[str]
    error: str | None = None
    busy: bool = False
    """Whether it was not run because another process does so."""

    @property
    def name(self) -> str:
        return " · ".join(part for part in (self.row, self.column, f"seed {self.seed}") if part)

    @property
    def finished(self) -> bool:
        return (self.folder / "finished").is_file()

    def history(self) -> list[dict[str, float]]:
        """The rows of its ``metrics.csv``, as far as it has come."""
        tables = sorted(self.folder.glob("*/metrics.csv"), key=lambda path: path.stat().st_mtime_ns)
        return read_rows(tables[-1])[0] if tables else []


def read_plan(path: Path, within: Sequence[Path] = ()) -> Plan:
    """A table's YAML file. Configs that it names, and another table whose rows or columns are its own, are found from its folder.

    Args:
        path: the file.
        within: the tables that led to this one.
    """
    if path.resolve() in within:
        raise ValueError(f"{path} takes its rows or columns from itself: {' -> '.join(map(str, [*within, path]))}")
    content = _read_mapping(path)
    if not content.get("rows"):
        raise ValueError(f"{path} names no rows: a table has `rows`, a name for each arm with its `configs` or `arguments`")
    unknown = sorted(str(key) for key in content.keys() - set(KEYS))
    if unknown:
        raise ValueError(f"{path} has {', '.join(unknown)}; a table may have {', '.join(KEYS)}")

    def parts(key: Literal["rows", "columns"]) -> Mapping[str, Part]:
        value = content.get(key) or {"": None}
        if isinstance(value, str):
            return getattr(read_plan(path.parent / value, [*within, path.resolve()]), key)
        if not isinstance(value, dict):
            raise ValueError(
                f"{key} in {path} must be names with their configs or arguments, or another table's file; got {value!r}"
            )
        return {str(name): _part(given, f"{key.removesuffix('s')} {name}", path) for name, given in value.items()}

    rows, columns = parts("rows"), parts("columns")
    common = _part({key: content[key] for key in ("configs", "arguments") if key in content}, "the table", path)
    metric, last = content.get("metric"), content.get("last", 5)
    if not isinstance(metric, str | None):
        raise ValueError(f"metric in {path} must be a column of metrics.csv, such as test/accuracy; got {metric!r}")
    if not _is_whole(last) or last < 1:
        raise ValueError(f"last in {path} must be a whole number of evaluations, at least 1; got {last!r}")
    published, seeds = _published_figures(content, rows, columns, path), _seeds(content, path)
    return Plan(str(content.get("title", path.stem)), common, rows, columns, seeds, metric, last, published)


def _read_mapping(path: Path) -> dict[Any, Any]:
    """The file's content, of which all can stand on a command line."""
    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
        text = json.dumps(content, ensure_ascii=False, default=str).encode()
    except FileNotFoundError:
        raise ValueError(f"there is no file {path}: give a table's YAML, such as one of configs/tables") from None
    except UnicodeError:
        raise ValueError(f"{path} is not UTF-8: give a table's YAML, such as one of configs/tables") from None
    except OSError as error:
        raise ValueError(f"cannot read {path}: {error.strerror or error}; give a table's YAML") from None
    except RecursionError:
        raise ValueError(f"{path} is nested too deeply for a table") from None
    except Exception as error:  # PyYAML lets through whatever its constructors raise at a damaged date or number
        raise ValueError(
            f"{path} is no YAML that a table can be: {' '.join(str(error).split()) or type(error).__name__}"
        ) from None
    if not isinstance(content, dict):
        raise ValueError(f"{path} holds {type(content).__name__}, not `rows` and what else a table has: see configs/tables")
    if b"\\u0000" in text:
        raise ValueError(f"{path} holds a character that no command line can have, the zero byte: remove it")
    return content


def _part(value: Any, where: str, path: Path) -> Part:
    """What a row, a column or the table itself adds, checked."""
    value = value or {}
    if not isinstance(value, dict) or set(value) - {"configs", "arguments"}:
        raise ValueError(f"{where} in {path} may have configs (a list of files) and arguments (a mapping); got {value!r}")
    names, arguments = value.get("configs") or [], value.get("arguments") or {}
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise ValueError(f"configs of {where} in {path} must be a list of files; got {names!r}")
    if not isinstance(arguments, dict) or not all(isinstance(name, str) for name in arguments):
        raise ValueError(f"arguments of {where} in {path} must be options of flcog fit with their values; got {arguments!r}")
    return Part(tuple(_config(name, where, path) for name in names), arguments)


def _config(name: str, where: str, path: Path) -> Path:
    try:
        config = (path.parent / name).resolve()
        found = config.is_file()
    except (OSError, RuntimeError):  # a name that is too long, links in a circle
        config, found = path.parent / name, False
    if not found:
        raise ValueError(f"{where} in {path} names {config}, which is no file; paths are relative to {path.parent}")
    return config


def _published_figures(
    content: dict[Any, Any], rows: Mapping[str, Part], columns: Mapping[str, Part], path: Path
) -> Mapping[str, Mapping[str, float]]:
    published = content.get("published") or {}
    if not isinstance(published, dict) or not all(isinstance(values, dict) for values in published.values()):
        raise ValueError(f"published in {path} must be figures by row and column; got {published!r}")
    figures = {str(row): {str(column): value for column, value in values.items()} for row, values in published.items()}
    for row, values in figures.items():
        for name in [row] * (row not in rows) + [name for name in values if name not in columns]:
            raise ValueError(f"published in {path} names {name!r}, which is neither a row nor a column of the table")
        for column, value in values.items():
            if isinstance(value, bool) or not isinstance(value, int | float):
                raise ValueError(f"published in {path} must be figures; {row}, {column} is {value!r}".replace(", :", ":"))
    return figures


def _seeds(content: dict[Any, Any], path: Path) -> tuple[int, ...]:
    seeds = content.get("seeds") or [0]
    if not isinstance(seeds, list) or not all(_is_whole(seed) and seed >= 0 for seed in seeds):
        raise ValueError(f"seeds in {path} must be a list of whole numbers, such as [0, 1, 2]; got {seeds!r}")
    return tuple(dict.fromkeys(seeds))


def _is_whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def cells(plan: Plan, out: Path, extra: Sequence[str]) -> list[Cell]:
    """Every run of the table, with its command line. Columns come before rows, the user's own arguments last."""
    result = []
    for (column, setting), (row, arm), seed in product(plan.columns.items(), plan.rows.items(), plan.seeds):
        folder = out.joinpath(*(_file_name(name) for name in (column, row) if name), f"seed{seed}")
        arguments = ["fit"]
        for part in (plan.common, setting, arm):
            arguments += [word for config in part.configs for word in ("-c", str(config))]
        for part in (plan.common, setting, arm):
            arguments += [word for key, value in part.arguments.items() for word in (f"--{key}", _word(value))]
        arguments += [*extra, "--seed_everything", str(seed), "--trainer.default_root_dir", str(folder)]
        result.append(Cell(row, column, seed, folder, arguments))
    _check_apart(result)
    return result


def _check_apart(runs: Sequence[Cell]) -> None:
    """Complain of names that differ only in what a folder's name cannot have."""
    seen: dict[Path, Cell] = {}
    for cell in runs:
        other = seen.setdefault(cell.folder, cell)
        if other is not cell:
            raise ValueError(f"{other.name} and {cell.name} would both be run in {cell.folder}: rename a row or a column")


def _file_name(name: str) -> str:
    """Part of a path, which stays below the folder it is joined to: "." and ".." do not."""
    plain = "".join(letter if letter.isalnum() or letter in "-_.=" else "-" for letter in name)
    return plain if plain.strip(".") else plain.replace(".", "-")


def _word(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, default=str)


class Runner:
    """Runs cells as processes of their own, some side by side; what a killed comparison had begun goes on from its last round.

    Args:
        jobs: how many at a time; they share the cores.
    """

    def __init__(self, jobs: int) -> None:
        self.jobs = jobs
        self.signal = 0
        """The signal that has stopped it; 0 for none."""
        self._children: set[subprocess.Popen[bytes]] = set()
        self._lock, self._stopped, self._interrupts = threading.Lock(), False, 0
        self._terminals = signals.terminals()

    def run(self, todo: Sequence[Cell]) -> Iterator[tuple[Cell, float]]:
        """Yields each cell when it is through, with its seconds; what went wrong is its ``error``."""
        pool = ThreadPoolExecutor(self.jobs)
        try:
            futures = {pool.submit(self._one, cell): cell for cell in todo}
            for future in as_completed(futures):
                took = future.result()
                if futures[future].finished or not self.signal:
                    yield futures[future], took
        finally:
            with self._lock:
                self._stopped = True
                for child in self._children:
                    child.terminate()
            pool.shutdown(cancel_futures=True)

    def stop(self, number: int, _: FrameType | None) -> None:
        """Answer a signal: begin no more runs, and hand it on to those in hand, which know how to end; the fourth Ctrl-C kills them."""
        self.signal, self._stopped = number, True
        self._interrupts += number == signal.SIGINT
        if number == signal.SIGHUP:
            signals.leave_dead_terminals(self._terminals)
        for child in list(self._children):
            child.send_signal(number) if self._interrupts < 4 else child.kill()
        again = "; Ctrl-C again stops them at once" if number == signal.SIGINT else ""
        signals.say(f"{signals.name(number)}: the runs in hand are saved and stop, and no more are begun{again}")

    def _one(self, cell: Cell) -> float:
        started, lock = time.monotonic(), WriterLock()
        # Another comparison may fill the same table.
        cell.error = None if self._stopped else lock.take(cell.folder)
        try:
            if cell.error is None and not self._stopped and not cell.finished:
                self._train(cell)
        finally:
            lock.release()
        if cell.error is not None and f" {BUSY} " in cell.error:
            cell.error, cell.busy = cell.error.partition(f": {ADVICE}")[0], True
        return time.monotonic() - started

    def _train(self, cell: Cell) -> None:
        begun = any(cell.folder.glob(f"*/{LAST}"))
        threads = str(max(1, len(os.sched_getaffinity(0)) // self.jobs if hasattr(os, "sched_getaffinity") else 1))
        # -P: else Python looks for every module in the working directory first, where a random.py may lie.
        command = [sys.executable, "-P", "-m", "flcog", *cell.arguments, *(["--ckpt_path", "last"] if begun else [])]
        with (cell.folder / "output.txt").open("ab") as output:
            with self._lock:
                if self._stopped:
                    return
                child = subprocess.Popen(
                    command,
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    env={"OMP_NUM_THREADS": threads, **os.environ, **started_by_us()},
                    process_group=0,  # a terminal's Ctrl-C comes through `stop`, once
                )
                self._children.add(child)
            if self.signal:  # came while it was being started, when `stop` could not know it
                child.send_signal(self.signal)
            code = child.wait()
        with self._lock:
            self._children.discard(child)
        if code == 0:
            with replacing(cell.folder / "finished", remedy=OUT_REMEDY):
                pass  # that it is there says it all
        else:
            lines = (cell.folder / "output.txt").read_text(errors="replace").strip().splitlines()
            cell.error = lines[-1].removeprefix("flcog: error: ") if lines else f"exit status {code}"


def claim(cell: Cell) -> None:
    """Make the cell's folder, or check that what was begun there is this very run."""
    note = cell.folder / "arguments.yaml"
    if note.is_file() and (cell.folder / "output.txt").is_file():
        earlier = _earlier_arguments(note)
        then, now = _settings(earlier), _settings(cell.arguments)
        if then != now:
            changed = shlex.join([word for word in now if word not in then]) or "fewer arguments"
            raise ValueError(
                f"{cell.folder} holds this arm with other settings (now: {changed}): choose another --out, or delete it"
            )
        return
    with clear_errors(cell.folder, OUT_REMEDY):
        make_folder(cell.folder)
    write_yaml(note, cell.arguments, OUT_REMEDY)


def _earlier_arguments(note: Path) -> list[str]:
    try:
        earlier = yaml.safe_load(note.read_text(encoding="utf-8"))
    except (UnicodeError, yaml.YAMLError):
        earlier = None
    if not isinstance(earlier, list) or not all(isinstance(word, str) for word in earlier):
        raise ValueError(f"{note} is damaged: delete {note.parent}, or choose another --out")
    return earlier


def _settings(arguments: Sequence[str]) -> list[str]:
    """What makes the run: not where its folder and the configs lie, so that a clone or a folder that was moved goes on."""
    pairs = list(zip(["", *arguments], arguments, strict=False))
    kept = [pair for pair in pairs if "--trainer.default_root_dir" not in pair]
    return [Path(word).name if before == "-c" else word for before, word in kept]


def table(plan: Plan, runs: Sequence[Cell]) -> tuple[list[str], list[list[str]]]:
    """Header and rows: for each setting best, last and the mean of the last evaluations, over seeds; then the cost.

    Where runs counted the rounds to a target (``RoundsToTarget``), these stand beside the scores, with the bytes both ways.
    """
    several = len(plan.columns) > 1
    histories = {(cell.row, cell.column, cell.seed): cell.history() for cell in runs}
    targets = {column: _targets([history for key, history in histories.items() if key[1] == column]) for column in plan.columns}
    header = [""]
    for column in plan.columns:
        whats = ["best", "last", f"last {plan.last}", *(f"rounds to {target.removeprefix('to_')}" for target in targets[column])]
        header += [f"{column} {what}".strip() for what in whats]
    if plan.published:
        header += [f"{column} published".strip() for column in plan.columns]
    header += ["time" if not several else "time (all)", "sent up"]
    rows, first_time = [], math.nan
    for row in plan.rows:
        line, times, sent = [f"{row}"], [], []
        for column in plan.columns:
            found = [history for key, history in histories.items() if key[:2] == (row, column) and history]
            line += _scores(plan.metric, found, plan.last)
            line += [_rounds_to(target, found) for target in targets[column]]
            for history in found:
                times.append(statistics.median(values["time/round"] for values in history if "time/round" in values))
                sent.append(sum(values.get("comm/up_bytes", 0) for values in history))
        if plan.published:
            line += [_published(plan.published.get(row, {}).get(column)) for column in plan.columns]
        mean_time = statistics.mean(times) if times else math.nan
        if math.isnan(first_time):
            first_time = mean_time
        ratio = mean_time / first_time
        line += [f"{ratio:.2f} ({seconds(mean_time)})" if times else "", human(round(statistics.mean(sent))) if sent else ""]
        rows.append(line)
    return header, rows


def _targets(histories: Sequence[Sequence[dict[str, float]]]) -> list[str]:
    """What ``RoundsToTarget`` has written of, such as ``to_accuracy_0.8``."""
    names = {name for history in histories for values in history for name in values}
    return sorted(name.removesuffix("/rounds") for name in names if name.startswith("to_") and name.endswith("/rounds"))


def _rounds_to(target: str, histories: Sequence[Sequence[dict[str, float]]]) -> str:
    """The mean over seeds, of rounds and of bytes up and down; how many rounds did not suffice where one seed did not get there."""
    reached = [next((values for values in history if f"{target}/rounds" in values), None) for history in histories]
    if not all(reached):
        return f"> {max(int(history[-1]['round']) for history in histories)}"
    rows = [values for values in reached if values]
    if not rows:
        return ""
    sent = statistics.mean(values[f"{target}/up_bytes"] + values[f"{target}/down_bytes"] for values in rows)
    return f"{statistics.mean(values[f'{target}/rounds'] for values in rows):g} ({human(round(sent))})"


def curves(plan: Plan, runs: Sequence[Cell], path: Path) -> bool:
    """Draw the compared metric against rounds; False where nothing has been evaluated yet."""
    from flcog.commands.compare.curves import curves_figure

    histories = {(cell.column, cell.row, cell.seed): cell.history() for cell in runs}
    metric = _metric(plan.metric, list(histories.values()))
    if metric is None or not any(metric in values for history in histories.values() for values in history):
        return False

    def series(column: str, row: str) -> list[list[tuple[float, float]]]:
        found = [histories.get((column, row, seed), []) for seed in plan.seeds]
        evaluated = ([(values["round"], values[metric]) for values in history if metric in values] for history in found)
        return [values for values in evaluated if values]

    panels = {column: {row: series(column, row) for row in plan.rows} for column in plan.columns}
    write_figure(path, curves_figure(panels, metric), remedy=OUT_REMEDY)
    return True


def _metric(metric: str | None, histories: Sequence[Sequence[dict[str, float]]]) -> str | None:
    """The column that is compared: the named one, or the main one of what was evaluated."""
    return metric or next((name for history in histories for values in history[-1:] if (name := main_metric(values))), None)


def _published(value: float | None) -> str:
    return "" if value is None else f"{value:.2f}"


def _check_metric(metric: str | None, histories: Sequence[Sequence[dict[str, float]]]) -> None:
    """Complain of a table's metric that no finished run has logged."""
    logged = sorted({name for history in histories for values in history for name in values})
    if metric and logged and metric not in logged:
        raise ValueError(
            f"no run logged the table's metric {metric}, but {', '.join(logged)}: correct `metric` and give the same command again; "
            f"nothing is run twice"
        )


def _scores(metric: str | None, histories: Sequence[Sequence[dict[str, float]]], count: int = 1) -> list[str]:
    """Best, last, and the mean of the last ``count``; in percent where the metric is a share."""
    found = _metric(metric, histories)
    series = [[values[found] for values in history if found in values] for history in histories] if found else []
    series = [values for values in series if values]
    if not series or found is None:
        return ["", "", ""]
    lower = lower_is_better(found)
    best = [min(values) if lower else max(values) for values in series]
    share = not lower_is_better(found.removesuffix("_std"))  # how a share spreads is told in points
    scale = 1.0 if not share or max(abs(value) for values in series for value in values) > 1 else 100.0
    return [
        _spread([scale * v for v in values])
        for values in (best, [s[-1] for s in series], [statistics.mean(s[-count:]) for s in series])
    ]


def _spread(values: Sequence[float]) -> str:
    mean = statistics.mean(values)
    text = f"{mean:.2f}" if abs(mean) < 1e4 else f"{mean:.4g}"
    return text if len(values) == 1 else f"{text} ± {statistics.stdev(values):.2f}"


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


def main(argv: Sequence[str]) -> None:
    """Run every arm of a table in every setting with every seed, and print the table. Killed, the same command goes on."""
    parser = argparse.ArgumentParser(
        prog="flcog compare",
        description=main.__doc__,
        epilog="Arguments after -- go to every run, as to flcog fit: flcog compare configs/tables/sanity.yaml -- --trainer.rounds 5",
    )
    parser.add_argument("table", type=Path, help="the table's YAML file, e.g. configs/tables/digits.yaml")
    parser.add_argument("--out", type=Path, help="where the runs and the table go; runs/<name of the file> by default")
    parser.add_argument("--jobs", type=_number, default=1, help="runs side by side, which share the cores")
    parser.add_argument("--seeds", type=_seed, nargs="+", help="seeds instead of the table's")
    parser.add_argument("--only", nargs="+", metavar="NAME", help="only these rows or columns")
    parser.add_argument("--last", type=_number, help="mean of so many last evaluations, instead of the table's (or 5)")
    parser.add_argument("--show", action="store_true", help="print the table of what has been run so far, and run nothing")
    words = list(argv)
    extra = words[words.index("--") + 1 :] if "--" in words else []
    options = parser.parse_args(words[: words.index("--")] if "--" in words else words)
    plan = read_plan(options.table)
    if options.seeds:
        plan = replace(plan, seeds=tuple(dict.fromkeys(options.seeds)))
    if options.last:
        plan = replace(plan, last=options.last)
    if options.only:
        plan = _select(plan, options.only)
    out = options.out or Path("runs") / options.table.stem
    if options.show and not options.seeds:
        plan = replace(plan, seeds=_seeds_run(plan, out) or plan.seeds)
    runs = cells(plan, out, extra)
    failed = [] if options.show else _fill(runs, options.jobs, plan.metric)
    header, rows = table(plan, runs)
    text = markdown(header, rows)
    print(f"\n{plan.title}\n\n{text}\n", flush=True)
    if out.is_dir():
        with replacing(out / "table.md", "w", OUT_REMEDY) as file:
            file.write(f"{plan.title}\n\n{text}\n")
        with replacing(out / "table.csv", "w", OUT_REMEDY) as file:
            csv.writer(file).writerows([header, *rows])
    drawn = out.is_dir() and curves(plan, runs, out / "curves.png")
    print(f"{out / 'table.md'}, {out / 'table.csv'}" + (f", {out / 'curves.png'}" if drawn else ""))
    _check_metric(plan.metric, [cell.history() for cell in runs if cell.finished])
    busy = [cell for cell in failed if cell.busy]
    if busy:
        print(
            f"{len(busy)} of {len(runs)} runs belong to another process: give the same command again when it has ended",
            flush=True,
        )
    failed = [cell for cell in failed if not cell.busy]
    if failed:
        first = failed[0]
        raise ValueError(
            f"{len(failed)} of {len(runs)} runs failed, the first, {first.name}: {first.error} (all of it: {first.folder}/output.txt)"
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
    return "best " + ", last ".join(_scores(metric, [history])[:2] if history else ["no evaluation"])


def _seeds_run(plan: Plan, out: Path) -> tuple[int, ...]:
    """The seeds with which any of the table's arms has been run."""
    folders = {cell.folder.parent for cell in cells(plan, out, [])}
    names = {path.name.removeprefix("seed") for folder in folders for path in folder.glob("seed*")}
    return tuple(sorted(int(name) for name in names if name.isdigit()))


def _select(plan: Plan, names: Sequence[str]) -> Plan:
    for name in names:
        if name not in plan.rows and name not in plan.columns:
            settings = ", ".join(filter(None, plan.columns)) or "(none)"
            raise ValueError(f"--only {name}: the table has the rows {', '.join(plan.rows)} and the columns {settings}")
    rows = {name: part for name, part in plan.rows.items() if name in names} or plan.rows
    columns = {name: part for name, part in plan.columns.items() if name in names} or plan.columns
    published = {row: {c: v for c, v in values.items() if c in columns} for row, values in plan.published.items() if row in rows}
    return replace(plan, rows=rows, columns=columns, published={row: values for row, values in published.items() if values})
