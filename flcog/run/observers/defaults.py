"""The observers that every run has: progress, checkpoints, a chart of the partition and a summary."""

from flcog.lightning.trainer import RoundsTrainer
from flcog.method import Callback, Run
from flcog.run.observers.checkpoint import Checkpoint
from flcog.run.observers.progress import ProgressBar
from flcog.run.observers.summary import Summary
from flcog.run.partition_report import partition_report


class PartitionChart(Callback):
    """Draws every client's label counts into the run's directory, ``figures/partition-000000.png``. Every tracked run has one.

    A federation's server never sees these counts. Nor do trackers, which others may read, unless ``log_partition`` is set.

    Args:
        log_partition: whether to send the chart to trackers, too, with the spread of sizes, labels and divergences over clients
            from run.yaml.
    """

    def __init__(self, log_partition: bool = False) -> None:
        self.log_partition = log_partition

    def on_fit_start(self, run: Run) -> None:
        if self.log_partition and run.federation.is_complete and run.processes.is_first:
            run.trackers.log_setting({"partition": partition_report(run.federation)[1]})

    def on_round_end(self, run: Run, round: int, metrics: dict[str, float]) -> None:
        # After round 1, because importing matplotlib takes half a second, which would delay the first round.
        tracked = run.processes.is_first and run.trackers.loggers
        if round == 1 and tracked and run.federation.is_complete and run.federation.train.labelled:
            from flcog.run.pictures import partition_figure

            run.trackers.log_figure("partition", partition_figure(run.federation), 0, share=self.log_partition)


def default_observers(
    observers: list[Callback],
    lightning: RoundsTrainer,
    progress_bar: bool = True,
    checkpointing: bool = True,
    summary: bool = True,
) -> list[Callback]:
    """The user's observers and flcog's own, in the order in which they are called. One that the user lists replaces flcog's.

    The progress bar comes first, so that it has left the terminal before others print their last lines. The checkpoint comes after the
    user's observers, whose state it stores. The summary comes last: it names the files that the others have written.
    """
    everywhere: tuple[Callback, ...] = (
        ProgressBar(enabled=progress_bar and lightning.progress_bar_callback is None),
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
