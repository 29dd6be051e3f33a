"""FedDisco's Figure 2: the relation of a client's accuracy to its size and labels. The paper trains ten epochs on CIFAR-10:

    python studies/feddisco_exploration.py -c cifar10 --trainer.local_steps null --trainer.local_epochs 10 --data.partitioner \\
        flcog.datamodules.NIIDBench --data.partitioner.beta 0.5
"""

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
from matplotlib.figure import Figure

from flcog.callbacks.feddisco import discrepancy
from flcog.commands.federated_cli import CommandCLI
from flcog.core.checks import at_least
from flcog.core.commands import TrainerCommand
from flcog.core.files import make_folder, write_figure, write_table
from flcog.core.text import markdown
from flcog.core.types import Params
from flcog.method import Method, Run

REMEDY = "free space or choose another --out"
SHARES = tuple(step / 10 for step in range(11))
"""The weights r of the better model of a pair."""


@dataclass(frozen=True)
class LocalModel:
    """A client's model after its first round of training.

    Args:
        client: its number.
        size: its share of the round's samples, n_k.
        discrepancy: the l2 distance of its labels' distribution from the uniform one.
        accuracy: accuracy on the global test set, in percent.
        params, buffers: parameters and buffers of the model.
    """

    client: int
    size: float
    discrepancy: float
    accuracy: float
    params: Params
    buffers: Params


@dataclass(frozen=True)
class Mixture:
    """Two clients of similar size: the accuracy, in percent, of their models' mean with weight r for the better model, by r."""

    worse: LocalModel
    better: LocalModel
    accuracies: tuple[float, ...]

    @property
    def best(self) -> int:
        """The index of the highest accuracy."""
        return int(np.argmax(self.accuracies))


class _SingleUploads(Method):
    """Lets the command see every client's own model."""

    individual_uploads = True


def explore(trainer: Any, model: Any, datamodule: Any, trials: int = 3, out: str = "feddisco-exploration") -> None:
    """Train every client once, and compare the client's accuracies by size and by labels: FedDisco's Figure 2.

    Lists each client's accuracy on the test set with its size and its labels' discrepancy (c and d), and averages pairs of
    clients of similar size with all weights (b).

    Args:
        trials: pairs of clients, >= 1.
        out: the folder for clients.csv, mixtures.csv and figure.png.
    """
    at_least(None, 1, trials=trials)
    trainer.methods.append(_SingleUploads())
    trainer.prepare(model, datamodule)
    run = trainer.run
    if run.federation.task != "classification" or run.federation.test is None:
        raise ValueError("this study needs classes and a test set: give a config of a classification task with both")
    uploads = sorted(trainer.collect()[0].individual["_SingleUploads"], key=lambda upload: upload.client)
    with trainer.settings.in_force():
        models = _local_models(run, uploads)
        pairs = similar_pairs([model.size for model in models], trials)
        mixed = [_mix(run, *sorted((models[one], models[other]), key=lambda model: model.accuracy)) for one, other in pairs]
    if run.processes.is_first:
        _write(models, mixed, Path(out))
        _print(models, mixed)


def similar_pairs(sizes: Sequence[float], count: int) -> list[tuple[int, int]]:
    """``count`` pairs of different positions with similar sizes, the most similar pair first.

    >>> similar_pairs([0.1, 0.4, 0.11, 0.38, 0.01], 3)
    [(0, 2), (3, 1)]
    """
    order = sorted(range(len(sizes)), key=lambda place: sizes[place])
    neighbours = sorted(pairwise(order), key=lambda pair: sizes[pair[1]] - sizes[pair[0]])
    chosen: list[tuple[int, int]] = []
    for pair in neighbours:
        if len(chosen) < count and not {*pair} & {place for other in chosen for place in other}:
            chosen.append(pair)
    return chosen


def _local_models(run: Run, uploads: Sequence[Any]) -> list[LocalModel]:
    counts = [run.federation.label_counts(upload.client) for upload in uploads]
    total, uniform = sum(float(count.sum()) for count in counts), torch.ones(run.federation.num_classes)
    models = []
    for upload, count in zip(uploads, counts, strict=True):
        params = {name: value + upload.delta[name] for name, value in run.params.items()}
        buffers = run.buffers | upload.buffers
        distance = discrepancy(count, uniform, "l2")
        models.append(
            LocalModel(upload.client, float(count.sum()) / total, distance, _accuracy(run, params, buffers), params, buffers)
        )
    return models


def _accuracy(run: Run, params: Params, buffers: Params) -> float:
    assert run.federation.test is not None
    return 100 * run.evaluator.on_set(params, buffers, run.federation.test)["accuracy"]


def _mix(run: Run, worse: LocalModel, better: LocalModel) -> Mixture:
    def mean(ours: Params, theirs: Params, r: float) -> Params:
        # Whole numbers, such as BatchNorm's count of batches, stay ``ours``.
        return {name: torch.lerp(value, theirs[name], r) if value.is_floating_point() else value for name, value in ours.items()}

    accuracies = [_accuracy(run, mean(worse.params, better.params, r), mean(worse.buffers, better.buffers, r)) for r in SHARES]
    return Mixture(worse, better, tuple(accuracies))


def _write(models: Sequence[LocalModel], trials: Sequence[Mixture], out: Path) -> None:
    make_folder(out)
    clients = [{name: getattr(model, name) for name in ("client", "size", "discrepancy", "accuracy")} for model in models]
    write_table(out / "clients.csv", clients, remedy=REMEDY)
    mixtures = [
        {"worse": trial.worse.client, "better": trial.better.client, "r": r, "accuracy": accuracy}
        for trial in trials
        for r, accuracy in zip(SHARES, trial.accuracies, strict=True)
    ]
    write_table(out / "mixtures.csv", mixtures, ["worse", "better", "r", "accuracy"], remedy=REMEDY)
    write_figure(out / "figure.png", _figure(models, trials), remedy=REMEDY)
    print(f"{out / 'clients.csv'}, {out / 'mixtures.csv'}, {out / 'figure.png'}\n")


def _print(models: Sequence[LocalModel], trials: Sequence[Mixture]) -> None:
    rows = [
        [model.client, f"{model.size:.4f}", f"{model.discrepancy:.4f}", f"{model.accuracy:.2f}"]
        for model in sorted(models, key=lambda model: -model.accuracy)
    ]
    print(markdown(["client", "size", "discrepancy", "accuracy in percent"], rows))
    accuracies = [model.accuracy for model in models]
    for what in ("size", "discrepancy"):
        print(f"correlation of accuracy and {what}: {_correlation(accuracies, [getattr(model, what) for model in models])}")
    for trial in trials:
        best, half = trial.best, SHARES.index(0.5)
        print(
            f"clients {trial.worse.client} and {trial.better.client}: best with r = {SHARES[best]:g} of the better model, "
            f"{trial.accuracies[best]:.2f} %; {trial.accuracies[half]:.2f} % with r = 0.5"
        )


def _correlation(one: Sequence[float], other: Sequence[float]) -> str:
    if np.ptp(one) == 0 or np.ptp(other) == 0:
        return "undefined, because all clients have the same value"
    return f"{np.corrcoef(one, other)[0, 1]:.2f}"


def _figure(models: Sequence[LocalModel], trials: Sequence[Mixture]) -> Figure:
    figure = Figure(figsize=(12, 3.4), layout="constrained")
    mixtures, sizes, distances = figure.subplots(1, 3)
    for trial in trials:
        (line,) = mixtures.plot(
            SHARES, trial.accuracies, label=f"clients {trial.worse.client}, {trial.better.client}", linewidth=1.2
        )
        mixtures.plot(SHARES[trial.best], trial.accuracies[trial.best], "*", color=line.get_color(), markersize=11)
    mixtures.set(xlabel="weight r of the better model", ylabel="test accuracy in percent")
    if trials:
        mixtures.legend(frameon=False, fontsize=8)
    for axes, what in ((sizes, "size"), (distances, "discrepancy")):
        axes.plot([getattr(model, what) for model in models], [model.accuracy for model in models], "o", color="#1f5f99")
        axes.set(xlabel=f"{what} of the client's data")
    for axes in figure.axes:
        axes.grid(color="#e6e6e6", linewidth=0.5)
        axes.spines[["top", "right"]].set_visible(False)
    return figure


if __name__ == "__main__":
    CommandCLI(["explore", *sys.argv[1:]], TrainerCommand("explore", "feddisco_exploration:explore"))
