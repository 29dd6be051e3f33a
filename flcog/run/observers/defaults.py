"""The observers that every run has: progress, checkpoints, a chart of the partition and a summary."""

from flcog.lightning.observer import LightningHooks
from flcog.method import Callback
from flcog.run.observers.checkpoint import Checkpoint
from flcog.run.observers.partition_chart import PartitionChart
from flcog.run.observers.progress import ProgressBar
from flcog.run.observers.summary import Summary


def default_observers(
    observers: list[Callback],
    lightning: LightningHooks,
    progress_bar: bool = True,
    checkpointing: bool = True,
    summary: bool = True,
) -> list[Callback]:
    """The user's observers and flcog's own, in the order in which they are called.

    The progress bar comes first, so that it has left the terminal before others print their last lines. The checkpoint comes after the
    user's observers, whose state it stores. The summary comes last: it names the files that the others have written.

    Args:
        observers: the user's.
        lightning: calls the hooks of the user's Lightning callbacks. A progress bar among them replaces flcog's.
        progress_bar, checkpointing, summary: whether flcog's own observers do anything. One that the user lists replaces flcog's.
    """
    everywhere: tuple[Callback, ...] = (
        ProgressBar(enabled=progress_bar and not lightning.draws_progress),
        Checkpoint(enabled=checkpointing),
        PartitionChart(),
        Summary(enabled=summary),
    )

    def only(default: Callback) -> Callback:
        given = [observer for observer in observers if isinstance(observer, type(default))]
        if len(given) > 1:
            raise ValueError(f"{type(default).__name__} is listed {len(given)} times in callbacks: keep one of them")
        return given[0] if given else default

    progress, *rest = map(only, everywhere)
    others = [observer for observer in observers if not isinstance(observer, tuple(map(type, everywhere)))]
    return [progress, *others, lightning, *rest]
