"""The command line: lists the subcommands of ``flcog``, and hands the arguments to the one that is asked for."""

import argparse
import sys
from collections.abc import Sequence

import flcog.callbacks
from flcog.commands.bench import BENCH
from flcog.commands.cite import CITE
from flcog.commands.compare.command import COMPARE
from flcog.commands.errors import complain, guess
from flcog.commands.lightning_cli import FederatedCLI
from flcog.commands.methods import METHODS
from flcog.commands.partition import PARTITION
from flcog.commands.refusals import refusal
from flcog.commands.replay import REPLAY
from flcog.commands.report.command import REPORT
from flcog.commands.shipped_configs import CONFIGS
from flcog.core import lost_processes
from flcog.core.child_processes import end_with_parent
from flcog.core.commands import Command, TrainerCommand
from flcog.trainer import FederatedTrainer

VERBS = tuple(
    TrainerCommand(verb.__name__, verb) for verb in (FederatedTrainer.fit, FederatedTrainer.validate, FederatedTrainer.test)
)

ALL = (*VERBS, PARTITION, BENCH, REPLAY, REPORT, COMPARE, METHODS, CITE, CONFIGS, *flcog.callbacks.COMMANDS)

COMMANDS: dict[str, Command] = {command.name: command for command in ALL}


def main(argv: list[str] | None = None) -> None:
    """``flcog``: run a command; a mistake of the user's is one line, anything else a traceback."""
    end_with_parent()
    try:
        with lost_processes.fails_for_all():
            _run(sys.argv[1:] if argv is None else argv, argv)
    except Exception as error:
        reason = refusal(error)
        if reason is None:
            raise
        complain(reason)
        raise SystemExit(2) from None
    except KeyboardInterrupt:
        raise SystemExit(130) from None  # a run's Checkpoint, or compare, has said how to go on


def _run(words: Sequence[str], argv: list[str] | None) -> None:
    """The command that ``words`` begin with; ``argv`` as ``main`` got it, for LightningCLI warns of arguments that are given twice."""
    if words and words[0] in ("-h", "--help", "--version"):
        _parser().parse_args(words)
    command = _asked(words)
    if isinstance(command, TrainerCommand):
        FederatedCLI(argv, command)
    else:
        command.run(list(words[1:]))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="flcog",
        description="Federated learning for PyTorch Lightning.",
        epilog="flcog COMMAND --help lists a command's options.",
    )
    parser.add_argument("--version", action="version", version=f"flcog {flcog.__version__}", help="print the version and exit")
    listed = parser.add_subparsers(title="commands", metavar="COMMAND")
    for command in ALL:
        listed.add_parser(command.name, help=command.summary)
    return parser


def _asked(words: Sequence[str]) -> Command:
    """The command, which comes first."""
    listed = f"the commands are {', '.join(COMMANDS)}; flcog --help says what each does"
    if words and words[0] in COMMANDS:
        return COMMANDS[words[0]]
    if words and not words[0].startswith("-"):
        raise ValueError(f"there is no command {words[0]!r}.{guess(words[0], COMMANDS)} ({listed})")
    late = next((COMMANDS[word] for word in words if word in COMMANDS), None)
    if late is not None:
        options = "-c FILE ..." if isinstance(late, TrainerCommand) else "..."
        raise ValueError(f"the command comes first, its options after it: flcog {late.name} {options}")
    raise ValueError(f"give a command, as in flcog fit -c configs/quickstart.yaml: {listed}")
