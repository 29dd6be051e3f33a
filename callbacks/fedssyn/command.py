"""The command ``flcog synthesize``: generate the data that Fedssyn's clients would send, write them as images, and stop."""

import shlex
import sys
from typing import Any

from flcog.callbacks.fedssyn.fedssyn import Fedssyn
from flcog.callbacks.fedssyn.shuffling import SampleExchange
from flcog.callbacks.fedssyn.synthesis_cache import export_images
from flcog.core.files import short
from flcog.method import Run


def synthesize(trainer: Any, model: Any, datamodule: Any) -> None:
    """Generate the synthetic images that Fedssyn's clients would send, and stop: look at them, delete some, then run fit.

    >>> from flcog.callbacks import COMMANDS
    >>> "synthesize" in [command.name for command in COMMANDS]
    True
    """
    trainer.prepare(model, datamodule, keep_files=True)
    _write_images(trainer.run)


def _write_images(run: Run) -> None:
    """Write a prepared run's synthetic images, and print their folder and the next command."""
    chosen = [method for method in run.methods if isinstance(method, Fedssyn)]
    exchange = run.method_record(chosen[0].name).exchange if chosen else None
    if not isinstance(exchange, SampleExchange) or exchange.folder is None:
        raise ValueError("there is nothing to synthesize: add Fedssyn to trainer.callbacks, with share=shuffled or local")
    if not run.processes.is_first:
        return
    images, left, total = export_images(exchange.folder, run.federation)
    print(f"{left:,} of {total:,} synthetic images are in {short(images)}, by client and class")
    print("Delete the images that must not be sent. This command shares the others:")
    print(f"  {shlex.join(['flcog', *['fit' if word == 'synthesize' else word for word in sys.argv[1:]]])}")
    print(f"To start over, delete {short(exchange.folder)}.")
