"""FedALA: each client learns, number by number, how much of the global model it takes."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from flcog.callbacks.parts.parameters import by_name, check_some
from flcog.core.checks import option
from flcog.core.types import Batch, Params, Slot
from flcog.functional.apply import Apply
from flcog.method import ClientView, Context, Personal, Personalisation, Upload


@dataclass(frozen=True)
class FedALA(Personalisation):
    """Starts each client from a mixture of the global model and its own last one, whose weights the client learns on its own data.

    With x the received model, v client k's model at the end of its last round, and W in [0, 1] a weight for each number of the upper
    parts, which the client keeps and which begins at 1, a client's round starts with ``steps`` steps on small batches, and then trains y::

        y = v + (x - v) W        W <- clip(W - eta grad_y F_k(y) (x - v))

    All other parts start from x. The client's model at the end of its last round is its personal model; one that has not trained has the
    initial one. The authors train W in a client's second round until its loss settles, and later for one pass over a part of the data;
    here each round has the same number of steps, and W goes on from the last round's. Nothing more than FedAvg's messages is sent.

    Zhang et al., FedALA: Adaptive Local Aggregation for Personalized Federated Learning, AAAI 2023,
    https://arxiv.org/abs/2212.01197, Algorithm 1; https://github.com/TsingZ0/FedALA.

    Args:
        parts: the upper parts: ``head``, ``body``, a regular expression for names of parameters, or a list of these.
        eta: learning rate of the weights, > 0; the authors take 1.
        steps: number of steps on the weights in each round, >= 1.
        batch_size: samples in each of these steps, drawn from the client's own, >= 1.
    """

    parts: str | Sequence[str] = "head"
    eta: float = option(1.0, "> 0")
    steps: int = option(10, ">= 1")
    batch_size: int = option(32, ">= 1")

    plain_batches = True
    phase = "mixing"

    def init_server(self, params: Params) -> Slot:
        check_some("FedALA: parts", self.parts, by_name(self.parts, params), params)
        return {}

    def init_client(self, params: Params, buffers: Params, client: ClientView) -> Slot:
        upper = by_name(self.parts, params)
        weights = {name: torch.ones_like(value) for name, value in params.items() if name in upper}
        return {"params": dict(params), "weights": weights}

    def draw(self, rng: torch.Generator, client: ClientView) -> Slot:
        return client.sample(self.steps * self.batch_size, rng)

    def start(self, apply: Apply, params: Params, ctx: Context) -> tuple[Params, Slot]:
        weights, own = ctx.state["weights"], ctx.state["params"]
        apart = {name: params[name] - own[name] for name in weights}

        def mixed() -> Params:
            return {name: own[name] + apart[name] * weight for name, weight in weights.items()}

        for step in range(self.steps):
            rows = slice(step * self.batch_size, (step + 1) * self.batch_size)
            batch = Batch(ctx.draws["inputs"][rows], ctx.draws["targets"][rows])
            gradient = torch.func.grad(lambda upper, batch=batch: apply.scratch().loss({**params, **upper}, batch))(mixed())
            weights = {name: (weights[name] - self.eta * gradient[name] * apart[name]).clamp(0, 1) for name in weights}
        return params | mixed(), {"weights": weights}

    def finish_client(self, delta: Params, params: Params, ctx: Context) -> Upload:
        return Upload(delta, {"params": params, "weights": ctx.inputs["weights"]})

    def personal(self, params: Params, ctx: Context) -> Personal:
        return Personal(ctx.state["params"], own_statistics=True)
