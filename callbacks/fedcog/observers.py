"""GeneratedImages and GenerationTime: observers of the inputs that FedCOG's clients generate."""

import dataclasses
import time
from collections.abc import Sequence

import torch
from torch import Tensor

from flcog.callbacks.fedcog.fedcog import FedCOG, make_inputs
from flcog.callbacks.parts.image_grid import image_grid
from flcog.core.checks import all_at_least, at_least
from flcog.core.files import RUN_REMEDY, write_table
from flcog.core.randomness import make_rng
from flcog.core.types import Slot
from flcog.data import Federation
from flcog.functional.apply import Apply
from flcog.method import Callback, ClientView, Run, method_of


class GeneratedImages(Callback):
    """Logs a picture of generated images as ``generated_images``: a column for each class, a row for each number of steps.

    The lowest-numbered client that has a last local model generates them, as it would in its next round. All rows start from the
    same noise. Figure 5 of FedCOG, https://arxiv.org/abs/2312.05966.

    Args:
        steps: numbers of generation steps, one row for each.
        every_n_rounds: rounds between pictures, counted from FedCOG's first round; its last round always has one.
        max_classes: largest number of columns, >= 1.

    Example:
        >>> GeneratedImages(steps=(0, 100, 500), every_n_rounds=5).steps
        (0, 100, 500)
    """

    def __init__(self, steps: Sequence[int] = (0, 100, 200, 500, 1000), every_n_rounds: int = 10, max_classes: int = 10) -> None:
        all_at_least(self, 0, steps=steps)
        at_least(self, 1, every_n_rounds=every_n_rounds, max_classes=max_classes)
        self.steps, self.every_n_rounds, self.max_classes = tuple(steps), every_n_rounds, max_classes

    def on_fit_start(self, run: Run) -> None:
        fedcog_of(run, self)

    def on_round_end(self, run: Run, round: int, metrics: dict[str, float]) -> None:
        method = fedcog_of(run, self)
        last = round in (run.settings.rounds, method.stop_round) or run.should_stop
        acted = round - method.start_round
        if run.processes.is_first and acted > 0 and method.active(round - 1) and (last or acted % self.every_n_rounds == 0):
            classes = torch.arange(min(self.max_classes, run.federation.num_classes))
            rows = [generate_as_client(run, dataclasses.replace(method, steps=n), len(classes), classes) for n in self.steps]
            names = run.federation.class_names or tuple(map(str, classes.tolist()))
            pixels = [to_pixels(run.federation, row) for row in rows]
            figure = image_grid(pixels, [f"{steps} steps" for steps in self.steps], names)
            run.trackers.log_figure("generated_images", figure, round)


def fedcog_of(run: Run, observer: Callback) -> FedCOG:
    """The run's FedCOG, which ``observer`` needs."""
    method, name = method_of(run.methods, FedCOG), type(observer).__name__
    if method is None:
        raise ValueError(f"{name} shows inputs that FedCOG generates: add FedCOG to the callbacks, or remove {name}")
    return method


def generate_as_client(run: Run, method: FedCOG, num_samples: int, classes: Tensor | None = None) -> Tensor:
    """The inputs that a client would generate from the present global model and its own last one, for these labels or its choice.

    The client is the lowest-numbered one with a local model in this process.
    """
    device = run.processes.device
    client, kept = next(run.method_record(method.name).clients, (0, None))
    view = ClientView.of(run.federation, client, method.start_round)
    # A FedCOG that does not distil (lambda_kd 0) generates nothing; the picture shows the inputs that it would generate if it
    # did.
    method = dataclasses.replace(method, num_samples=num_samples, lambda_kd=1.0)
    draws: Slot = method.draw(make_rng(run.settings.seed, "generated images"), view)
    if classes is not None:
        draws["labels"] = classes if view.task == "classification" else torch.eye(view.num_classes)[classes]
    draws = torch.utils._pytree.tree_map(lambda tensor: tensor.to(device), draws)
    apply = Apply(run.model, run.buffers)
    last = (kept["params"], kept["buffers"]) if kept else None
    return make_inputs(method, apply, draws, (run.params, run.buffers), last)


def to_pixels(federation: Federation, inputs: Tensor) -> Tensor:
    """Model inputs [N, C, H, W] as colours in [0, 1], [N, H, W, C]: the inverse of the data's preprocessing."""
    stored = torch.as_tensor(federation.train.inputs[:1])
    white = torch.full_like(stored, 1 if stored.is_floating_point() else 255)
    low, high = (federation.preprocess(image).cpu() for image in (torch.zeros_like(white), white))
    return ((inputs.cpu() - low) / (high - low)).clamp(0, 1).permute(0, 2, 3, 1)


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
