"""The observer that prints a description of the run at its start, and its results at its end."""

import math
import statistics
import sys
import textwrap
from collections.abc import Sequence

import torch
from rich.console import Console
from rich.text import Text

from flcog.core.files import short
from flcog.core.monitor import headline, is_personal, lower_is_better, main_metric
from flcog.core.text import clock, figure, human, seconds
from flcog.method import Callback, Note, Run
from flcog.run import checkpoint

Rows = Sequence[tuple[str, str]]


class Summary(Callback):
    """Prints a description of the run before its first round. After the last round it prints results, costs and useful commands.

    Notes of later rounds are printed at the end of their round, such as the choice of the fastest executor. Every run has a summary.

    Args:
        enabled: whether to print anything.
    """

    def __init__(self, enabled: bool = True) -> None:
        self.enabled = enabled
        self._unprinted: list[tuple[str, str]] = []

    def on_note(self, run: Run, note: Note) -> None:
        self._unprinted.append((note.topic, note.text))

    def on_fit_start(self, run: Run) -> None:
        self._unprinted[:0] = run.description
        self._print(run)

    def on_round_end(self, run: Run, round: int, metrics: dict[str, float]) -> None:
        self._print(run)

    def on_fit_end(self, run: Run) -> None:
        if self.enabled and run.processes.is_first and run.history:
            _print([*results(run), *costs(run)])
            for what, command in suggestions(run):
                # Not in the table: a command that is wrapped cannot be pasted.
                print(f"{what}:\n  {command}")
            print(flush=True)

    def _print(self, run: Run) -> None:
        rows, self._unprinted = self._unprinted, []
        if rows and self.enabled and run.processes.is_first:
            _print(rows)


def results(run: Run) -> Rows:
    """The main metric: at the best round by validation, or by the test set itself, which the text mentions; its last and late
    values."""
    early = ", stopped early" if run.round < run.settings.rounds else ""
    rows = [("rounds", f"{run.round} of {max(run.round, run.settings.rounds)}{early}")]
    evaluations = [row for row in run.history if main_metric(row) is not None]
    if not evaluations:
        return rows
    name, chooser = main_metric(evaluations[-1]), main_metric(evaluations[-1], selecting=True)
    assert name is not None
    measured = {row["round"]: row for row in evaluations if name in row}
    values = {round: row[name] for round, row in measured.items()}
    best, late = _best(name, values), _late(list(values.values()))
    if chooser is None:  # the clients' test parts choose no round
        return [*rows, (name, late)]
    seen = f"{headline(measured[best], name)} (round {best:.0f})"
    if chooser == name:
        flatters = ", picked on the test set, which flatters" if name.startswith("test/") else ""
        return [*rows, (name, f"best {seen}{flatters}; {late}")]
    chosen = _best(chooser, {row["round"]: row[chooser] for row in evaluations if chooser in row})
    there = headline(measured[chosen], name) if chosen in measured else figure(math.nan)
    rows.append((name, f"{there} where {chooser} was best (round {chosen:.0f}); {late}"))
    if chosen != best:
        rows.append(("", f"{seen} is the best on the test set itself, which flatters"))
    common = main_metric({other: value for other, value in evaluations[-1].items() if not is_personal(other)})
    if common and is_personal(name):
        rows.append((common, f"last {figure(evaluations[-1][common])}, by the global model"))
    return rows


def _late(values: Sequence[float]) -> str:
    last_five = values[-5:]
    mean = f", mean of the last {len(last_five)} evaluations {figure(statistics.fmean(last_five))}" if len(last_five) > 1 else ""
    return f"last {figure(values[-1])}{mean}"


def costs(run: Run) -> Rows:
    ledger, history = run.ledger, run.history
    where = ("run", str(short(run.directory)))
    if not all("time/round" in row for row in history):  # a private run withholds its bytes and times
        return [where]
    plain = ledger.down.get("model", 0)  # FedAvg sends the model down and back up
    sent = [
        f"{human(total)} {way}" + (f" ({total / plain:.2f} x FedAvg's)" if plain and abs(total / plain - 1) > 0.005 else "")
        for way, total in (("up", ledger.total_up), ("down", ledger.total_down))
    ]
    rounds = [row["time/round"] for row in history]
    total = sum(rounds) + sum(row.get("time/evaluation", 0.0) for row in history)
    took = f"{seconds(statistics.median(rounds))} a round (median), {clock(total)} in all with evaluation"
    peak = peak_memory(run.processes.device)
    place = "on the GPU" if run.processes.device.type == "cuda" else "of this process"
    memory = [] if peak is None else [("memory", f"{human(peak)} at its peak, {place}")]
    return [("sent", ", ".join(sent)), ("took", took), *memory, where]


def peak_memory(device: torch.device) -> int | None:
    """Return the peak memory of this process in bytes: torch's on a GPU, otherwise the machine's. None if it is unknown."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    try:
        import resource
    except ImportError:  # Windows
        return None
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def suggestions(run: Run) -> Rows:
    checkpoints = [run.directory / "checkpoints" / name for name in ("best.ckpt", "last.ckpt")]
    written = [path for path in checkpoints if path.is_file()]
    rows: list[tuple[str, str]] = []
    measured = {name.partition("/")[0] for row in run.history for name in row}
    sets = {"test": run.federation.test is not None or "test" in measured, "validate": "val" in measured}
    verb = next((verb for verb, there in sets.items() if there), None)
    if verb and written and run.evaluator.have_figures:
        best = checkpoint.peek(written[0]).get("observers", {}).get("Checkpoint", {}) if written[0].stem == "best" else {}
        chosen = f" (round {best['round']}, by {best['metric']})" if best else ""
        rows.append((f"{verb.capitalize()} its {written[0].stem} model{chosen}", run.next_command(verb, written[0])))
    if run.round < run.settings.rounds and checkpoints[1].is_file():
        # The same options would stop it again before its next round.
        first = ", once the options that ended it allow more rounds" if run.should_stop else ""
        rows.append((f"Go on with it{first}", run.next_command("fit", run.directory)))
    return rows + run.trackers.to_upload()


def _best(name: str, values: dict[float, float]) -> float:
    """The round of the best value; NaN is never best unless all are."""
    sign = -1 if lower_is_better(name) else 1
    return max(values, key=lambda round: (values[round] == values[round], sign * values[round]))


def _print(rows: Rows) -> None:
    """Topics to the left, texts wrapped beside them; a path too long for its line runs over, so that it can still be copied."""
    console = Console(highlight=False)
    left = max(len(topic) for topic, _ in rows) + 4
    console.print()
    for topic, text in rows:
        for part in text.splitlines():
            for line in textwrap.wrap(part, max(20, console.width - left), break_long_words=False, break_on_hyphens=False):
                console.print(Text.assemble((f"  {topic}".ljust(left), "bold"), line), soft_wrap=True)
                topic = ""
    console.print()
