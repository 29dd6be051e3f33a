"""Choose the metric that judges a run, and decide whether lower is better."""

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Literal

from flcog.core.text import figure, guess

OF_A_LOADER = "/dataloader_idx_"
"""Between the name of a metric and the index of its loader, if several loaders provide a set, as in Lightning."""

MAIN_SCORES = ("accuracy", "macro-AP", "mse", "acc", "loss")
"""Candidates for the main metric of an evaluation, in order of preference."""

Mode = Literal["max", "min"]
"""Whether larger or smaller values of a metric are better."""

SMALLER = """
loss losses lost error errors mse rmse nrmse msle rmsle mae mape smape wmape mase nll nlpd ce bce crossentropy logloss perplexity ppl bpc
bpb brier ece mce crps rankedprobability deviance distance hamming hausdorff editrate wer cer mer ter eer fpr fnr falsepositive
falsenegative fallout kl divergence disparity distortionindex drift spectralangle totalvariation bouldin fid kid lpips perceptual dists
andtexture regret cost risk penalty epsilon time seconds latency bytes rounds staleness
"""
SHARES = """
accuracy acc f1 fbeta precision recall sensitivity specificity auc auroc auprc ap map mrr ndcg hitrate exactmatch iou miou jaccard dice
"""
LARGER = """
dcg union kappa mcc matthews r2 explainedvariance corr correlation pearson spearman cosine likelihood preserved quality bleu rouge chrf psnr
ssim structural snr sdr signalnoise distortionratio dunn reward throughput
"""
BETTER: Mapping[str, Mode] = {
    **dict.fromkeys(SMALLER.split(), "min"),
    **dict.fromkeys([*SHARES.split(), *LARGER.split()], "max"),
}
"""Words, and pairs of words, that tell which values are better."""
LAST_WORD: Mapping[str, Mode] = {
    "jain": "max",
    **dict.fromkeys(("std", "variance", "deviation", "noise", "dissimilarity", "shift", "gap"), "min"),
}
"""Last words of the names of metrics that measure a spread or a gap over clients, classes or gradients."""


class Metric(str):
    """A metric's name with its mode, if somebody has stated it. Otherwise the words of the name tell the mode."""

    mode: Mode | None

    def __new__(cls, name: str, mode: Mode | None = None) -> "Metric":
        made = super().__new__(cls, name)
        made.mode = mode
        return made


def main_metric(metrics: Mapping[str, float], selecting: bool = False) -> str | None:
    """Return the main metric: accuracy, macro-AP or mse according to the task, otherwise a loss. None if nothing was evaluated.

    Where clients keep models of their own, it is the mean over these models, on the clients' parts; without a common set, the mean of the
    global model's scores there. Their test parts choose no model, and only their validation parts choose among models of their own.

    Where a module logs its figures for each of several loaders, those of the first loader count.

    The metric that chooses a model (``selecting``) is from the validation set if there is one, because the best of many test figures
    is too good. Other uses prefer the test set.
    """
    splits = ("val", "test") if selecting else ("test", "val")
    personal, shared = (
        [f"{split}/{of}_{score}_mean" for split in splits[: 1 if selecting else 2] for score in MAIN_SCORES]
        for of in ("personal", "client")
    )
    whole = [f"{split}/{score}{place}" for split in splits for place in ("", f"{OF_A_LOADER}0") for score in MAIN_SCORES]
    names = personal if selecting and any(map(is_personal, metrics)) else personal + whole + shared
    return next((name for name in names if name in metrics), None)


def main_of(rows: Sequence[Mapping[str, float]], selecting: bool = False) -> str | None:
    """The main metric of the last evaluation in the rows of rounds."""
    return next((name for row in reversed(rows) if (name := main_metric(row, selecting))), None)


def headline(metrics: Mapping[str, float], name: str) -> str:
    """The main metric's figure, with its spread over clients if it is a mean over them.

    >>> headline({f"test/personal_accuracy_{of}": 0.5 for of in ("mean", "std", "worst_decile")}, "test/personal_accuracy_mean")
    '0.5000 (worst tenth 0.5000, deviation 0.5000)'
    """
    if name.replace("_mean", "_worst_decile") not in metrics or not name.endswith("_mean"):
        return figure(metrics[name])
    worst, deviation = (figure(metrics[name.replace("_mean", ending)]) for ending in ("_worst_decile", "_std"))
    return f"{figure(metrics[name])} (worst tenth {worst}, deviation {deviation})"


def is_personal(name: str) -> bool:
    """Whether a metric measures the clients' own models."""
    return "/personal_" in name


def mode_of(metric: str) -> Mode | None:
    """The mode that somebody has stated (:class:`Metric`), or else the one that the last known word of the name tells, or None.

    >>> mode_of("test/class_accuracy_std"), mode_of("test/client_mae_jain"), mode_of("MulticlassCalibrationError")
    ('min', 'max', 'min')
    >>> mode_of("heterogeneity/shift"), mode_of("test/domain_shift_accuracy"), mode_of("neg_mean_squared_error"), mode_of("test/foo")
    ('min', 'max', 'max', None)
    """
    if isinstance(metric, Metric) and metric.mode is not None:
        return metric.mode
    words = words_of(metric)
    mode = {**BETTER, **LAST_WORD}.get(_telling(words))
    if mode and ("neg" in words or "negative log" in " ".join(words)):  # as scikit-learn names its scores
        return "max" if mode == "min" else "min"
    return mode


WORD = re.compile(r"[A-Z]+\d+|[A-Z]+(?=[A-Z][a-z])|[A-Z]?[a-z]+\d*|[A-Z]+|\d+")


def words_of(metric: str) -> list[str]:
    return [word.lower() for word in WORD.findall(metric)]


def _telling(words: Sequence[str]) -> str:
    """The last word or pair of words that tells which values are better; empty if there is none."""
    pairs = list(map("".join, zip(["", *words], words, strict=False)))
    if words and words[-1] in LAST_WORD and pairs[-1] not in BETTER:
        return words[-1]
    named = [name for pair, word in zip(pairs, words, strict=True) for name in (word.rstrip("0123456789"), word, pair)]
    return next((name for name in reversed(named) if name in BETTER), "")


def lower_is_better(metric: str) -> bool:
    """Whether smaller values are better. Of a metric about which nothing is known, larger ones are."""
    return mode_of(metric) == "min"


def is_share(metric: str, values: Iterable[float]) -> bool:
    """Whether a metric with these values is a share, or the spread of one. Errors are none, nor are scores such as R²."""
    score = metric.removesuffix("_std") if metric.endswith("_std") else metric  # which keeps a stated mode
    other = lower_is_better(score) or _telling(words_of(score)) in LARGER.split()
    return not other and not any(abs(value) > 1 for value in values)


class Monitor:
    """A metric that an observer watches at evaluations.

    None instead of a name means the main metric; None instead of a mode decides by the name.
    """

    def __init__(self, name: str | None, mode: Mode | None, selecting: bool = True) -> None:
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

    def watches(self, column: str) -> bool:
        """Whether this may be the metric's column, whose name may have underscores for slashes, as Lightning's callbacks find it."""
        return self._name in (None, column, column.replace("/", "_"))

    def find(self, metrics: dict[str, float]) -> str | None:
        """Return the figure's name, or None if this evaluation lacks it. A name that no evaluation has reported is an error."""
        if self._name is None:
            return main_metric(metrics, self._selecting)
        if name := next(filter(self.watches, metrics), None):
            self._seen = True
            return name
        if self._seen:  # such as train/loss after every client dropped out of a round
            return None
        known = [name for name in metrics if name != "round"]
        hint = guess(self._name, known)
        raise ValueError(f"monitor={self._name!r} is not measured in this run.{hint} Choose one of: {', '.join(known)}")

    def gain(self, name: str, value: float, over: float) -> float:
        """Return how much better ``value`` is than ``over``."""
        return over - value if lower_is_better(Metric(name, self._mode)) else value - over
