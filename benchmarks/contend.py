"""Trains rounds when asked to: ``python contend.py NAME FOLDER`` runs the contender in NAME.py on the job in FOLDER.

A request is a line of JSON on the standard input: the round's number, its clients, and where to keep the model, if anywhere. An answer
is a line on the standard output: ``ready`` once, with the training program's name; then ``seconds`` for each round; or ``missing`` or
``error``, with the reason. The end of the input ends the program.
"""

import importlib
import json
import os
import sys
import time
import traceback
from collections.abc import Callable
from typing import Any, TextIO


class Turns:
    """The contender's side of the conversation.

    Args:
        requests: where they come from.
        answers: where they go.
    """

    def __init__(self, requests: TextIO, answers: TextIO) -> None:
        self._requests, self._answers = requests, answers
        self._keep: str | None = None
        self._began = 0.0

    def say(self, **answer: Any) -> None:
        self._answers.write(json.dumps(answer) + "\n")
        self._answers.flush()

    def next(self) -> tuple[int, list[int]] | None:
        """The number and the clients of the round to train now, which is timed from here on; None if there is no further one."""
        line = self._requests.readline()
        if not line:
            return None
        request = json.loads(line)
        self._keep, self._began = request["keep"], time.perf_counter()
        return request["round"], request["clients"]

    def done(self, model: Callable[[], dict[str, Any]]) -> None:
        """Say how long the round took.

        Args:
            model: the program's state after the round, asked for if it is to be kept.
        """
        import torch

        if torch.cuda.is_initialized():
            torch.cuda.synchronize()
        elif torch.backends.mps.is_available():
            torch.mps.synchronize()
        seconds = time.perf_counter() - self._began
        if self._keep is not None:
            torch.save(model(), self._keep)
        self.say(seconds=seconds)


def main(name: str, folder: str) -> None:
    # Send frameworks' own output to the error stream, which the bench reads when a contender dies.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    turns = Turns(sys.stdin, answers)
    try:
        contender = importlib.import_module(name)
    except ImportError as error:
        turns.say(missing=str(error))
        return
    try:
        contender.run(turns, folder)
    except Exception as error:
        traceback.print_exc()
        turns.say(error=f"{type(error).__name__}: {error}")


if __name__ == "__main__":
    main(*sys.argv[1:])
