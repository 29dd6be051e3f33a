"""TrainingScores: an observer of the global model on the samples that the clients train on."""

from math import nan
from typing import Literal

import numpy as np

from flcog.core.checks import at_least
from flcog.core.monitor import Monitor, lower_is_better, main_metric
from flcog.method import Callback, Run


class TrainingScores(Callback):
    """Adds to evaluations how good the global model is on all clients' training samples, pooled and not augmented.

    Columns, for a classifier::

        training/loss, training/accuracy    of the global model (``train/loss`` is the clients' mean loss during local training)
        training/accuracy_at_best           of the model that is the best on the test set so far

    Other tasks have their own scores. FedWalk's Figure 2 shows the first; its Table 2 shows the last, because it reports the
    global model with the highest accuracy (https://arxiv.org/abs/2404.11888). Costs a pass over the training set.

    Args:
        every: evaluations between measurements, >= 1; the scores are also measured whenever the model is the best so far.
    """

    def __init__(self, every: int = 1) -> None:
        at_least(self, 1, every=every)
        self.every = every

    def on_fit_start(self, run: Run) -> None:
        Monitor.check(run.settings.eval_every, self)

    def on_evaluation_end(self, run: Run, round: int, metrics: dict[str, float]) -> None:
        name = main_metric(metrics)
        better = name is not None and _is_best(name, metrics[name], [row[name] for row in run.history if name in row])
        if better or round // run.settings.eval_every % self.every == 0:
            rows = np.sort(run.federation.partition.indices)
            # A module's own step: the one whose score compares models.
            step: Literal["val", "test"] = "val" if (name or "").startswith("val/") else "test"
            found = run.evaluator.on_set(run.evaluated_params(), run.buffers, run.federation.train, rows, step)
            metrics |= {f"training/{key}": value for key, value in found.items()}
        if name is not None:
            score = f"training/{name.partition('/')[2]}"
            kept = f"{score}_at_best"
            earlier = (row[kept] for row in reversed(run.history) if kept in row)
            # A private run withholds the earlier ones.
            metrics[kept] = metrics.get(score, nan) if better else next(earlier, nan)


def _is_best(name: str, value: float, earlier: list[float]) -> bool:
    return not earlier or (value < min(earlier) if lower_is_better(name) else value > max(earlier))
