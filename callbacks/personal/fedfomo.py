"""FedFomo: each client downloads some other clients' models, and takes of each as much as it helps on its own validation samples."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F

from flcog.callbacks.personal.kept_models import KeptModels
from flcog.core.checks import option
from flcog.core.types import Batch, Params, Slot
from flcog.functional.apply import Apply
from flcog.method import ClientView, Cohort, Context, Messages, Upload


@dataclass(frozen=True)
class FedFomo(KeptModels):
    """Starts each client from its own last model, moved towards those of other clients that are better on its validation samples.

    Client k, whose last model is v, downloads ``models`` last models w_n of others, and trains y::

        r_n = max(0, (F_k(v) - F_k(w_n)) / ||w_n - v||)        y = v + sum_n r_n / sum_m r_m (w_n - v)

    F_k is the loss in evaluation mode on samples that are drawn from those that the client holds out for validation (``client_val`` of the
    data module). Without such samples they are drawn from the training set, on which v has an advantage. The client sends its r_n, and the
    server adds them to the client's affinities. In the next rounds it sends the models of the highest affinity, or random ones with
    probability ``exploration``; ties are broken at random. Clients that have not trained are sent to nobody, and a client's first start is
    the global model.

    A client downloads ``models`` models beside the global one, and the server keeps a model for each client.

    Zhang et al., Personalized Federated Learning with First Order Model Optimization, ICLR 2021, https://arxiv.org/abs/2012.08565.

    Args:
        models: M, the number of other clients' models that a client downloads, >= 1.
        exploration: epsilon, the probability that they are random, in [0, 1].
        samples: number of validation samples, drawn from the client's in each round, >= 1.
    """

    models: int = option(5, ">= 1")
    exploration: float = option(0.3, "[0, 1]")
    samples: int = option(256, ">= 1")

    plain_batches = True
    phase = "mixing"

    def init_server(self, params: Params) -> Slot:
        return {**super().init_server(params), "affinities": torch.zeros(0, 0)}

    def send_to(self, server: Slot, params: Params, client: int, rng: torch.Generator) -> Mapping[str, Any]:
        count = len(server["is_known"])
        others = [
            other for other in torch.randperm(count, generator=rng).tolist() if other != client and server["is_known"][other]
        ]
        if count and torch.rand((), generator=rng) >= self.exploration:
            affinities = server["affinities"][client].tolist()
            others.sort(key=lambda other: -affinities[other])
        chosen = others[: self.models]
        missing = self.models - len(chosen)
        models = {
            name: torch.stack([*(known[other] for other in chosen), *[params[name]] * missing])
            for name, known in server["models"].items()
        }
        places = F.pad(torch.tensor(chosen, dtype=torch.long), (0, missing), value=-1)
        return {"models": models, "places": places}

    def draw(self, rng: torch.Generator, client: ClientView) -> Slot:
        return client.sample(self.samples, rng, validation=True)

    def start(self, apply: Apply, params: Params, ctx: Context) -> tuple[Params, Slot]:
        own, batch = ctx.state["params"], Batch(ctx.draws["inputs"], ctx.draws["targets"])

        def loss(model: Params) -> torch.Tensor:
            return apply.frozen(model, ctx.received.buffers).loss(batch)

        before, gains, models = loss(own), [], ctx.broadcast["models"]
        for k in range(self.models):
            model = {name: value[k] for name, value in models.items()}
            distance = torch.stack([(value - own[name]).square().sum() for name, value in model.items()]).sum().sqrt()
            gains.append((before - loss(model)) / distance.clamp(min=1e-12))
        gain = torch.stack(gains).clamp(min=0) * (ctx.broadcast["places"] >= 0)
        weights = gain / gain.sum().clamp(min=1e-30)
        moved = {name: own[name] + torch.tensordot(weights, value - own[name], 1) for name, value in models.items()}
        return moved, {"gain": gain}

    def finish_client(self, delta: Params, params: Params, ctx: Context) -> Upload:
        return Upload(delta, {"params": params}, mean={"gain": ctx.inputs["gain"], "places": ctx.broadcast["places"]})

    def server_step(self, server: Slot, params: Params, delta: Params, messages: Messages, cohort: Cohort) -> tuple[Params, Slot]:
        delta, moved = super().server_step(server, params, delta, messages, cohort)
        count = cohort.num_clients
        affinities = server["affinities"].clone() if len(server["affinities"]) else torch.zeros(count, count)
        for upload in messages.individual:
            is_other = upload.mean["places"] >= 0
            places, gains = (upload.mean[name][is_other].to(affinities.device) for name in ("places", "gain"))
            affinities[upload.client].index_add_(0, places.long(), gains.to(affinities))
        return delta, {**moved, "affinities": affinities}
