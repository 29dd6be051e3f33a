"""ClientFairness: an observer of how unequal the clients' scores are (variance and Jain's index)."""

import re

from flcog.core.monitor import lower_is_better
from flcog.method import Callback, Run


def fairness(mean: float, std: float) -> tuple[float, float]:
    """The variance of clients' scores, and Jain's index (sum x)^2 / (K sum x^2): 1 if all are equal, 1/K if one has everything.

    >>> round(fairness(mean=1.0, std=3**0.5)[1], 9)  # of 4, 0, 0, 0
    0.25
    """
    variance = std**2
    return variance, mean**2 / (mean**2 + variance) if mean or std else 1.0


class ClientFairness(Callback):
    """Adds to each evaluation how unequal the clients' scores are, each client's taken on its own held-out part.

    Columns, for x_k the global model's accuracy at client k in percent (``personal`` for the clients' own models, where a method
    keeps them; ``val`` for the clients' validation parts; other tasks have their own score)::

        test/client_accuracy_variance    mean_k (x_k - mean x)^2               lower is fairer
        test/client_accuracy_jain        (sum_k x_k)^2 / (K sum_k x_k^2)       1 is fairest

    Needs ``data.client_test`` (or ``client_val``), for which the engine measures mean and deviation in any case: this costs nothing.
    Table 12 of FedDisco, https://arxiv.org/abs/2305.19229, holds the variance in percent squared, as here, after the fairness
    of Li et al., Fair Resource Allocation in Federated Learning, ICLR 2020, https://arxiv.org/abs/1905.10497. Errors, of
    regressions, keep their unit.

    Example:
        >>> metrics = {"test/client_accuracy_mean": 0.5, "test/client_accuracy_std": 0.1}
        >>> ClientFairness().on_evaluation_end(None, 1, metrics)
        >>> round(metrics["test/client_accuracy_variance"], 6)
        100.0
    """

    def on_fit_start(self, run: Run) -> None:
        federation = run.federation
        if federation.client_test is None and federation.client_val is None and not federation.reweighted_test:
            raise ValueError(
                "ClientFairness compares clients on parts of their own, and none are held out: set data.client_test=0.2"
            )
        if run.model.trains_itself:
            raise ValueError(
                "ClientFairness compares scores of a flcog.ClientModule's examples: use one, or remove ClientFairness"
            )
        if run.settings.eval_every == 0:
            raise ValueError(
                "ClientFairness looks at evaluations, and trainer.eval_every=0 makes none: set it to 1 or more, or remove ClientFairness"
            )

    def on_evaluation_end(self, run: Run, round: int, metrics: dict[str, float]) -> None:
        for name in [name for name in metrics if re.fullmatch(r"(val|test)/(client|personal)_\w+_std", name)]:
            score = name.removesuffix("_std")
            percent = 1 if lower_is_better(score) else 100
            variance, jain = fairness(percent * metrics[f"{score}_mean"], percent * metrics[name])
            metrics |= {f"{score}_variance": variance, f"{score}_jain": jain}
