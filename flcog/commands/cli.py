"""The command line: LightningCLI, with rounds for epochs."""

import argparse
import os
import re
import shutil
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

from lightning.pytorch.cli import LightningArgumentParser, LightningCLI

import flcog.callbacks
import flcog.datamodules
from flcog.commands.config_file import check_config
from flcog.commands.errors import base_class_refusal, complain, explain, guess
from flcog.core import lost_processes
from flcog.core.child_processes import end_with_parent
from flcog.core.files import write_figure
from flcog.core.text import markdown
from flcog.data import FederatedDataModule
from flcog.hooks import Method
from flcog.trainer import FederatedTrainer

PACKAGE_FOLDERS = tuple(str(Path(module.__path__[0])) for module in (flcog, flcog.callbacks, flcog.datamodules))


class Commands(FederatedTrainer):
    """The trainer with the verbs that only a command line has."""

    def partition(self, model: Any, datamodule: FederatedDataModule, plot: str | None = None, save: str | None = None) -> None:
        """Show how the data falls over the clients.

        Args:
            plot: where to write the bubble chart of clients and classes (.png or .pdf).
            save: where to write the partition itself (.npz), to cite it or to load it elsewhere.
        """
        from rich.console import Console

        from flcog.run.partition_figure import partition_figure
        from flcog.run.partition_report import partition_report

        federation = datamodule.federation
        Console().print(partition_report(federation)[0])
        if plot is not None:
            write_figure(plot, partition_figure(federation), dpi=200, bbox_inches="tight")
        if save is not None:
            federation.split.save(save)

    def bench(self, model: Any, datamodule: FederatedDataModule, repeats: int = 5) -> None:
        """Time the config's rounds against a bare PyTorch loop of the same SGD steps.

        Args:
            repeats: how often each is run, in turn; medians are compared.
        """
        from flcog.commands.bench import bench

        bench(self, model, datamodule, repeats)

    def synthesize(self, model: Any, datamodule: FederatedDataModule) -> None:
        """Make the synthetic images that Fedssyn's clients would send, and stop: look at them, delete some, then run fit."""
        from flcog.callbacks.fedssyn.command import synthesize

        self._set_up(model, datamodule, None, stage="synthesize")
        synthesize(self)


class Parser(LightningArgumentParser):
    """Says what is wrong in one line, and what was probably meant."""

    def parse_args(self, args: Sequence[str] | None = None, *rest: Any, **options: Any) -> Any:  # type: ignore[override]
        # jsonargparse hands `--model.model.weights null` on to the class's own parser as Python writes it, `--weights=None`, which
        # that reads as a string.
        if args is not None:
            args = [re.sub(r"^(--[^=]+=)None$", r"\1null", argument) for argument in args]
        return super().parse_args(args, *rest, **options)

    def parse_path(self, path: Any, *rest: Any, **options: Any) -> Any:
        if Path(path).is_file():
            check_config(Path(path))
        return super().parse_path(path, *rest, **options)

    def add_class_arguments(self, theclass: type, nested_key: str | None = None, *rest: Any, **options: Any) -> Any:
        if nested_key is None:
            self.owner = theclass  # the parser of one class's options, for messages
        return super().add_class_arguments(theclass, nested_key, *rest, **options)

    def error(self, message: str, ex: Exception | None = None) -> Any:
        complain(explain(self, message))
        raise SystemExit(2)


class FederatedCLI(LightningCLI):
    """LightningCLI around the federated trainer; model and data are chosen by class path."""

    def __init__(self, args: list[str] | None = None, run: bool = True) -> None:
        _find_modules_here()
        super().__init__(
            datamodule_class=FederatedDataModule,
            subclass_mode_data=True,
            save_config_callback=None,
            trainer_class=Commands,  # type: ignore[arg-type]
            seed_everything_default=0,
            parser_class=Parser,
            parser_kwargs={
                "description": "Federated learning for PyTorch Lightning.",
                "version": flcog.__version__,
                "dump_header": ["flcog"],
            },
            auto_configure_optimizers=False,
            load_from_checkpoint_support=False,
            args=args,
            run=run,
        )

    @staticmethod
    def subcommands() -> dict[str, set[str]]:
        return {verb: {"model", "datamodule"} for verb in ("fit", "validate", "test", "partition", "bench", "synthesize")}

    def _add_subcommands(self, parser: LightningArgumentParser, **kwargs: Any) -> None:
        super()._add_subcommands(parser, **kwargs)
        for action in parser._subparsers._group_actions if parser._subparsers else []:
            for name, (_, description) in OTHER_COMMANDS.items():
                # Shown in the help; `main` runs them, for they take neither a model nor data.
                action._choices_actions.append(action._ChoicesPseudoAction(name, [], description))  # type: ignore[attr-defined]

    def add_core_arguments_to_parser(self, parser: LightningArgumentParser) -> None:
        parser.add_class_arguments(Commands, "trainer", fail_untyped=False, instantiate=False, sub_configs=True)
        parser.add_lightning_class_args(self._model_class, "model", subclass_mode=True)
        parser.add_lightning_class_args(self._datamodule_class, "data", subclass_mode=True)
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
        trainer = Commands(**options)
        self._dump_config()
        trainer.config = {key: value for key, value in self.config_dump.items() if key not in ("config", "ckpt_path")}
        # Said for one resume: the run's own config.yaml must not say it for all that follow.
        trainer.config["trainer"].pop("resume_changed", None)
        return trainer

    def _run_subcommand(self, subcommand: str) -> None:
        result = getattr(self.trainer, subcommand)(**self._prepare_subcommand_kwargs(subcommand))
        if result is not None and cast(Commands, self.trainer).is_first:
            for name, value in result.items():
                print(f"{name:<32} {value:.6g}")


def _find_modules_here() -> None:
    """Let class paths name modules in the working directory, as ``python -m flcog`` does and an installed script does not.

    Last on the path: a file called random.py or torch.py there must not stand in for the module that everybody else means.
    """
    if (here := os.getcwd()) not in sys.path:
        sys.path.append(here)


def _classes(module: Any) -> list[type]:
    return [value for name in module.__all__ if isinstance(value := getattr(module, name), type)]


def _own_reason(error: BaseException | None) -> str | None:
    """What our code said was wrong, if this error or one that led to it comes from us, however often the parser wrapped it."""
    while error is not None:
        raised_in = traceback.extract_tb(error.__traceback__)[-1].filename
        if isinstance(error, ValueError | OSError) and raised_in.startswith(PACKAGE_FOLDERS):
            return " ".join([str(error), *getattr(error, "__notes__", [])])
        error = error.__cause__
    return None


def _replay(argv: list[str]) -> None:
    """Run one client's local update of one round again, alone."""
    parser = argparse.ArgumentParser(prog="flcog replay", description=_replay.__doc__)
    parser.add_argument("run", help="the run's directory")
    parser.add_argument("--round", type=int, required=True, help="the round, counted from 1")
    parser.add_argument("--client", type=int, required=True, help="the client's number")
    options = parser.parse_args(argv)
    config = Path(options.run) / "config.yaml"
    if not config.is_file():
        raise ValueError(f"{options.run} holds no config.yaml: give the directory of a run started by `flcog fit`")
    cli = FederatedCLI(["--config", str(config), "--trainer.logger", "false", "--trainer.executor", "loop"], run=False)
    cast(Commands, cli.trainer).replay(cli.model, cli.datamodule, Path(options.run), options.round - 1, options.client)


def _methods(argv: list[str]) -> None:
    """Show the methods to choose from, with what they send, measured."""
    from flcog.commands import methods as tables

    parser = argparse.ArgumentParser(prog="flcog methods", description=_methods.__doc__)
    parser.add_argument("--markdown", action="store_true", help="as the README has it")
    options = parser.parse_args(argv)
    methods = [tables.example(cls) for cls in _classes(flcog.callbacks) if issubclass(cls, Method)]
    rows = tables.method_rows(sorted(methods, key=lambda method: method.name.lower()))
    if options.markdown:
        print(markdown(tables.METHOD_HEADER, rows))
        return
    # A pipe has no width: as wide as is comfortable to read.
    tables.print_methods(rows, width=min(120, shutil.get_terminal_size((120, 24)).columns))


def _compare(argv: list[str]) -> None:
    """Fill a paper's table: every arm in every setting with every seed."""
    from flcog.commands.compare import command as compare

    compare.main(argv)


def _feddisco_bound(argv: list[str]) -> None:
    """Minimise FedDisco's reformulated bound, and watch the original (its Table 6)."""
    from flcog.callbacks.feddisco import command as feddisco_command

    feddisco_command.main(argv)


def _leash(argv: list[str]) -> None:
    """Choose a leash's classes, for FedWalk."""
    from flcog.callbacks.fedwalk import command as leash_command

    leash_command.main(argv)


def _shuffling_study(argv: list[str]) -> None:
    """Count the rounds that shuffling saves on quadratics, beside Fedssyn's theory."""
    from flcog.callbacks.fedssyn import shuffling_study

    shuffling_study.main(argv)


OTHER_COMMANDS = {
    "compare": (_compare, "Fill a paper's table: every arm in every setting with every seed."),
    "feddisco-bound": (_feddisco_bound, "Minimise FedDisco's reformulated bound, and watch the original (its Table 6)."),
    "leash": (_leash, "Choose a leash's classes, for FedWalk."),
    "methods": (_methods, "Show the methods to choose from, with what they send, measured."),
    "replay": (_replay, "Run one client's local update of one round again, alone."),
    "shuffling-study": (_shuffling_study, "Count the rounds that shuffling saves on quadratics, beside Fedssyn's theory."),
}


def _check_command(arguments: Sequence[str]) -> None:
    """jsonargparse knows no commands but its own, and would list these alone."""
    commands = [*FederatedCLI.subcommands(), *OTHER_COMMANDS]
    listed = f"the commands are {', '.join(commands)}; flcog --help says what each does"
    if not arguments:
        raise ValueError(f"give a command, as in flcog fit -c configs/quickstart.yaml: {listed}")
    if not arguments[0].startswith("-") and arguments[0] not in commands:
        raise ValueError(f"there is no command {arguments[0]!r}.{guess(arguments[0], commands)} ({listed})")


@lost_processes.fails_for_all()
def main(argv: list[str] | None = None) -> None:
    """``flcog``: run a command; a mistake of the user's is one line, anything else a traceback."""
    end_with_parent()
    arguments = sys.argv[1:] if argv is None else argv
    try:
        _check_command(arguments)
        if arguments and arguments[0] in OTHER_COMMANDS:
            OTHER_COMMANDS[arguments[0]][0](arguments[1:])
        else:
            FederatedCLI(argv)
    except (ValueError, OSError) as error:
        reason = _own_reason(error)
        if reason is None:
            raise
        complain(reason)
        raise SystemExit(2) from None
    except KeyboardInterrupt:
        raise SystemExit(130) from None  # a run's Checkpoint, or compare, has said how to go on
