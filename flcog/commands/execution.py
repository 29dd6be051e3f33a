"""Run a command of ``flcog``, and show a user's mistake in one line and other errors with a traceback."""

import os
import select
import sys
import time
from collections.abc import Sequence

from flcog.commands.refusals import mistakes_in_one_line
from flcog.core.commands import Command, TrainerCommand

began: float | None = None
"""The time of the command, before it imports torch, by ``time.perf_counter``."""


def execute(command: Command, arguments: Sequence[str], argv: list[str] | None) -> None:
    """Run a command.

    Args:
        command: the command.
        arguments: the words after its name.
        argv: the argument of ``main``. LightningCLI warns if arguments are given twice.
    """
    global began
    began = time.perf_counter()
    try:
        with mistakes_in_one_line():
            try:
                _run(command, arguments, argv)
                if sys.stdout is not None:  # the shell may have closed it (>&-)
                    sys.stdout.flush()
            except BrokenPipeError:
                if _nobody_reads():
                    raise SystemExit(1) from None
                raise
    except KeyboardInterrupt:
        raise SystemExit(130) from None  # a run's Checkpoint, or compare, has printed how to resume


def _run(command: Command, arguments: Sequence[str], argv: list[str] | None) -> None:
    run = command.run
    if "torch" not in sys.modules:  # a list or a page, which needs no other processes
        run(list(arguments))
        return
    from flcog.core import lost_processes

    with lost_processes.fails_for_all():
        if isinstance(command, TrainerCommand):
            from flcog.commands.command_cli import CommandCLI

            CommandCLI(argv, command)
        else:
            run(list(arguments))


def _nobody_reads() -> bool:
    """Return whether the output goes into a closed pipe, as ``| head`` closes it after ten lines."""
    poll = select.poll()
    poll.register(sys.stdout)
    closed = any(event & select.POLLERR for _, event in poll.poll(0))
    if closed:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # Python flushes once more as it ends
    return closed
