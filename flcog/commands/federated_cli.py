"""FederatedCLI: LightningCLI around the federated trainer, for users' own scripts, and CommandCLI for the commands of ``flcog``."""

import os
import sys
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

from jsonargparse import Namespace
from lightning.pytorch.cli import LightningArgumentParser, LightningCLI, SaveConfigCallback
from torch import nn

import flcog.callbacks
import flcog.datamodules
from flcog.commands.config_file import IN_ROUNDS, reach_by_name
from flcog.commands.errors import shown_errors
from flcog.commands.parser import DATA, Parser
from flcog.commands.shipped_configs import with_paths
from flcog.core.commands import TrainerCommand
from flcog.core.lazy import exported
from flcog.method import Callback, Run
from flcog.run.directory import keep_earlier
from flcog.trainer import FederatedTrainer

NOT_OF_THE_RUN = ("config", "ckpt_path")
"""Options of ``fit`` that describe how a run goes on from others. They are not part of its configuration."""


class FederatedCLI(LightningCLI):
    """LightningCLI for federated training, for scripts of your own::

        from flcog import FederatedCLI

        FederatedCLI(MyModel, MyDataModule)  # python main.py fit --model.lr 0.1 --trainer.rounds 20 --trainer.callbacks+=FedProx

    Everything that LightningCLI offers for subclasses works here: ``add_arguments_to_parser`` with ``link_arguments`` and
    ``add_lightning_class_args``, ``before_fit`` and ``after_fit``, ``before_instantiate_classes`` and so on.

    Args:
        model_class: a LightningModule or another network, or a function that returns one; None lets users choose one by its class
            path.
        datamodule_class: a LightningDataModule (flcog's data modules are some) or a map-style data set, or a function that
            returns one; None lets users choose.
        save_config_callback: every run writes its ``config.yaml``, from which it resumes. The ``save_config`` method of a subclass of
            Lightning's ``SaveConfigCallback`` is also called when the run begins.
        save_config_kwargs: options of this class. ``config_filename`` is the name of a further file in the run's directory, of several
            files with ``multifile``. A resumed run keeps a copy of the earlier file, unless ``overwrite`` is true.
        trainer_class: :class:`flcog.FederatedTrainer`, or a subclass.
        trainer_defaults: defaults of its options. Callbacks among them are appended to the user's.
        seed_everything_default: seeds the initial weights and the trainer; True draws a seed.
        parser_kwargs: options of the argument parsers.
        subclass_mode_model, subclass_mode_data: whether users may choose a subclass by its class path.
        args: the command line; by default that of the process.
        run: whether the command line begins with a verb (``fit``, ``validate``, ``test`` or ``predict``), which is executed. With
            False, ``cli.trainer``, ``cli.model`` and ``cli.datamodule`` are only constructed.
        auto_configure_optimizers: whether ``--optimizer`` and ``--lr_scheduler`` exist, which replace the model's own.
    """

    trainer: FederatedTrainer  # type: ignore[assignment]
    needs_model: bool = True
    """Whether the user must give a model."""
    modules: Path | None = Path(".")
    """The folder whose modules class paths may name, as with ``python -m flcog``; None for none."""

    def __init__(
        self,
        model_class: Any = None,
        datamodule_class: Any = None,
        *,
        trainer_class: type[FederatedTrainer] = FederatedTrainer,
        seed_everything_default: bool | int = 0,
        parser_kwargs: dict[str, Any] | None = None,
        run: bool = True,
        **options: Any,
    ) -> None:
        for package in (sys.modules["flcog"], flcog.callbacks, flcog.datamodules):
            exported(package)  # jsonargparse finds a class by its name alone only after it was imported
        if self.modules is not None and (folder := os.path.abspath(self.modules)) not in sys.path:
            sys.path.append(folder)  # last: a file there called random.py or torch.py must not replace the module of that name
        options |= {"trainer_class": trainer_class, "parser_class": Parser, "load_from_checkpoint_support": False, "run": run}
        options |= {"seed_everything_default": seed_everything_default}
        options |= {"parser_kwargs": {"dump_header": ["flcog"]} | (parser_kwargs or {})}
        with shown_errors() if run else nullcontext():
            super().__init__(model_class, datamodule_class, **options)

    @staticmethod
    def subcommands() -> dict[str, set[str]]:
        return {
            "fit": {"model", "datamodule"},
            "validate": {"model", "datamodule"},
            "test": {"model", "datamodule"},
            "predict": {"model", "datamodule", "inputs"},
        }

    def add_core_arguments_to_parser(self, parser: LightningArgumentParser) -> None:
        parser.add_class_arguments(self.trainer_class, "trainer", fail_untyped=False, instantiate=False, sub_configs=True)  # type: ignore[arg-type]
        for theirs, ours in IN_ROUNDS.items():
            parser._option_string_actions[f"--trainer.{theirs}"] = parser._option_string_actions[f"--trainer.{ours}"]
        defaults = {name: value for name, value in self.trainer_defaults.items() if name != "callbacks"}
        parser.set_defaults({f"trainer.{IN_ROUNDS.get(name, name)}": value for name, value in defaults.items()})
        model: Any = self.model_class or nn.Module
        parser.add_lightning_class_args(model, "model", self.subclass_mode_model, self.needs_model)
        parser.add_lightning_class_args(self.datamodule_class or DATA, "data", subclass_mode=self.subclass_mode_data)  # type: ignore[arg-type]
        reach_by_name(parser)
        parser.link_arguments("seed_everything", "trainer.seed", compute_fn=int)

    def parse_arguments(self, parser: LightningArgumentParser, args: Any) -> None:
        """Parse the command line, where ``-c`` also takes the name of a config that comes with flcog."""
        if isinstance(args, dict | Namespace):
            self.config = parser.parse_object(args)
        else:
            self.config = parser.parse_args(with_paths(sys.argv[1:] if args is None else args))

    def _parse_ckpt_path(self) -> None:
        """flcog's checkpoints do not change the configuration."""

    def _set_seed(self) -> None:
        drawn = self._get(self.config, "seed_everything") is True
        super()._set_seed()
        if drawn:  # the seed was drawn after the trainer's was linked to the option
            config = self.config[self.subcommand] if self.subcommand else self.config
            config["trainer"]["seed"] = config["seed_everything"]

    def instantiate_trainer(self, **kwargs: Any) -> Any:
        callbacks = [self._get(self.config_init, key) for key in self._parser(self.subcommand).callback_keys]
        options = {**self._get(self.config_init, "trainer"), **kwargs}
        always = self.trainer_defaults.get("callbacks") or []
        callbacks = [*(options.get("callbacks") or []), *callbacks, *(always if isinstance(always, list) else [always])]
        options["callbacks"] = callbacks + self._config_savers()
        trainer: Any = self.trainer_class(**options)
        self._dump_config()
        trainer.config = {key: value for key, value in self.config_dump.items() if key not in NOT_OF_THE_RUN}
        if trainer.config.get("init_from") is None:
            trainer.config.pop("init_from", None)
        # The option applies to one resume: a run's own config.yaml must not repeat it at each later one.
        trainer.config["trainer"].pop("resume_changed", None)
        return trainer

    def _config_savers(self) -> list[Callback]:
        """An observer that does the work of the user's ``SaveConfigCallback``, if it does more than write ``config.yaml``."""
        kind = self.save_config_callback
        if kind is None or (kind.save_config is SaveConfigCallback.save_config and not self.save_config_kwargs):
            return []
        config = self.config[self.subcommand] if self.subcommand else self.config
        return [SavedConfig(kind(self._parser(self.subcommand), config, **self.save_config_kwargs), self)]


class SavedConfig(Callback):
    """Writes the configuration once, in the main process, when a run begins, and calls the user's ``save_config``.

    Every run writes ``config.yaml`` itself.
    """

    def __init__(self, saver: SaveConfigCallback, cli: Any) -> None:
        self._saver, self._cli = saver, cli

    def on_fit_start(self, run: Run) -> None:
        if not run.processes.is_first:
            return
        saver, path = self._saver, run.directory / self._saver.config_filename
        if saver.save_to_log_dir and path.name != "config.yaml":
            if path.is_file() and not saver.overwrite:
                keep_earlier(path)
            saver.parser.save(saver.config, str(path), skip_none=False, overwrite=True, multifile=saver.multifile)
        saver.save_config(self._cli.trainer, self._cli.model, "fit")


class CommandCLI(FederatedCLI):
    """Constructs trainer, model and data from the command line, and runs one command on them; without a command it only constructs them."""

    def __init__(
        self,
        args: list[str] | None = None,
        command: TrainerCommand | None = None,
        modules: Path | None = Path("."),
        observers: Sequence[Callback] = (),
    ) -> None:
        self.command, self.modules = command, modules
        self.needs_model = command is None or command.runs_model
        super().__init__(
            save_config_callback=None,
            trainer_class=_trainer_with(command),
            trainer_defaults={"callbacks": list(observers)},
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


class OptionReader(CommandCLI):
    """Reads the options of ``fit``, and constructs nothing."""

    def _set_seed(self) -> None: ...

    def instantiate_classes(self) -> None: ...


def _trainer_with(command: TrainerCommand | None) -> type[FederatedTrainer]:
    """A trainer with the command as a method: LightningCLI reads a command's help and options from a method of the trainer's class."""
    return FederatedTrainer if command is None else type("FederatedTrainer", (FederatedTrainer,), {command.name: command.run})
