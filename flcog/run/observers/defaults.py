"""The observers that every run has: progress, checkpoints, a chart of the partition and a summary."""

from flcog.method import Callback
from flcog.run.lightning_callbacks import LightningCallbacks
from flcog.run.observers.checkpoint import Checkpoint
from flcog.run.observers.partition_chart import PartitionChart
from flcog.run.observers.progress import ProgressBar
from flcog.run.observers.summary import Summary


def default_observers(observers: list[Callback], lightning: LightningCallbacks) -> list[Callback]:
    """The user's observers and those that every run has, in the order in which they are told.

    The progress bar comes first, so that it has left the terminal when others have their last word. The checkpoint comes after the
    user's, whose state it holds. The summary comes last: it names what the others have written.

    Args:
        observers: the user's.
        lightning: calls the user's callbacks of Lightning's. A progress bar among them replaces flcog's.
    """
    progress = ProgressBar(enabled=not lightning.draws_progress)

    def only(kind: type[Callback], default: Callback | None = None) -> Callback:
        given = [observer for observer in observers if isinstance(observer, kind)]
        if len(given) > 1:
            raise ValueError(f"{kind.__name__} is listed {len(given)} times in callbacks: keep one of them")
        return given[0] if given else default or kind()

    everywhere = (ProgressBar, Checkpoint, PartitionChart, Summary)
    others = [observer for observer in observers if not isinstance(observer, everywhere)]
    return [only(ProgressBar, progress), *others, lightning, only(Checkpoint), only(PartitionChart), only(Summary)]
