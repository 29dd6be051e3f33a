"""FedDisco: aggregation weights from sample counts and from how skewed each client's labels are."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import torch
from torch import Generator, Tensor

from flcog.callbacks.feddisco.secure_sum import masked, unmasked_sum
from flcog.core.checks import at_least, one_of
from flcog.core.types import Params
from flcog.data import Exchange, Federation
from flcog.label_statistics import label_table
from flcog.method import ClientView, Cohort, FirstContact, Method

METRICS = ("kl", "l1", "l2", "cosine")


def discrepancy(counts: Tensor, target: Tensor, metric: str = "kl") -> float:
    """How far a client's label counts are from the target's shares; without any label, as far as one label alone can be.

    >>> discrepancy(torch.tensor([10.0, 0.0]), torch.tensor([0.5, 0.5]), "l1")
    1.0
    """
    if counts.sum() == 0 < target.sum():
        # A multi-label client may have no label: it counts as one whose only label is the target's rarest, the largest discrepancy.
        # Under KL the rarest that somebody has, as the divergence would else be infinite.
        rarest = (target.where(target > 0, torch.inf) if metric == "kl" else target).argmin()
        counts = torch.nn.functional.one_hot(rarest, len(target))
    # The clamp avoids 0 / 0 where nobody has a label.
    shares, target = (value / value.sum().clamp(min=1e-30) for value in (counts.double(), target.double()))
    if metric == "kl":
        return float((torch.xlogy(shares, shares) - torch.xlogy(shares, target)).sum())
    if metric == "cosine":
        return 1 - float(torch.cosine_similarity(shares, target, dim=0))
    return float(torch.linalg.vector_norm(shares - target, ord=1 if metric == "l1" else 2))


@dataclass(frozen=True, kw_only=True)
class LabelSum(Exchange):
    """What the server learns of the clients' labels: the counts of all clients together."""

    label_counts: Tensor


@dataclass(frozen=True)
class FedDisco(Method):
    """Replaces the aggregation weights: a client counts for its share of the samples, less for a skewed distribution of labels.

    With n_k the client's share of the cohort's samples, D_k its distribution of labels, T the target and e a distance::

        p_k = relu(n_k - a d_k + b) / sum_m relu(n_m - a d_m + b),   d_k = e(D_k, T)

    The divergence KL(D_k || T) is divided by its sum over the cohort, as in the authors' code though not in the text: raw, it
    dwarfs n_k and leaves skewed clients nothing. Each client sends the one number d_k once, when first sampled: how skewed it is,
    not towards what. If no weight is positive, those from before are kept. Regression counts bins of the target, whose edges are
    quantiles over all clients' targets, which no exchange provides. Multi-label data counts labels, and a client without any is
    as far from T as one label alone can be. List it after methods that set weights of their own (FedDyn), whose place it takes.
    ``flcog feddisco-bound`` shows how near such weights come to the least of the bound that they are derived from (sections 4 and
    7.3).

    Ye et al., FedDisco: Federated Learning with Discrepancy-Aware Collaboration, ICML 2023, https://arxiv.org/abs/2305.19229.

    Args:
        a: what a discrepancy costs, >= 0.
        b: added to all weights, >= 0; with a = 0 too it is FedAvg.
        metric: the distance: ``kl``, ``l1``, ``l2`` or ``cosine`` (1 - cos).
        target: ``uniform``, shares of the classes (the test set's, if that is skewed), or ``global``: the distribution of all
            clients' labels together, of which the server learns only the sum by one secure aggregation before round 1 (A.3;
            list FedDisco after methods that change the data, such as Fedssyn).

    Example:
        >>> FedDisco(metric="l2", target=[0.9, 0.1]).a
        0.5
    """

    a: float = 0.5
    b: float = 0.1
    metric: Literal["kl", "l1", "l2", "cosine"] = "kl"
    target: Literal["uniform", "global"] | list[float] = "uniform"

    def __post_init__(self) -> None:
        super().__post_init__()
        at_least(self, 0, "a", "b")
        one_of(self, METRICS, "metric")
        if isinstance(self.target, str):
            if self.target not in ("uniform", "global"):
                raise ValueError(f"FedDisco: target must be uniform, global or a list of class shares; got {self.target!r}")
        elif min(self.target, default=-1) < 0 or sum(self.target) <= 0 or (self.metric == "kl" and min(self.target) == 0):
            raise ValueError(f"FedDisco: target's shares must be at least 0, and above 0 for metric=kl; got {self.target}")

    @property
    def reads_all_data(self) -> bool:
        return self.target == "global"

    def prepare_data(self, federation: Federation, rng: Generator, workspace: Path | None) -> Exchange:
        if self.target != "global":
            return Exchange(federation)
        messages = masked(torch.from_numpy(label_table(federation).toarray()), rng)
        num_bytes = 4 * messages.numel()  # up, and as many down: the sum goes to every client
        return LabelSum(federation, (num_bytes, num_bytes), label_counts=unmasked_sum(messages))

    def init_client(self, params: Params, buffers: Params, client: ClientView) -> FirstContact:
        counts = client.label_counts
        if self.target == "uniform":
            target = torch.ones_like(counts)
            if client.task == "regression":
                target[len(client.bin_edges) + 1 :] = 0  # tied targets leave fewer bins than classes
        elif self.target == "global":
            exchange = client.exchanges[self.name]
            assert isinstance(exchange, LabelSum)
            target = exchange.label_counts
        else:
            target = torch.tensor(self.target, dtype=torch.float64)
        if len(target) != len(counts):
            raise ValueError(f"FedDisco: target lists {len(target)} shares, but the data have {len(counts)} classes")
        return FirstContact({}, discrepancy(counts, target, self.metric))

    def weights(self, weights: Tensor, messages: Sequence[float], cohort: Cohort) -> Tensor:
        d = torch.tensor(messages, dtype=torch.float64)
        if self.metric == "kl":
            d = d / d.sum().clamp(min=1e-12)
        return torch.relu(cohort.num_samples / cohort.num_samples.sum() - self.a * d + self.b)
