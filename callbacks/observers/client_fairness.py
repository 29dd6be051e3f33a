"""ClientFairness: an observer that measures how unequal the clients' scores are (variance and Jain's index)."""

import re

from flcog.core.monitor import Monitor, lower_is_better
from flcog.method import Callback, Run


class ClientFairness(Callback):
    """Adds to each evaluation how unequal the clients' scores are, each measured on the client's own held-out part.

    Columns, with x_k the global model's accuracy at client k in percent (``personal`` in place of ``client`` for methods that
    keep a model at each client; ``val`` for the clients' validation parts; other tasks have their own score)::

        test/client_accuracy_percent_variance    mean_k (x_k - mean x)^2           in squared percent; lower is fairer
        test/client_accuracy_jain                (sum_k x_k)^2 / (K sum_k x_k^2)   1 is fairest

    Needs ``data.client_test`` (or ``client_val``) and a ``flcog.ClientModule``. The engine then always measures the scores, which
    ``trainer.clients`` shows, so this costs nothing. Table 12 of FedDisco, https://arxiv.org/abs/2305.19229, has this variance,
    after the definition of fairness in Li et al., Fair Resource Allocation in Federated Learning, ICLR 2020,
    https://arxiv.org/abs/1905.10497. The errors of a regression keep their unit, and the column is ``test/client_mae_variance``.

    Example:
        >>> metrics = {"test/client_accuracy_mean": 0.5, "test/client_accuracy_std": 0.1}
        >>> ClientFairness().on_evaluation_end(None, 1, metrics)
        >>> round(metrics["test/client_accuracy_percent_variance"], 6)
        100.0
    """

    def on_fit_start(self, run: Run) -> None:
        federation = run.federation
        if federation.client_test is None and federation.client_val is None and not federation.reweighted_test:
            raise ValueError("ClientFairness compares clients on their own held-out parts: set data.client_test=0.2")
        Monitor.check(run.settings.eval_every, self)

    def on_evaluation_end(self, run: Run, round: int, metrics: dict[str, float]) -> None:
        for name in [name for name in metrics if re.fullmatch(r"(val|test)/(client|personal)_\w+_std", name)]:
            score = name.removesuffix("_std")
            percent, unit = (1, "") if lower_is_better(score) else (100, "_percent")
            mean, std = percent * metrics[f"{score}_mean"], percent * metrics[name]
            variance = std**2
            jain = mean**2 / (mean**2 + variance) if mean or std else 1.0
            metrics |= {f"{score}{unit}_variance": variance, f"{score}_jain": jain}
