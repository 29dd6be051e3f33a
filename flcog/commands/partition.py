"""The command ``flcog partition``: a table and a chart of the clients' data, and the partition as a file."""

from typing import Any

from rich.console import Console

from flcog.core.files import write_figure
from flcog.data import FederatedDataModule
from flcog.run.partition_figure import partition_figure
from flcog.run.partition_report import partition_report


def partition(
    trainer: Any, model: Any, datamodule: FederatedDataModule, plot: str | None = None, save: str | None = None
) -> None:
    """Show how the data are divided among the clients. A model is not needed.

    Args:
        plot: where to write the bubble chart of clients and classes (.png or .pdf).
        save: where to write the partition itself (.npz), to cite it or to load it elsewhere.
    """
    federation = datamodule.federation
    Console().print(partition_report(federation)[0], *datamodule.notes, sep="\n")
    if plot is not None:
        write_figure(plot, partition_figure(federation), dpi=200, bbox_inches="tight")
    if save is not None:
        federation.split.save(save)
