"""GenerationTime: an observer that times FedCOG's generation for several numbers of inputs."""

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from flcog.callbacks.fedcog.fedcog import FedCOG
from flcog.callbacks.fedcog.generated_images import fedcog_of, generate_as_client
from flcog.core.checks import all_at_least, at_least
from flcog.core.files import write_table
from flcog.hooks import Callback
from flcog.run.directory import RUN_REMEDY

if TYPE_CHECKING:
    from flcog.trainer import FederatedTrainer


class GenerationTime(Callback):
    """Measures, at the end of a run in which FedCOG acted, how long a client takes to generate different numbers of inputs.

    Prints a line for each and writes ``generation_time.csv`` into the run's directory, with columns ``num_samples`` and ``seconds``.
    Table 11 of FedCOG, https://arxiv.org/abs/2312.05966.

    Args:
        num_samples: the numbers of inputs.
        repeats: how often each is timed, >= 1; the fastest counts.

    Example:
        >>> GenerationTime(num_samples=(16, 256)).num_samples
        (16, 256)
    """

    def __init__(self, num_samples: Sequence[int] = (16, 32, 64, 128, 256, 512, 1024), repeats: int = 3) -> None:
        all_at_least(self, 1, num_samples=num_samples)
        at_least(self, 1, repeats=repeats)
        self.num_samples, self.repeats = tuple(num_samples), repeats

    def on_fit_start(self, trainer: "FederatedTrainer") -> None:
        fedcog_of(trainer, self)

    def on_fit_end(self, trainer: "FederatedTrainer") -> None:
        method = fedcog_of(trainer, self)
        if not trainer.is_first or trainer.run_dir is None or trainer.round <= method.start_round:
            return
        seconds = {count: min(self._time(trainer, method, count) for _ in range(self.repeats)) for count in self.num_samples}
        rows = [{"num_samples": count, "seconds": value} for count, value in seconds.items()]
        write_table(trainer.run_dir / "generation_time.csv", rows, remedy=RUN_REMEDY)
        for count, value in seconds.items():
            print(f"FedCOG generates {count:>5} inputs in {value:.3g} s", flush=True)

    @staticmethod
    def _time(trainer: "FederatedTrainer", method: FedCOG, count: int) -> float:
        began = time.perf_counter()
        # Reading a value waits until the accelerator has finished.
        float(generate_as_client(trainer, method, count).sum())
        return time.perf_counter() - began
