"""What an observer sees of a run, and the hooks at which it is called."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from lightning.pytorch.loggers import Logger

from flcog.apply import ModelFunction
from flcog.core.processes import Processes
from flcog.core.types import Params, Slot
from flcog.data import Exchange, Federation
from flcog.evaluation import Evaluator
from flcog.method.context import Uploads
from flcog.method.notes import Note
from flcog.settings import Settings
from flcog.wire.ledger import Ledger


class Kept(NamedTuple):
    """What a run keeps for one method, as observers may see it.

    Args:
        exchange: what it exchanged before round 1, if anything.
        uploads: what single clients sent in this round, where the method declares ``individual_uploads``.
        clients: the clients that live on this process, in their order, with what the method keeps of each.
    """

    exchange: Exchange | None
    uploads: Uploads
    clients: Iterator[tuple[int, Slot]]


class Trackers(Protocol):
    """The run's trackers. Where one fails it is warned of, and the run goes on."""

    loggers: list[Logger]

    def log_setting(self, setting: dict[str, Any]) -> None:
        """Tell them what the run is, without secrets."""

    def log_figure(self, name: str, figure: Any, step: int, share: bool = True) -> None:
        """A picture to the run's directory and, if it may be shared, to every tracker that takes pictures."""

    def to_upload(self) -> list[tuple[str, str]]:
        """What to type to upload what was tracked offline, and what that does."""


class Run(Protocol):
    """A run as its observers see it. They change nothing of it but ``should_stop``."""

    should_stop: bool
    """An observer sets this to end the run after the current round."""

    @property
    def settings(self) -> Settings:
        """What the user asked of the training."""

    @property
    def description(self) -> Sequence[tuple[str, str]]:
        """The task, model, data, clients, methods and so on: a topic and a text each."""

    @property
    def directory(self) -> Path:
        """Where its files are."""

    @property
    def trackers(self) -> Trackers:
        """The run's trackers, such as W&B."""

    @property
    def processes(self) -> Processes:
        """The processes over which the clients are spread; the first one prints and writes."""

    @property
    def methods(self) -> "Sequence[Callback]":
        """In the order in which they act."""

    @property
    def federation(self) -> Federation:
        """The data, after what methods exchanged before round 1."""

    @property
    def model(self) -> ModelFunction:
        """The client's model, whatever its parameters are at the moment."""

    @property
    def evaluator(self) -> Evaluator:
        """Measures models on the federation's sets."""

    @property
    def round(self) -> int:
        """Rounds done."""

    @property
    def params(self) -> Params:
        """The global model's parameters."""

    @property
    def buffers(self) -> Params:
        """Its buffers."""

    def evaluated_params(self) -> Params:
        """Where the global model is evaluated: its parameters, or what methods put in their place."""

    def kept(self, method: str) -> Kept:
        """What the run keeps for a method of this name."""

    @property
    def history(self) -> Sequence[Mapping[str, float]]:
        """One row per round: the rows of ``metrics.csv``."""

    @property
    def ledger(self) -> Ledger:
        """Bytes sent so far."""

    @property
    def state_files(self) -> Sequence[str]:
        """The files of clients' states that the last checkpoint refers to."""

    def save(self, path: Path, resumable: bool = True, pinned: Collection[str] | None = None) -> None:
        """Write a checkpoint; every process calls it.

        Args:
            path: where to.
            resumable: whether the clients' states belong to it; without them it can only be evaluated.
            pinned: files of clients' states that other checkpoints refer to. Where this is given, all that neither these nor this
                one refer to are removed.
        """

    def next_command(self, verb: str, checkpoint: Path) -> str:
        """What to type to fit, test or validate from a checkpoint of this run, or from its directory."""


class Callback:
    """Observes a run: returns nothing, changes nothing but the row of metrics, to which it may add. Called on every process."""

    @property
    def name(self) -> str:
        """Its name in a run: the name of its class."""
        return type(self).__name__

    def on_note(self, run: Run, note: Note) -> None:
        """The run has made a choice on the user's behalf. Called before ``on_fit_start``, and at the end of a round for later notes."""

    def on_fit_start(self, run: Run) -> None:
        """Before the first round (or the first after a resume)."""

    def on_round_start(self, run: Run, round: int, cohort: list[int]) -> None:
        """The cohort is known, nothing is trained yet."""

    def on_evaluation_end(self, run: Run, round: int, metrics: dict[str, float]) -> None:
        """The global model was evaluated."""

    def on_round_metrics(self, run: Run, round: int, metrics: dict[str, float]) -> None:
        """The round is done, evaluated or not, and its row is about to be written: the last chance to add columns."""

    def on_round_end(self, run: Run, round: int, metrics: dict[str, float]) -> None:
        """The round's row is complete and written. Rounds count from 1 here: ``round`` rounds are done."""

    def on_fit_end(self, run: Run) -> None:
        """After the last round."""

    def on_exception(self, run: Run, exception: BaseException) -> None:
        """The run is about to die."""

    def state_dict(self) -> dict[str, Any]:
        """What a resumed run must know: tensors and primitives."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """The inverse of :meth:`state_dict`."""
