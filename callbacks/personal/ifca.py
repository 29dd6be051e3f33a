"""IFCA: several global models. Each client trains the best of them for its data."""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from flcog.core.checks import option
from flcog.core.randomness import make_rng
from flcog.core.types import Batch, Params, Slot
from flcog.functional.apply import Apply
from flcog.method import ClientView, Cohort, Context, Messages, Personal, Personalisation, Upload


@dataclass(frozen=True)
class IFCA(Personalisation):
    """Trains several global models, one for each cluster of clients, which form by themselves.

    With models x_1 ... x_K at the server, a client of the round estimates its cluster and trains that model, and the server averages
    within each cluster::

        j_k = argmin_j F_k(x_j)        y_k <- local steps from x_j, with j = j_k
        x_j <- x_j + sum_{k: j_k = j} n_k (y_k - x_j) / sum_{k: j_k = j} n_k

    F_k is the loss of a model in evaluation mode on samples that are drawn from the client's. x_1 begins as the given model, and each other
    one with the numbers of each of its tensors in random order. A client's own model is that of its last cluster, and x_1 before its first
    round. The run's global model stays as it began, and methods such as FedProx pull clients to it. Methods that change what clients send
    come after IFCA in the list, because the change before it counts from the run's global model. Each client downloads all K models and
    sends one. All clusters have the same statistics of BatchNorm.

    Ghosh et al., An Efficient Framework for Clustered Federated Learning, NeurIPS 2020, https://arxiv.org/abs/2006.04088, Algorithm 1 with
    model averaging.

    Args:
        clusters: K, >= 1.
        samples: number of samples that estimate the cluster, drawn from the client's in each round, >= 1.
        seed: seed of the first models.
    """

    clusters: int = option(2, ">= 1")
    samples: int = option(256, ">= 1")
    seed: int = option(0, ">= 0")

    individual_uploads = True
    plain_batches = True
    phase = "clustering"

    def init_server(self, params: Params) -> Slot:
        def shuffled(value: Tensor, cluster: int, name: str) -> Tensor:
            order = torch.randperm(value.numel(), generator=make_rng(self.seed, cluster, name))
            return value.flatten()[order.to(value.device)].view_as(value)

        others = range(1, self.clusters)
        return {n: torch.stack([value, *(shuffled(value, cluster, n) for cluster in others)]) for n, value in params.items()}

    def broadcast(self, server: Slot) -> Slot:
        return server

    def init_client(self, params: Params, buffers: Params, client: ClientView) -> Slot:
        return {"cluster": F.one_hot(torch.tensor(0), self.clusters).to(next(iter(params.values())))}

    def draw(self, rng: torch.Generator, client: ClientView) -> Slot:
        return client.sample(self.samples, rng)

    def start(self, apply: Apply, params: Params, ctx: Context) -> tuple[Params, Slot]:
        models = [{name: values[cluster] for name, values in ctx.broadcast.items()} for cluster in range(self.clusters)]
        batch = Batch(ctx.draws["inputs"], ctx.draws["targets"])
        losses = torch.stack([apply.frozen(model, ctx.received.buffers).loss(batch) for model in models])
        cluster = (torch.arange(self.clusters, device=losses.device) == losses.argmin()).to(losses.dtype)
        return _of_cluster(ctx.broadcast, cluster), {"cluster": cluster}

    def finish_client(self, delta: Params, params: Params, ctx: Context) -> Upload:
        change = {n: value + ctx.received.params[n] - ctx.started[n] for n, value in delta.items()}
        return Upload(change, ctx.inputs, mean={"cluster": ctx.inputs["cluster"]})

    def server_step(self, server: Slot, params: Params, delta: Params, messages: Messages, cohort: Cohort) -> tuple[Params, Slot]:
        clusters = torch.stack([upload.weight * upload.mean["cluster"] for upload in messages.individual])
        shares = clusters / clusters.sum(0).clamp(min=1e-30)  # [clients, clusters], a share of the cluster's weight
        changes = {n: torch.stack([upload.delta[n] for upload in messages.individual]) for n in messages.individual[0].delta}
        moved = {n: server[n] + torch.tensordot(shares.T.to(each), each, 1) for n, each in changes.items()}
        return {n: torch.zeros_like(value) for n, value in delta.items()}, server | moved

    def personal(self, params: Params, ctx: Context) -> Personal:
        return Personal(_of_cluster(ctx.broadcast, ctx.state["cluster"]), own_statistics=True)


def _of_cluster(models: Params, cluster: Tensor) -> Params:
    """The model of a cluster, which is given as a row of zeros with a one."""
    return {name: torch.tensordot(cluster.to(values), values, 1) for name, values in models.items()}
