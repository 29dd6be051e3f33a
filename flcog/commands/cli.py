"""The command line: lists the subcommands of ``flcog``, and runs one.

Nothing here loads torch, which takes seconds. A list, a version or an error appears at once, and each command imports its own
modules.
"""

import argparse
import os
import sys
from collections.abc import Sequence

import flcog
import flcog.callbacks
from flcog.commands import completion
from flcog.commands.complaint import complain, guess
from flcog.commands.execution import execute
from flcog.core import early_processes
from flcog.core.child_processes import end_with_parent
from flcog.core.commands import Command, TrainerCommand
from flcog.core.output import open_standard_streams

ALL = (
    *(TrainerCommand(verb, f"flcog.trainer:FederatedTrainer.{verb}") for verb in ("fit", "validate", "test")),
    TrainerCommand("check", "flcog.commands.check:check"),
    TrainerCommand("partition", "flcog.commands.partition:partition", runs_model=False),
    TrainerCommand("bench", "flcog.commands.bench.command:bench"),
    Command("predict", "flcog.commands.predict:predict"),
    Command("export", "flcog.commands.export:export"),
    Command("report", "flcog.commands.report.command:report"),
    Command("compare", "flcog.commands.compare.command:compare"),
    Command("deploy", "flcog.deploy.command:deploy"),
    Command("server", "flcog.deploy.server:server"),
    Command("node", "flcog.deploy.node:node"),
    Command("methods", "flcog.commands.methods:methods"),
    Command("cite", "flcog.commands.cite:cite"),
    Command("new", "flcog.commands.new.command:new"),
    Command("configs", "flcog.commands.shipped_configs:configs"),
    *flcog.callbacks.COMMANDS,
)

SHARED_OUT = ("fit", "validate", "test", "bench")
"""Commands that several processes run together."""

COMMANDS: dict[str, Command] = {command.name: command for command in ALL}


def main(argv: list[str] | None = None) -> None:
    """Find the command and run it."""
    open_standard_streams()
    end_with_parent()
    words = sys.argv[1:] if argv is None else argv
    if completion.ASKED in os.environ:
        completion.complete(_parser)
    if words and words[0] in ("-h", "--help", "--version"):
        _parser().parse_args(words)
    try:
        command = _asked(words)
    except ValueError as error:
        complain(str(error))
        raise SystemExit(2) from None
    if argv is None and command.name in SHARED_OUT:
        early_processes.prepare(words, "flcog.commands.command_cli", "flcog.commands.cli:main")
    execute(command, words[1:], argv)


def _parser(words: Sequence[str] = ()) -> argparse.ArgumentParser:
    """Make the parser of the list of commands, with the options of the command that is being completed."""
    parser = argparse.ArgumentParser(
        prog="flcog",
        description="Federated learning for PyTorch Lightning.",
        epilog="flcog COMMAND --help lists a command's options.",
    )
    parser.add_argument("--version", action="version", version=f"flcog {flcog.__version__}", help="print the version and exit")
    listed = parser.add_subparsers(title="commands", metavar="COMMAND")
    for command in ALL:
        own = listed.add_parser(command.name, help=command.summary)
        if command.name in words[1:2]:
            completion.add_options(own, command, words)
    return parser


def _asked(words: Sequence[str]) -> Command:
    """Return the command, which is the first word."""
    listed = f"the commands are {', '.join(COMMANDS)}; flcog --help describes each"
    if words and words[0] in COMMANDS:
        return COMMANDS[words[0]]
    if words and not words[0].startswith("-"):
        raise ValueError(f"there is no command {words[0]!r}.{guess(words[0], COMMANDS)} ({listed})")
    late = next((COMMANDS[word] for word in words if word in COMMANDS), None)
    if late is not None:
        options = "-c FILE ..." if isinstance(late, TrainerCommand) else "..."
        raise ValueError(f"the command comes first, its options after it: flcog {late.name} {options}")
    raise ValueError(f"give a command, as in flcog fit -c configs/quickstart.yaml: {listed}")
