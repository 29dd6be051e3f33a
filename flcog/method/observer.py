"""Observers: the hooks that the engine calls on them, and a run as they see it."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from lightning.pytorch.loggers import Logger

from flcog.core.processes import Processes
from flcog.core.progress import Progress
from flcog.core.types import Params, Slot
from flcog.data import Exchange, Federation
from flcog.functional.evaluation import Evaluator
from flcog.functional.model_function import ModelFunction
from flcog.method.cohort import Uploads
from flcog.settings import Settings
from flcog.wire.ledger import Ledger


@dataclass(frozen=True)
class Note:
    """One decision or fact, which the summary prints behind its topic.

    Args:
        topic: ``executor``, ``memory``, ``client``, ``tracker``, ``privacy`` or ``attackers``; ``changed`` for a setting that differs
            from the run that wrote the checkpoint; ``warning`` if the run does less than its settings suggest; otherwise ``note``.
        text: one sentence for the user.
    """

    topic: str
    text: str


class Notes:
    """The notes of one run, in the order of their arrival. Observers receive each of them once, through ``on_note``.

    Notes may be added from any thread at any time. They are delivered in the main thread, before ``on_fit_start`` and at the end of
    each round, so that an observer is never called in the middle of a local step.
    """

    def __init__(self) -> None:
        self._notes: list[Note] = []
        self._delivered = 0

    def add(self, *notes: Note) -> None:
        """Add notes."""
        self._notes.extend(notes)

    def undelivered(self) -> Iterator[Note]:
        """The notes that were added since the last call."""
        while self._delivered < len(self._notes):
            self._delivered += 1
            yield self._notes[self._delivered - 1]

    def __iter__(self) -> Iterator[Note]:
        return iter(self._notes)


class MethodRecord(NamedTuple):
    """The data that a run stores for one method.

    Args:
        exchange: the exchange before round 1, or None.
        uploads: the clients' uploads of this round, if the method declares ``individual_uploads``.
        clients: the numbers of the clients on this process, in order, with the method's state of each.
    """

    exchange: Exchange | None
    uploads: Uploads
    clients: Iterator[tuple[int, Slot]]


class Trackers(Protocol):
    """The run's trackers. If a tracker fails, the run warns and continues."""

    loggers: list[Logger]

    def log_setting(self, setting: dict[str, Any]) -> None:
        """Send the settings of the run, without secrets."""

    def log_figure(self, name: str, figure: Any, step: int, share: bool = True) -> None:
        """Write a figure to the run's directory. If it may be shared, send it to every tracker that stores pictures."""

    def to_upload(self) -> list[tuple[str, str]]:
        """Commands that upload offline records, each with a description."""


class Run(Protocol):
    """A run as observers see it. They may set ``should_stop``, and change nothing else."""

    should_stop: bool
    """An observer sets this to end the run after the current round. Then it stays true."""

    @property
    def settings(self) -> Settings:
        """The settings of the training."""

    @property
    def description(self) -> Sequence[tuple[str, str]]:
        """The task, model, data, clients, methods and so on: a topic and a text each."""

    @property
    def directory(self) -> Path:
        """The directory of its files."""

    @property
    def trackers(self) -> Trackers:
        """The run's trackers, such as W&B."""

    @property
    def processes(self) -> Processes:
        """The processes that share the clients. The first process prints and writes."""

    @property
    def methods(self) -> "Sequence[Callback]":
        """The methods, in their order."""

    @property
    def federation(self) -> Federation:
        """The data, after the methods' exchanges before round 1."""

    @property
    def model(self) -> ModelFunction:
        """The client's model as a function of parameters and buffers."""

    @property
    def evaluator(self) -> Evaluator:
        """Measures models on the federation's sets."""

    @property
    def round(self) -> int:
        """The number of finished rounds."""

    @property
    def progress(self) -> Progress:
        """How far the round in hand is."""

    @property
    def params(self) -> Params:
        """The global model's parameters."""

    @property
    def buffers(self) -> Params:
        """The global model's buffers."""

    def evaluated_params(self) -> Params:
        """The parameters that are evaluated: the global model's, or those that methods return from ``evaluate_at``."""

    def method_record(self, method: str) -> MethodRecord:
        """The data that the run stores for the method with this name."""

    @property
    def history(self) -> Sequence[Mapping[str, float]]:
        """One row per round: the rows of ``metrics.csv``."""

    @property
    def ledger(self) -> Ledger:
        """The bytes that were sent until now."""

    @property
    def state_files(self) -> Sequence[str]:
        """The files of clients' states that the last checkpoint refers to."""

    def save(self, path: Path, resumable: bool = True, pinned: Collection[str] | None = None) -> None:
        """Write a checkpoint. Every process must call this.

        Args:
            path: of the checkpoint.
            resumable: whether to include the clients' states. A checkpoint without them can only be evaluated.
            pinned: files of clients' states that other checkpoints need. If given, other files that this checkpoint does not need
                are deleted.
        """

    def next_command(self, verb: str, checkpoint: Path) -> str:
        """The command or call that fits, tests or validates from a checkpoint of this run, or from its directory."""


class Callback:
    """Observes a run. Its hooks return nothing, may add columns to the row of metrics, and run on every process."""

    @property
    def name(self) -> str:
        """Its name in a run: the name of its class."""
        return type(self).__name__

    def on_note(self, run: Run, note: Note) -> None:
        """The run has made a choice on the user's behalf. Called before ``on_fit_start``, and at the end of a round for later notes."""

    def on_fit_start(self, run: Run) -> None:
        """Before the first round (or the first after a resume)."""

    def on_round_start(self, run: Run, round: int, cohort: list[int]) -> None:
        """The cohort is known, and training has not begun."""

    def on_evaluation_end(self, run: Run, round: int, metrics: dict[str, float]) -> None:
        """The global model was evaluated."""

    def on_round_metrics(self, run: Run, round: int, metrics: dict[str, float]) -> None:
        """The round is done, evaluated or not, and its row is about to be written: the last chance to add columns."""

    def on_round_end(self, run: Run, round: int, metrics: dict[str, float]) -> None:
        """The round's row is complete and written. Rounds count from 1 here: ``round`` rounds are done."""

    def on_fit_end(self, run: Run) -> None:
        """After the last round."""

    def on_exception(self, run: Run, exception: BaseException) -> None:
        """An error is about to end the run."""

    def state_dict(self) -> dict[str, Any]:
        """The observer's state for a resumed run, in tensors and primitives."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """The inverse of :meth:`state_dict`."""
