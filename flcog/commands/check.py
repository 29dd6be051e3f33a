"""The command ``flcog check``: advice on a combination of methods, model and data, before anything is trained."""

from torch import nn

from flcog.data import FederatedDataModule
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
