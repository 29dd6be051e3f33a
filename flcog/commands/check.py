"""The commands that look at a config before it is trained: ``flcog check`` and ``flcog partition``."""

from typing import Any

from rich.console import Console
from torch import nn

from flcog.core.files import write_figure
from flcog.data import FederatedDataModule
from flcog.run.partition_report import partition_report
from flcog.run.pictures import partition_figure
from flcog.trainer import FederatedTrainer


def check(trainer: FederatedTrainer, model: nn.Module, datamodule: FederatedDataModule) -> None:
    """Look for methods that undo each other and options without effect.

    Every client hook runs on random numbers, and one round runs with a single local step per client. Each finding is one line: the
    method and its hook, the effect on a run, and the fix. Advice alone exits with status 0. If fit would refuse the run, or a hook
    fails, the error exits with status 2.
    """
    findings = FederatedTrainer.check(trainer, model, datamodule)  # trainer.check is this command, for LightningCLI
    if trainer.fabric.is_global_zero:
        for finding in findings:
            print(finding)
        if not findings:
            print("nothing to advise")


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
