"""A confusion matrix as a picture, which ``trainer.plot("confusion")`` and ``flcog report --confusion`` draw."""

from collections.abc import Sequence
from typing import Any

from torchmetrics.functional.classification import multiclass_confusion_matrix
from torchmetrics.utilities.plot import plot_confusion_matrix

from flcog.run.history_figure import HistoryFigure


def confusion_figure(predictions: Any, class_names: Sequence[str] | None = None) -> HistoryFigure:
    """For each class of the samples, the shares of the classes that the model predicts for them, in per cent."""
    known = predictions if isinstance(predictions, dict) else {}
    if not {"prediction", "target"} <= known.keys() or known["prediction"].is_floating_point() or known["prediction"].ndim > 1:
        raise ValueError(
            "a confusion matrix needs a flcog.Classifier, and a test set with one class for each sample: leave it out"
        )
    classes = known["probability"].shape[1]
    matrix = multiclass_confusion_matrix(known["prediction"], known["target"], classes, normalize="true")
    size = 1.5 + 0.42 * min(classes, 24)
    figure = HistoryFigure(figsize=(size, size), layout="constrained")
    names = list(class_names or map(str, range(classes)))
    plot_confusion_matrix((100 * matrix).round().int(), ax=figure.subplots(), add_text=classes <= 24, labels=names, cmap="Blues")
    return figure
