"""The observer that says what a run is when it starts, and what came out when it ends."""

import dataclasses
import statistics
import textwrap
from typing import TYPE_CHECKING

from rich.console import Console
from rich.text import Text

from flcog.client import ClientModule
from flcog.core.ledger import human
from flcog.core.monitor import lower_is_better, main_metric
from flcog.core.text import clock, figure, seconds
from flcog.hooks import Callback, Method
from flcog.run.directory import next_command, short

if TYPE_CHECKING:
    from flcog.trainer import FederatedTrainer

Rows = list[tuple[str, str]]


class Summary(Callback):
    """Prints what the run is before its first round, and after its last one its results, its cost and what to type next.

    Every run has one.

    Args:
        enabled: whether to print anything.
    """

    def __init__(self, enabled: bool = True) -> None:
        self.enabled = enabled

    def on_fit_start(self, trainer: "FederatedTrainer") -> None:
        if self.enabled and trainer.is_first:
            _print(setting(trainer))

    def on_fit_end(self, trainer: "FederatedTrainer") -> None:
        if self.enabled and trainer.is_first and trainer.history:
            _print([*results(trainer), *costs(trainer)])
            for what, command in suggestions(trainer):
                # Not in the table: a command that is wrapped cannot be pasted.
                print(f"{what}:\n  {command}")
            print(flush=True)


def setting(trainer: "FederatedTrainer") -> Rows:
    """What the run is."""
    federation, module = trainer.federation, trainer.model.module
    network = module.model if isinstance(module, ClientModule) else module
    num_parameters = sum(p.numel() for p in trainer.params.values())
    tests = f", {len(federation.test):,} test samples" if federation.test is not None else ""
    if trainer.local_steps is not None:
        work = f"{trainer.local_steps} local step{'s' * (trainer.local_steps != 1)}"
    else:
        work = f"{trainer.local_epochs:g} local epoch{'s' * (trainer.local_epochs != 1)}"
    notes = [note.partition(": ") for note in trainer.notes]
    notes = notes if any(topic == "executor" for topic, _, _ in notes) else [("executor", ": ", trainer.executor.name), *notes]
    processes = f"{trainer.fabric.world_size} process{'es' * (trainer.fabric.world_size > 1)} on {trainer.fabric.device.type}"
    assert trainer.run_dir is not None
    return [
        ("task", federation.task + (f", {federation.num_classes} classes" if federation.task != "regression" else "")),
        ("model", f"{type(network).__name__}, {num_parameters:,} parameters"),
        ("data", f"{type(trainer.datamodule).__name__}, {len(federation.partition.indices):,} samples{tests}"),
        ("clients", f"{federation.num_clients:,} (partition {federation.split.hash}), {trainer.cohort_size():,} a round"),
        ("local work", f"{work}, batches of {trainer.batching.batch_size}"),
        ("methods", "\n".join(map(describe, trainer.methods)) or "none: plain FedAvg"),
        *((topic, text or topic) for topic, _, text in notes),
        ("processes", processes),
        ("rounds", f"{trainer.rounds}" + (f", going on after round {trainer.round}" if trainer.round else "")),
        ("run", str(short(trainer.run_dir))),
    ]


def describe(method: Method) -> str:
    """A method with its hyper-parameters: ``FedProx(mu=0.01)``. Its rounds are told only where it does not act in all."""
    fields = [
        f"{field.name}={getattr(method, field.name)!r}"
        for field in dataclasses.fields(method)
        if field.name not in ("start_round", "stop_round") or getattr(method, field.name) != field.default
    ]
    return f"{method.name}({', '.join(fields)})"


def results(trainer: "FederatedTrainer") -> Rows:
    """The main metric: its best, last and late values; and its value at the round that a validation set would choose."""
    rows = [("rounds", f"{trainer.round} of {trainer.rounds}" + (", stopped early" if trainer.round < trainer.rounds else ""))]
    evaluations = [row for row in trainer.history if main_metric(row) is not None]
    if not evaluations:
        return rows
    name = main_metric(evaluations[-1])
    assert name is not None
    values = {row["round"]: row[name] for row in evaluations if name in row}
    last_five = list(values.values())[-5:]
    best = _best(name, values)
    late = f"mean of last {len(last_five)} {figure(statistics.fmean(last_five))}"
    rows.append((name, f"best {figure(values[best])} (round {best:.0f}), last {figure(last_five[-1])}, {late}"))
    chooser = main_metric(evaluations[-1], selecting=True)
    if chooser is not None and chooser != name:
        chosen = _best(chooser, {row["round"]: row[chooser] for row in evaluations if chooser in row})
        rows.append(("", f"{figure(values[chosen])} where {chooser} was best (round {chosen:.0f})"))
    return rows


def costs(trainer: "FederatedTrainer") -> Rows:
    """Bytes and seconds, and where the run lies."""
    ledger, history = trainer.ledger, trainer.history
    plain = ledger.down.get("model", 0)  # FedAvg sends the model down and back up
    sent = [
        f"{human(total)} {way}" + (f" ({total / plain:.2f} x FedAvg's)" if plain and abs(total / plain - 1) > 0.005 else "")
        for way, total in (("up", ledger.total_up), ("down", ledger.total_down))
    ]
    rounds = [row["time/round"] for row in history]
    total = sum(rounds) + sum(row.get("time/evaluation", 0.0) for row in history)
    took = f"{seconds(statistics.median(rounds))} a round (median), {clock(total)} in all with evaluation"
    assert trainer.run_dir is not None
    return [("sent", ", ".join(sent)), ("took", took), ("run", str(short(trainer.run_dir)))]


def suggestions(trainer: "FederatedTrainer") -> Rows:
    """What to type next."""
    assert trainer.run_dir is not None
    run, cli = trainer.run_dir, trainer.config is not None
    checkpoints = [run / "checkpoints" / name for name in ("best.ckpt", "last.ckpt")]
    written = [path for path in checkpoints if path.is_file()]
    rows: Rows = []
    federation = trainer.federation
    verb = "test" if federation.test is not None else "validate" if federation.val is not None else None
    if verb and written:
        rows.append((f"{verb.capitalize()} its {written[0].stem} model", next_command(verb, run, written[0], cli)))
    if trainer.round < trainer.rounds and checkpoints[1].is_file():
        rows.append(("Go on with it", next_command("fit", run, run, cli)))
    return rows + trainer.trackers.to_upload()


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
            for line in textwrap.wrap(part, console.width - left, break_long_words=False, break_on_hyphens=False):
                console.print(Text.assemble((f"  {topic}".ljust(left), "bold"), line), soft_wrap=True)
                topic = ""
    console.print()
