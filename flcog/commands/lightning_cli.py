"""LightningCLI for federated training: model, data, trainer and their options from configs and the command line."""

import os
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from lightning.pytorch.cli import LightningArgumentParser, LightningCLI
from torch import nn

import flcog
import flcog.callbacks
import flcog.datamodules
from flcog.commands.callback_options import reach_by_name, take_changes
from flcog.commands.complaint import complain
from flcog.commands.config_file import check_config
from flcog.commands.errors import base_class_refusal, explain
from flcog.commands.shipped_configs import with_paths
from flcog.core.commands import TrainerCommand
from flcog.core.lazy import load
from flcog.data import FederatedDataModule
from flcog.trainer import FederatedTrainer

NOT_OF_THE_RUN = ("config", "ckpt_path", "branch", "round")
"""Options of ``flcog fit`` that say how a run begins, not what it is."""


class Parser(LightningArgumentParser):
    """Says what is wrong in one line, and what was probably meant."""

    changes: Sequence[tuple[str, str]] = ()
    """What the config in hand changes of callbacks that are listed before it."""

    def parse_args(self, args: Sequence[str] | None = None, *rest: Any, **options: Any) -> Any:  # type: ignore[override]
        # jsonargparse hands `--model.model.weights null` on to the class's own parser as Python writes it, `--weights=None`, which
        # that reads as a string.
        if args is not None:
            args = with_paths(re.sub(r"^(--[^=]+=)None$", r"\1null", argument) for argument in args)
        return super().parse_args(args, *rest, **options)

    def parse_path(self, path: Any, *rest: Any, **options: Any) -> Any:
        if Path(path).is_file():
            check_config(Path(path))
        return super().parse_path(path, *rest, **options)

    def parse_string(self, content: str, *rest: Any, **options: Any) -> Any:  # type: ignore[override]
        content, self.changes = take_changes(content)
        return super().parse_string(content, *rest, **options)

    def add_class_arguments(self, theclass: type, nested_key: str | None = None, *rest: Any, **options: Any) -> Any:
        if nested_key is None:
            self.owner = theclass  # the parser of one class's options, for messages
        return super().add_class_arguments(theclass, nested_key, *rest, **options)

    def error(self, message: str, ex: Exception | None = None) -> Any:
        complain(explain(self, message))
        raise SystemExit(2)


class FederatedCLI(LightningCLI):
    """LightningCLI around the federated trainer; model and data are chosen by class path.

    Args:
        args: the words after ``flcog``; those of the process by default.
        command: what is run once model, data and trainer are made; None to make them alone, from options without a command's name.
    """

    trainer: FederatedTrainer  # type: ignore[assignment]

    def __init__(self, args: list[str] | None = None, command: TrainerCommand | None = None) -> None:
        self.command = command
        for package in (flcog, flcog.callbacks, flcog.datamodules):
            load(package)  # a class may be named without its path once it is imported
        find_modules_here()
        super().__init__(
            datamodule_class=FederatedDataModule,
            subclass_mode_data=True,
            save_config_callback=None,
            trainer_class=_trainer_with(command),
            seed_everything_default=0,
            parser_class=Parser,
            parser_kwargs={"dump_header": ["flcog"]},
            auto_configure_optimizers=False,
            load_from_checkpoint_support=False,
            args=args,
            run=command is not None,
        )

    def subcommands(self) -> dict[str, set[str]]:  # type: ignore[override]
        return {self.command.name: {"model", "datamodule"}} if self.command else {}

    def add_core_arguments_to_parser(self, parser: LightningArgumentParser) -> None:
        parser.add_class_arguments(FederatedTrainer, "trainer", fail_untyped=False, instantiate=False, sub_configs=True)
        parser.add_subclass_arguments(nn.Module, "model", fail_untyped=False, required=True)  # a bare network, too
        parser.add_lightning_class_args(self._datamodule_class, "data", subclass_mode=True)
        reach_by_name(parser)
        parser.link_arguments("seed_everything", "trainer.seed", compute_fn=int)

    def _parse_ckpt_path(self) -> None:
        """Our checkpoints hold no constructor arguments: nothing to parse."""

    def _set_seed(self) -> None:
        seed = self._get(self.config, "seed_everything")
        if not isinstance(seed, bool) and not 0 <= seed < 1 << 32:
            raise ValueError(f"seed_everything must lie in [0, {1 << 32}), as numpy has it; got {seed}")
        super()._set_seed()

    def instantiate_trainer(self, **kwargs: Any) -> Any:
        options = self._get(self.config_init, "trainer")
        for part in (self.model, self.datamodule, *(options.get("callbacks") or [])):
            if refusal := base_class_refusal(part):
                raise ValueError(refusal)
        trainer = FederatedTrainer(**options)
        self._dump_config()
        trainer.config = {key: value for key, value in self.config_dump.items() if key not in NOT_OF_THE_RUN}
        # Said for one resume: the run's own config.yaml must not say it for all that follow.
        trainer.config["trainer"].pop("resume_changed", None)
        return trainer

    def _run_subcommand(self, subcommand: str) -> None:
        assert self.command is not None
        result = self.command.run(self.trainer, **self._prepare_subcommand_kwargs(subcommand))
        if result is not None and self.trainer.fabric.is_global_zero:
            for name, value in result.items():
                print(f"{name:<32} {value:.6g}")


def _trainer_with(command: TrainerCommand | None) -> type:
    """LightningCLI reads a command's help and options off a method of the trainer's class."""
    return FederatedTrainer if command is None else type("Trainer", (FederatedTrainer,), {command.name: command.run})


def find_modules_here() -> None:
    """Let class paths name modules in the working directory, as ``python -m flcog`` does and an installed script does not.

    Last on the path: a file called random.py or torch.py there must not stand in for the module that everybody else means.
    """
    if (here := os.getcwd()) not in sys.path:
        sys.path.append(here)
