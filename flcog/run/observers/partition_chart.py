"""The observer that draws how the data fall over the clients."""

from flcog.method import Callback, Run
from flcog.run.partition_report import partition_report


class PartitionChart(Callback):
    """Draws every client's label counts into the run's directory, ``figures/partition-000000.png``. Every tracked run has one.

    A federation's server never sees these counts. Nor do trackers, which others may read, unless ``log_partition`` is set.

    Args:
        log_partition: whether the trackers get the chart too, and how sizes, labels and divergences spread over single clients,
            which stand in run.yaml.
    """

    def __init__(self, log_partition: bool = False) -> None:
        self.log_partition = log_partition

    def on_fit_start(self, run: Run) -> None:
        if self.log_partition and run.processes.is_first:
            run.trackers.log_setting({"partition": partition_report(run.federation)[1]})

    def on_round_end(self, run: Run, round: int, metrics: dict[str, float]) -> None:
        # In round 1: nobody who waits for it should wait for matplotlib, whose import alone takes half a second.
        if round == 1 and run.processes.is_first and run.trackers.loggers:
            from flcog.run.partition_figure import partition_figure

            run.trackers.log_figure("partition", partition_figure(run.federation), 0, share=self.log_partition)
