"""GenerationTime: an observer that times FedCOG's generation for several numbers of inputs."""

import time
from collections.abc import Sequence

from flcog.callbacks.fedcog.fedcog import FedCOG
from flcog.callbacks.fedcog.generated_images import fedcog_of, generate_as_client
from flcog.core.checks import all_at_least, at_least
from flcog.core.files import RUN_REMEDY, write_table
from flcog.method import Callback, Run


class GenerationTime(Callback):
    """Measures, at the end of a run with FedCOG, how long a client takes to generate different numbers of inputs.

    Prints a line for each number and writes ``generation_time.csv`` into the run's directory, with columns ``num_samples`` and
    ``seconds``. Table 11 of FedCOG, https://arxiv.org/abs/2312.05966.

    Args:
        num_samples: the numbers of inputs.
        repeats: measurements of each number, >= 1; the fastest counts.

    Example:
        >>> GenerationTime(num_samples=(16, 256)).num_samples
        (16, 256)
    """

    def __init__(self, num_samples: Sequence[int] = (16, 32, 64, 128, 256, 512, 1024), repeats: int = 3) -> None:
        all_at_least(self, 1, num_samples=num_samples)
        at_least(self, 1, repeats=repeats)
        self.num_samples, self.repeats = tuple(num_samples), repeats

    def on_fit_start(self, run: Run) -> None:
        fedcog_of(run, self)

    def on_fit_end(self, run: Run) -> None:
        method = fedcog_of(run, self)
        if not run.processes.is_first or run.directory is None or run.round <= method.start_round:
            return
        seconds = {count: min(self._time(run, method, count) for _ in range(self.repeats)) for count in self.num_samples}
        rows = [{"num_samples": count, "seconds": value} for count, value in seconds.items()]
        write_table(run.directory / "generation_time.csv", rows, remedy=RUN_REMEDY)
        for count, value in seconds.items():
            print(f"FedCOG generates {count:>5} inputs in {value:.3g} s", flush=True)

    @staticmethod
    def _time(run: Run, method: FedCOG, count: int) -> float:
        began = time.perf_counter()
        # Reading a value waits until the accelerator has finished.
        float(generate_as_client(run, method, count).sum())
        return time.perf_counter() - began
