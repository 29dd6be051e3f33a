"""The command line: lists the subcommands of ``flcog``, and runs one.

Nothing here loads torch, which takes seconds. A list, a version or an error appears at once, and each command imports its own
modules.
"""

import argparse
import gc
import os
import sys
import time
from collections.abc import Sequence

import flcog
import flcog.callbacks
from flcog.commands.errors import shown_errors
from flcog.core import child_processes
from flcog.core.commands import Command, TrainerCommand
from flcog.core.output import discard
from flcog.core.text import guess

ALL = (
    *(TrainerCommand(verb, f"flcog.trainer:FederatedTrainer.{verb}") for verb in ("fit", "validate", "test")),
    TrainerCommand("check", "flcog.commands.check:check"),
    TrainerCommand("partition", "flcog.commands.check:partition", runs_model=False),
    TrainerCommand("bench", "flcog.commands.bench.command:bench"),
    Command("predict", "flcog.commands.of_a_run:predict"),
    Command("export", "flcog.commands.of_a_run:export"),
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

COMMANDS: dict[str, Command] = {command.name: command for command in ALL}

COMPLETION = "_ARGCOMPLETE"
"""A shell sets this environment variable to ask for completions."""

began: float | None = None
"""The time of the command, before it imports torch, by ``time.perf_counter``."""


def main(argv: list[str] | None = None) -> None:
    """Find the command and run it."""
    global began
    began = time.perf_counter()
    child_processes.end_with_parent()
    words = sys.argv[1:] if argv is None else argv
    if COMPLETION in os.environ:
        complete()
    if words and words[0] in ("-h", "--help", "--version"):
        _parser().parse_args(words)
    try:
        with shown_errors():
            command = _asked(words)
            gc.disable()  # collections while torch and Lightning are imported take half a second and free nothing
            run = command.run
            gc.enable()
            if isinstance(command, TrainerCommand):
                from flcog.commands.federated_cli import CommandCLI

                CommandCLI(argv, command)
            else:
                run(list(words[1:]))
            if sys.stdout is not None:  # the shell may have closed it (>&-)
                sys.stdout.flush()
    except BrokenPipeError:  # as | head closes it after ten lines
        discard(sys.stdout)
        raise SystemExit(1) from None
    except KeyboardInterrupt:
        raise SystemExit(130) from None  # a run's Checkpoint, or compare, has printed how to resume


def _parser() -> argparse.ArgumentParser:
    """Make the parser of the list of commands."""
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


def complete() -> None:
    """Let argcomplete complete the command's name, and jsonargparse the options of a command that reads configs."""
    line = os.environ["COMP_LINE"]
    command = COMMANDS.get((line.split()[1:2] or [""])[0])
    if isinstance(command, TrainerCommand) and f" {command.name} " in line:
        from flcog.commands.federated_cli import CommandCLI

        # argcomplete and jsonargparse cannot complete subcommands together, so the command's name is taken out of the line.
        os.environ["COMP_LINE"] = line.replace(f" {command.name}", "", 1)
        os.environ["COMP_POINT"] = str(int(os.environ["COMP_POINT"]) - len(command.name) - 1)
        CommandCLI()
    import argcomplete

    argcomplete.autocomplete(_parser())


def _asked(words: Sequence[str]) -> Command:
    """Return the command, which is the first word."""
    listed = f"the commands are {', '.join(COMMANDS)}; flcog --help describes each"
    if words and words[0] in COMMANDS:
        return COMMANDS[words[0]]
    if words and not words[0].startswith("-"):
        raise ValueError(f"there is no command {words[0]!r}.{guess(words[0], COMMANDS)} ({listed})")
    raise ValueError(f"the command comes first, as in flcog fit -c configs/quickstart.yaml: {listed}")
