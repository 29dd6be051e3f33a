"""The commands of ``flcog`` that act on a trainer, a model and data: each is a LightningCLI with a single verb."""

from typing import Any

from lightning.pytorch.cli import LightningArgumentParser

from flcog.commands.federated_cli import FederatedCLI
from flcog.core.commands import TrainerCommand
from flcog.trainer import FederatedTrainer


class CommandCLI(FederatedCLI):
    """Constructs trainer, model and data from the command line, and runs one command on them; without a command it only constructs them."""

    def __init__(self, args: list[str] | None = None, command: TrainerCommand | None = None) -> None:
        self.command = command
        self.needs_model = command is None or command.runs_model
        super().__init__(
            save_config_callback=None,
            trainer_class=_trainer_with(command),
            args=args,
            run=command is not None,
            auto_configure_optimizers=False,
        )

    def subcommands(self) -> dict[str, set[str]]:  # type: ignore[override]
        return {self.command.name: {"model", "datamodule"}} if self.command else {}

    def instantiate_trainer(self, **options: Any) -> Any:
        return super().instantiate_trainer(**options) if self.needs_model else None

    def _add_subcommands(self, parser: LightningArgumentParser, **options: Any) -> None:
        super()._add_subcommands(parser, **options)
        for each in self._subcommand_parsers.values():
            each.prog = each.prog.replace(" [options]", "")  # in a usage: options follow the command's name

    def _run_subcommand(self, subcommand: str) -> None:
        assert self.command is not None
        self.command.run(self.trainer, **self._prepare_subcommand_kwargs(subcommand))


def _trainer_with(command: TrainerCommand | None) -> type[FederatedTrainer]:
    """A trainer with the command as a method: LightningCLI reads a command's help and options from a method of the trainer's class."""
    return FederatedTrainer if command is None else type("FederatedTrainer", (FederatedTrainer,), {command.name: command.run})
