"""The observer that draws how the data fall over the clients."""

from flcog.method import Callback, Run
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
            from flcog.run.partition_figure import partition_figure

            run.trackers.log_figure("partition", partition_figure(run.federation), 0, share=self.log_partition)
