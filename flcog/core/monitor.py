"""Choose the metric that judges a run, and decide whether lower is better."""

import difflib
import re
from collections.abc import Callable, Mapping
from typing import Any, Literal, TypeVar

Number = TypeVar("Number", int, float)

MAIN_SCORES = ("accuracy", "macro-AP", "mse", "acc", "loss")
"""Candidates for the main metric of an evaluation, in order of preference."""

LOWER_IS_BETTER = {"loss", "mse", "mae", "rmse", "error", "perplexity", "distance"}
LAST_WORD = {"std": True, "variance": True, "jain": False, "noise": True, "dissimilarity": True, "shift": True}
"""Last words of the names of metrics that measure a spread over clients, classes or gradients, and whether lower is better."""


def main_metric(metrics: Mapping[str, float], selecting: bool = False) -> str | None:
    """Return the main metric: accuracy, macro-AP or mse according to the task, otherwise a loss. None if nothing was evaluated.

    Args:
        metrics: an evaluation's figures.
        selecting: whether the metric will choose a model. This uses the validation set if there is one, because the best of many
            test figures is too good. Other uses prefer the test set.
    """
    for split in ("val", "test") if selecting else ("test", "val"):
        for score in MAIN_SCORES:
            if f"{split}/{score}" in metrics:
                return f"{split}/{score}"
    return None


def lower_is_better(name: str) -> bool:
    """Whether a metric of this name is an error or a spread, such as ``test/mse`` and ``test/client_accuracy_variance``.

    >>> lower_is_better("test/class_accuracy_std"), lower_is_better("test/client_mae_jain")
    (True, False)
    >>> lower_is_better("heterogeneity/shift"), lower_is_better("test/domain_shift_accuracy")
    (True, False)
    """
    words = re.split(r"[/_\-]", name.lower())
    return LAST_WORD.get(words[-1], not LOWER_IS_BETTER.isdisjoint(words))


class Monitor:
    """A metric that an observer watches at evaluations.

    Args:
        name: the figure's column in ``metrics.csv``. None means the main metric.
        mode: whether larger (max) or smaller (min) is better. None decides by the name.
        selecting: whether it chooses a model (see :func:`main_metric`).
    """

    def __init__(self, name: str | None, mode: Literal["max", "min"] | None, selecting: bool = True) -> None:
        if mode not in ("max", "min", None):
            raise ValueError(f"mode must be max or min; got {mode!r}")
        self._name, self._mode, self._selecting, self._seen = name, mode, selecting, False

    @staticmethod
    def check(eval_every: int, observer: object) -> None:
        """Refuse a run that never evaluates."""
        if eval_every == 0:
            raise ValueError(
                f"{type(observer).__name__} needs evaluations, but trainer.eval_every=0: set it to 1 or more, "
                f"or remove {type(observer).__name__}"
            )

    def find(self, metrics: dict[str, float]) -> str | None:
        """Return the figure's name, or None if this evaluation lacks it. A name that no evaluation has reported is an error."""
        if self._name is None:
            return main_metric(metrics, self._selecting)
        if self._name in metrics:
            self._seen = True
            return self._name
        if self._seen:  # such as train/loss after every client dropped out of a round
            return None
        known = [name for name in metrics if name != "round"]
        close = difflib.get_close_matches(self._name, known, n=1)
        hint = f"; did you mean {close[0]!r}?" if close else "."
        raise ValueError(f"monitor={self._name!r} is not measured in this run{hint} Choose one of: {', '.join(known)}")

    def gain(self, name: str, value: float, over: float) -> float:
        """Return how much better ``value`` is than ``over``."""
        lower = lower_is_better(name) if self._mode is None else self._mode == "min"
        return over - value if lower else value - over


def or_none(kind: Callable[[Any], Number], value: Any) -> Number | None:
    """Convert a stored figure to a number, or None if there is none yet.

    Raises an error for other values, as from a damaged file.

    >>> or_none(float, 1), or_none(float, None)
    (1.0, None)
    """
    return None if value is None else kind(value)
