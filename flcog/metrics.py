"""Evaluation metrics: torchmetrics collections for classification, multi-label data and regression, and figures of clients' scores.

The collections take raw outputs and targets, and combine the samples of all processes of a run, even if some processes had no samples.
"""

import math
from collections.abc import Callable, Iterable, Sequence

import torch
from torch import Tensor
from torchmetrics import Metric, MetricCollection
from torchmetrics.classification import MulticlassAccuracy
from torchmetrics.regression import MeanAbsoluteError, MeanSquaredError
from torchmetrics.utilities import dim_zero_cat

from flcog.core.checks import at_least, within
from flcog.core.monitor import OF_A_LOADER
from flcog.core.precision import float64_device, number_dtype, to_float64_device


def classification_metrics(num_classes: int) -> MetricCollection:
    """Make the metric ``accuracy``: the share of samples whose largest output is the output of their class."""
    at_least(None, 2, num_classes=num_classes, hint="for one yes/no output use multilabel_metrics(1)")
    # Checks of the arguments would copy every batch of targets from the device.
    return MetricCollection({"accuracy": MulticlassAccuracy(num_classes, average="micro", validate_args=False)})


def multilabel_metrics(num_labels: int, threshold: float = 0.5) -> MetricCollection:
    """Make the metrics of ``multilabel_scores`` for [B, num_labels] logits. A label is predicted above probability ``threshold``."""
    at_least(None, 1, num_labels=num_labels)
    within(None, "(0, 1)", threshold=threshold, hint="it is a probability")
    return MetricCollection([MultilabelScores(num_labels, threshold)])


def regression_metrics() -> MetricCollection:
    """Make the metrics of ``regression_scores``, for outputs [B] or [B, C]."""
    return MetricCollection([RegressionScores()])


def multilabel_scores(outputs: Tensor, targets: Tensor, threshold: float = 0.5) -> dict[str, Tensor]:
    """Compute precision, recall and F1 of thresholded logits, and the average precision of their ranking.

    ``C-P``, ``C-R``, ``C-F1`` and ``macro-AP`` are means over the labels. ``O-P``, ``O-R``, ``O-F1`` and ``micro-AP`` pool the
    decisions of all labels. A ratio 0 / 0 counts as 0, as in scikit-learn and FLAIR's own benchmark. Therefore a label without
    positives scores 0, and the four means cannot reach 1 on a test set that lacks labels.

    C-F1 is the mean of the labels' F1. FLAIR's benchmark (https://github.com/apple/ml-flair) reports the harmonic mean of C-P and
    C-R instead, which is never lower. FedCOG's Table 2 is below the harmonic mean in every row (FedAvg: 18.30, not 19.46), so
    it reports the mean of the labels' F1. We assume that FedCOG's "per-sample" scores are the overall scores (O-) of FLAIR and the
    multi-label literature.

    Args:
        outputs: logits, [N, num_labels].
        targets: 0 or 1, [N, num_labels].
        threshold: the probability above which a label is predicted.
    """
    predicted, positive = outputs > math.log(threshold / (1 - threshold)), targets > 0.5
    # By default torch would convert these counts to the run's precision, and bfloat16 has only three digits.
    hits, num_predicted, num_positive = (flags.sum(0).to(number_dtype()) for flags in (predicted & positive, predicted, positive))
    by_label = _precision_recall_f1(hits, num_predicted, num_positive)
    overall = _precision_recall_f1(hits.sum(), num_predicted.sum(), num_positive.sum())
    scores = {f"C-{name}": value.mean() for name, value in by_label.items()}
    scores |= {f"O-{name}": value for name, value in overall.items()}
    scores["macro-AP"] = torch.stack([average_precision(o, t) for o, t in zip(outputs.T, positive.T, strict=True)]).mean()
    scores["micro-AP"] = average_precision(outputs.flatten(), positive.flatten())
    return scores


def _precision_recall_f1(hits: Tensor, num_predicted: Tensor, num_positive: Tensor) -> dict[str, Tensor]:
    return {
        "P": hits / num_predicted.clamp(min=1),
        "R": hits / num_positive.clamp(min=1),
        "F1": 2 * hits / (num_predicted + num_positive).clamp(min=1),
    }


def average_precision(scores: Tensor, positive: Tensor) -> Tensor:
    """The mean precision at the scores of all positives; 0 without positives. Equal scores count as one threshold."""
    scores, order = scores.sort(descending=True)
    last_of_ties = torch.ones_like(positive)
    last_of_ties[:-1] = scores[1:] != scores[:-1]
    hits = positive[order].cumsum(0)[last_of_ties].to(number_dtype())
    precision = hits / (last_of_ties.nonzero().squeeze(1) + 1)
    gained = hits.diff(prepend=hits.new_zeros(1))
    return (gained * precision).sum() / hits[-1].clamp(min=1)


def regression_scores(outputs: Tensor, targets: Tensor) -> dict[str, Tensor]:
    """Compute ``mse``, ``mae`` and ``r2`` = 1 - mse / variance of the targets.

    For constant targets r2 is 1 if all outputs are exact, else 0. With several columns, [N, C], each column has its scores
    (``mse_0``, ``mse_1``, ...), and ``mse``, ``mae`` and ``r2`` are their means.
    """
    if targets.ndim == 2:
        by_column = [regression_scores(output, target) for output, target in zip(outputs.T, targets.T, strict=True)]
        means = {name: torch.stack([scores[name] for scores in by_column]).mean() for name in by_column[0]}
        return means | {f"{name}_{column}": value for column, scores in enumerate(by_column) for name, value in scores.items()}
    error = outputs - targets
    mse = error.square().mean()
    variance = (targets - targets.mean()).square().mean()
    r2 = torch.where(variance > 0, 1 - mse / variance, (mse == 0).to(mse))
    return {"mse": mse, "mae": error.abs().mean(), "r2": r2}


class _AllSamples(Metric):
    """Stores the outputs and targets of all samples, and scores them at once.

    Average precision needs every score, and a variance from running sums of squares is inaccurate for a large mean. An update
    appends to two lists. The values are stored as vectors, because a process without samples contributes an empty vector.
    """

    full_state_update = False
    outputs: list[Tensor] | Tensor
    targets: list[Tensor] | Tensor

    def __init__(self) -> None:
        super().__init__()
        self.add_state("outputs", [], dist_reduce_fx="cat")
        self.add_state("targets", [], dist_reduce_fx="cat")

    def _keep(self, outputs: Tensor, targets: Tensor) -> None:
        assert isinstance(self.outputs, list) and isinstance(self.targets, list)
        self.outputs.append(outputs.detach().flatten().float())
        self.targets.append(targets.detach().flatten().float())


class MultilabelScores(_AllSamples):
    """``multilabel_scores`` of all samples. Torchmetrics' own scores would mistake logits within [0, 1] for probabilities."""

    def __init__(self, num_labels: int, threshold: float = 0.5) -> None:
        super().__init__()
        self.num_labels = num_labels
        self.threshold = threshold

    def update(self, outputs: Tensor, targets: Tensor) -> None:
        if not outputs.shape == targets.shape == (len(outputs), self.num_labels):
            shapes = f"{tuple(outputs.shape)} and {tuple(targets.shape)}"
            raise ValueError(f"outputs and targets must both be [B, {self.num_labels}], got {shapes}: num_labels is the data's")
        self._keep(outputs, targets)

    def compute(self) -> dict[str, Tensor]:
        outputs, targets = dim_zero_cat(self.outputs), dim_zero_cat(self.targets)
        return multilabel_scores(outputs.view(-1, self.num_labels), targets.view(-1, self.num_labels), self.threshold)


class RegressionScores(_AllSamples):
    """``regression_scores`` of all samples."""

    columns: Tensor

    def __init__(self) -> None:
        super().__init__()
        # This is a state, because a process without samples gets the number of columns from other processes.
        self.add_state("columns", torch.ones((), dtype=torch.int64), dist_reduce_fx="max")

    def update(self, outputs: Tensor, targets: Tensor) -> None:
        if targets.ndim > 2 or outputs.numel() != targets.numel() or len(outputs) != len(targets):
            shapes = f"{tuple(outputs.shape)} and {tuple(targets.shape)}"
            raise ValueError(f"outputs and targets must hold the same number of values per sample, [B] or [B, C], got {shapes}")
        if len(targets):
            self.columns = torch.full_like(self.columns, targets[0].numel())
        self._keep(outputs, targets)

    def compute(self) -> dict[str, Tensor]:
        outputs, targets, columns = dim_zero_cat(self.outputs), dim_zero_cat(self.targets), int(self.columns)
        if columns > 1:
            outputs, targets = outputs.view(-1, columns), targets.view(-1, columns)
        return regression_scores(outputs, targets)


class SetFigures:
    """Adds up the loss and the metrics of a set, and of each loader if several provide the set.

    ``counts`` are the numbers of rows of each loader, of all processes.
    """

    def __init__(self, metrics: MetricCollection, counts: Sequence[int], device: torch.device) -> None:
        metrics.reset()
        several = len(counts) > 1
        self._counts = [sum(counts), *(counts if several else ())]
        self._metrics = [metrics, *(metrics.clone() for _ in counts if several)]
        self._losses = torch.zeros(len(self._counts), dtype=torch.float64, device=float64_device(device))

    def update(self, outputs: Tensor, targets: Tensor, losses: Tensor, loader: int) -> None:
        """Add a batch of a loader."""
        for part in (0, loader + 1)[: len(self._metrics)]:
            self._losses[part] += to_float64_device(losses).sum(dtype=torch.float64)
            self._metrics[part].update(outputs, targets)

    def compute(self, total: Callable[[Tensor], Tensor]) -> dict[str, float]:
        """The figures of the set, and of each loader."""
        found = dict[str, float]()
        for part, (loss, count, metrics) in enumerate(zip(total(self._losses), self._counts, self._metrics, strict=True)):
            if count:
                figures = {"loss": float(loss) / count}
                for name, value in metrics.compute().items():
                    by_class = enumerate(value.flatten().tolist()) if value.numel() > 1 else ()
                    figures |= {f"{name}_{number}": each for number, each in by_class} or {name: float(value)}
                found |= {f"{name}{OF_A_LOADER}{part - 1}" if part else name: value for name, value in figures.items()}
        return found


def pooled_figures(metrics: MetricCollection, figures: Iterable[str]) -> set[str]:
    """The figures that are no means over samples, such as r2, so that the figures of two sets do not tell that of their union.

    Args:
        metrics: that compute the figures.
        figures: their names and ``loss``.

    >>> sorted(pooled_figures(regression_metrics(), ["loss", "mse", "mse_0", "r2", "r2_0"]))
    ['r2', 'r2_0']
    """
    found = dict(metrics.items(keep_base=False, copy_state=False))
    means = {"loss"} | {name for name, metric in found.items() if _is_mean(metric)}
    if any(isinstance(metric, RegressionScores) for metric in found.values()):
        means |= {name for name in figures if name.partition("_")[0] in ("mse", "mae")}
    return set(figures) - means


def _is_mean(metric: Metric) -> bool:
    if isinstance(metric, MulticlassAccuracy):
        return metric.average == "micro"
    return isinstance(metric, MeanAbsoluteError) or (isinstance(metric, MeanSquaredError) and metric.squared)


def reweighted(scores: Tensor, counts: Tensor) -> Tensor:
    """The mean of scores on classes [C], weighted by a client's label counts; NaN if none of its classes was tested.

    >>> reweighted(torch.tensor([0.5, 1.0, torch.nan]), torch.tensor([3.0, 1.0, 9.0]))
    tensor(0.6250)
    """
    tested = counts.where(~scores.isnan(), 0)
    return (scores.nan_to_num() * tested).sum() / tested.sum()


def spread(scores: Tensor, name: str, lower_is_better: bool, sizes: Tensor | None = None) -> dict[str, float]:
    """The spread of a score over clients: mean, standard deviation, quantiles, mean of the worst tenth, and mean weighted by ``sizes``."""
    measured = ~scores.isnan()
    scores = scores[measured].double()
    if not len(scores):
        return {}
    ordered = scores.sort(descending=lower_is_better).values
    worst = ordered[: max(1, len(ordered) // 10)].mean()
    quantiles = {q: torch.quantile(scores, q / 100) for q in (10, 50, 90)}
    weighted = {} if sizes is None else {f"{name}_weighted": float(scores @ sizes[measured].double() / sizes[measured].sum())}
    return {
        f"{name}_mean": float(scores.mean()),
        f"{name}_std": float(scores.std(correction=0)),
        f"{name}_worst_decile": float(worst),
        **{f"{name}_q{q}": float(value) for q, value in quantiles.items()},
        **weighted,
    }
