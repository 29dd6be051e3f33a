"""FedDisco: aggregation weights from sample counts and from how skewed each client's labels are."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import torch
from torch import Generator, Tensor

from flcog.callbacks.secure_aggregation import pair_masks
from flcog.core.checks import all_at_least, one_of, option
from flcog.core.types import Params
from flcog.data import LABELLED, Exchange, Federation
from flcog.data.label_statistics import label_table
from flcog.method import Ask, ClientView, Cohort, DataExchange, DataHost, ExchangeSummary, FirstContact
from flcog.wire.envelope import Field

BITS = 32
"""Messages are whole numbers of four bytes."""


def masked(counts: Tensor, secret: str) -> Tensor:
    """The clients' messages: their counts, with the masks that each client shares with the next and with the previous client.

    Masks are uniform modulo 2^32. So is each message, and any set of messages that lacks one: they reveal nothing about the
    counts. Modulo 2^32 all messages add up to the sum of the counts. A single client has no other to share a mask with.

    FedDisco's A.3 (https://arxiv.org/abs/2305.19229) describes the case of two clients. A protocol such as Bonawitz et al., CCS
    2017, also lets clients agree on masks and removes the masks of clients that drop out; this function does not.

    >>> masked(torch.tensor([[3, 0], [1, 4]]), "secret").sum(0) % 2**BITS
    tensor([4, 4])
    """
    num = len(counts)
    masks = [pair_masks(secret, k, {(k - 1) % num, (k + 1) % num}, counts[k].numel(), BITS) for k in range(num)]
    return (torch.stack(masks).view(counts.shape) + counts) % 2**BITS


METRICS = ("kl", "l1", "l2", "cosine")


def discrepancy(counts: Tensor, target: Tensor, metric: str = "kl") -> float:
    """The distance of a client's label counts from the target's shares; without labels, the largest of any one label.

    >>> discrepancy(torch.tensor([10.0, 0.0]), torch.tensor([0.5, 0.5]), "l1")
    1.0
    """
    if counts.sum() == 0 < target.sum():
        # A multi-label client may have no label. It gets the largest discrepancy, as if its only label were the target's rarest.
        # Under KL that is the rarest label with a share above 0, because the divergence would otherwise be infinite.
        rarest = (target.where(target > 0, torch.inf) if metric == "kl" else target).argmin()
        counts = torch.nn.functional.one_hot(rarest, len(target))
    # The clamp avoids 0 / 0 if no client has a label.
    shares, target = (value / value.sum().clamp(min=1e-30) for value in (counts.double(), target.double()))
    if metric == "kl":
        return float((torch.xlogy(shares, shares) - torch.xlogy(shares, target)).sum())
    if metric == "cosine":
        return 1 - float(torch.cosine_similarity(shares, target, dim=0))
    return float(torch.linalg.vector_norm(shares - target, ord=1 if metric == "l1" else 2))


@dataclass(frozen=True, kw_only=True)
class LabelSum(Exchange):
    """The server's knowledge of the clients' labels: the counts of all clients together."""

    label_counts: Tensor


@dataclass(frozen=True)
class FedDisco(DataExchange):
    """Replaces the aggregation weights: a client counts by its share of the samples, and less the more skewed its labels are.

    With n_k the client's share of the cohort's samples, D_k its distribution of labels, T the target and e a distance::

        p_k = relu(n_k - a d_k + b) / sum_m relu(n_m - a d_m + b),   d_k = e(D_k, T)

    The divergence KL(D_k || T) is divided by its sum over the cohort, as in the authors' code but not in the paper: undivided, it
    is much larger than n_k and gives skewed clients a weight of 0. Each client sends the number d_k once, when first sampled. It
    tells how skewed the labels are, but not which labels the client has. If no weight is positive, the previous weights remain.

    For a regression, D_k counts targets in bins with edges at quantiles of all clients' targets, which are computed without a
    simulated exchange. For multi-label data D_k counts labels; a client without labels gets the largest discrepancy that a single
    label can have. List FedDisco after methods that set weights of their own (FedDyn), because it replaces them.

    Ye et al., FedDisco: Federated Learning with Discrepancy-Aware Collaboration, ICML 2023, https://arxiv.org/abs/2305.19229.

    Args:
        a: cost of a discrepancy, >= 0.
        b: added to all weights, >= 0; a = b = 0 is FedAvg.
        metric: the distance: ``kl``, ``l1``, ``l2`` or ``cosine`` (1 - cos).
        target: ``uniform``; the shares of the classes (the test set's, if that is skewed; above 0 for ``kl``); or ``global``, the
            distribution of all clients' labels together. For ``global`` the server learns only the sum of the labels, by one
            secure aggregation before round 1 (A.3; list FedDisco after methods that change the data, such as Fedssyn).
    """

    tasks = LABELLED

    a: float = option(0.5, ">= 0")
    b: float = option(0.1, ">= 0")
    metric: Literal["kl", "l1", "l2", "cosine"] = "kl"
    target: Literal["uniform", "global"] | list[float] = "uniform"

    def __post_init__(self) -> None:
        super().__post_init__()
        if isinstance(self.target, str):
            one_of(self, ("uniform", "global"), "target")
        else:
            all_at_least(self, 0, "target")

    @property
    def exchanges_data(self) -> bool:
        return self.target == "global"

    def ask_clients(self, ask: Ask, sizes: Tensor, rng: Generator) -> ExchangeSummary:
        everybody = range(len(sizes))

        def like(client: int, own: Federation) -> Field:
            return Field((own.num_classes,), torch.int64)

        messages = torch.stack(list(ask("count", dict.fromkeys(everybody, None), like).values()))
        total = messages.sum(0) % 2**BITS
        ask("sum", dict.fromkeys(everybody, total), None)
        num_bytes = 4 * messages.numel()  # up, and as many down: the sum goes to every client
        return ExchangeSummary((num_bytes, num_bytes), kind=partial(LabelSum, label_counts=total))

    def answer(self, step: str, messages: Mapping[int, Any], host: DataHost) -> dict[int, Any]:
        if step == "sum":
            host.exchange = LabelSum(host.federation, label_counts=next(iter(messages.values())))
            return {}
        # A host draws all masks, because the mask of a client cancels that of its neighbour. Real clients would agree on them in pairs.
        counts = torch.from_numpy(label_table(host.federation).toarray())
        masked_counts = masked(counts, f"{self.name} {host.seed}")
        return {client: masked_counts[client] for client in messages}

    def init_client(self, params: Params, buffers: Params, client: ClientView) -> FirstContact:
        counts = client.label_counts
        if self.target == "uniform":
            target = torch.ones_like(counts)
            if client.task == "regression":
                target[len(client.bin_edges) + 1 :] = 0  # equal targets leave fewer bins than classes
        elif self.target == "global":
            exchange = client.exchanges[self.name]
            assert isinstance(exchange, LabelSum)
            target = exchange.label_counts
        else:
            target = torch.tensor(self.target, dtype=torch.float64)
        return FirstContact({}, discrepancy(counts, target, self.metric))

    def weights(self, weights: Tensor, messages: Sequence[float], cohort: Cohort) -> Tensor:
        d = torch.tensor(messages, dtype=torch.float64)
        if self.metric == "kl":
            d = d / d.sum().clamp(min=1e-12)
        return torch.relu(cohort.num_samples / cohort.num_samples.sum() - self.a * d + self.b)
