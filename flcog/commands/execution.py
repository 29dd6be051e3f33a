"""Runs a command of ``flcog``: a mistake of the user's is one line, anything else a traceback."""

from collections.abc import Sequence

from flcog.commands.complaint import complain
from flcog.commands.lightning_cli import FederatedCLI
from flcog.commands.refusals import refusal
from flcog.core import lost_processes
from flcog.core.commands import Command, TrainerCommand


def execute(command: Command, arguments: Sequence[str], argv: list[str] | None) -> None:
    """Run a command.

    Args:
        command: which.
        arguments: the words after its name.
        argv: what ``main`` was given, for LightningCLI warns of arguments that are given twice.
    """
    try:
        with lost_processes.fails_for_all():
            if isinstance(command, TrainerCommand):
                FederatedCLI(argv, command)
            else:
                command.run(list(arguments))
    except Exception as error:
        reason = refusal(error)
        if reason is None:
            raise
        complain(reason)
        raise SystemExit(2) from None
    except KeyboardInterrupt:
        raise SystemExit(130) from None  # a run's Checkpoint, or compare, has said how to go on
