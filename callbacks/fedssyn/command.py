"""The command ``flcog synthesize``: make what Fedssyn's clients would send, write it as images, and stop."""

import shlex
import sys
from typing import Any

from flcog.callbacks.fedssyn.fedssyn import Fedssyn
from flcog.callbacks.fedssyn.shuffling import Exchange
from flcog.callbacks.fedssyn.synthesis_cache import export_images
from flcog.core.commands import TrainerCommand
from flcog.run.directory import short


def synthesize(trainer: Any, model: Any, datamodule: Any) -> None:
    """Make the synthetic images that Fedssyn's clients would send, and stop: look at them, delete some, then run fit."""
    trainer._set_up(model, datamodule, None, stage="synthesize")
    _write_images(trainer)


def _write_images(trainer: Any) -> None:
    """Write the synthetic images of a run that has been set up, and say where they are and what comes next.

    >>> import flcog
    >>> _write_images(flcog.FederatedTrainer(rounds=1, local_steps=1, logger=False))
    Traceback (most recent call last):
    ...
    ValueError: there is nothing to synthesize: add Fedssyn to trainer.callbacks, with share=shuffled or local
    """
    chosen = [method for method in trainer.methods if isinstance(method, Fedssyn)]
    exchange = trainer.federation.exchanged.get(chosen[0].name) if chosen else None
    if not isinstance(exchange, Exchange) or exchange.folder is None:
        raise ValueError("there is nothing to synthesize: add Fedssyn to trainer.callbacks, with share=shuffled or local")
    if not trainer.is_first:
        return
    images, left, total = export_images(exchange.folder, trainer.federation)
    print(f"{left:,} of {total:,} synthetic images are in {short(images)}, by client and class")
    print("Delete what must not be sent. What is left is shared by:")
    print(f"  {shlex.join(['flcog', *['fit' if word == 'synthesize' else word for word in sys.argv[1:]]])}")
    print(f"To begin anew, delete {short(exchange.folder)}.")


SYNTHESIZE = TrainerCommand("synthesize", synthesize)
