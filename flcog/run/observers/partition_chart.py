"""The observer that draws how the data fall over the clients."""

from typing import TYPE_CHECKING

from flcog.hooks import Callback
from flcog.run.partition_report import partition_report

if TYPE_CHECKING:
    from flcog.trainer import FederatedTrainer


class PartitionChart(Callback):
    """Draws every client's label counts into the run's directory, ``figures/partition-000000.png``. Every tracked run has one.

    No server of a federation sees these counts, and the run's trackers, who belong to others, do not either unless they are to.

    Args:
        log_partition: whether the trackers get the chart too, and how sizes, labels and divergences spread over single clients,
            which stand in run.yaml.
    """

    def __init__(self, log_partition: bool = False) -> None:
        self.log_partition = log_partition

    def on_fit_start(self, trainer: "FederatedTrainer") -> None:
        if self.log_partition and trainer.is_first:
            trainer.trackers.log_setting({"partition": partition_report(trainer.federation)[1]})

    def on_round_end(self, trainer: "FederatedTrainer", round: int, metrics: dict[str, float]) -> None:
        # In round 1: nobody who waits for it should wait for matplotlib, whose import alone takes half a second.
        if round == 1 and trainer.is_first and trainer.loggers:
            from flcog.run.partition_figure import partition_figure

            trainer.trackers.log_figure("partition", partition_figure(trainer.federation), 0, share=self.log_partition)
