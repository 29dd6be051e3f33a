"""pFedMe: each client's own model solves a proximal problem around its copy of the global model."""

from dataclasses import dataclass

from flcog.core.checks import option
from flcog.core.types import Batch, Params, Slot
from flcog.method import ClientView, Cohort, Context, Gradient, GradientFunction, Messages, Personal, Personalisation


@dataclass(frozen=True)
class PFedMe(Personalisation):
    """Trains the Moreau envelope of each client's loss; the point that reaches it is the client's personal model.

    With x the global model and w client k's copy of it, each local step solves the inner problem around w on its batch by ``steps``
    gradient steps from w, and gives the local optimiser the envelope's gradient::

        theta ~ argmin F_k(theta) + lambda / 2 ||theta - w||^2        w <- the optimiser's step with gradient lambda (w - theta)

    The server moves by a multiple of the mean change: ``x <- (1 - beta) x + beta sum_k p_k w_k``. The client's last theta is its personal
    model. A step costs ``steps`` gradients, and nothing more is sent. With BatchNorm, theta uses batch statistics in training and the
    statistics of the client's own samples in evaluation. The paper weights clients equally: list ``EqualWeights`` for its mean.

    Dinh et al., Personalized Federated Learning with Moreau Envelopes, NeurIPS 2020, https://arxiv.org/abs/2006.08848, Algorithm 1;
    https://github.com/CharlieDinh/pFedMe.

    Args:
        lambda_prox: lambda, the strength of the pull of theta to w, > 0. The authors take 15 to 30; the step of w is the local learning
            rate times lambda.
        steps: gradient steps of the inner problem, >= 1; the authors take 5.
        lr: learning rate of the inner problem, > 0; None for the local optimiser's.
        beta: the server's step, > 0; the authors take 1 to 4.
    """

    lambda_prox: float = option(15.0, "> 0")
    steps: int = option(5, ">= 1")
    lr: float | None = option(None, "> 0")
    beta: float = option(1.0, "> 0")

    def init_client(self, params: Params, buffers: Params, client: ClientView) -> Slot:
        return {"personal": dict(params)}

    def wrap_gradient(self, gradient: GradientFunction, ctx: Context) -> GradientFunction:
        lr = ctx.optimisation.lr if self.lr is None else self.lr

        def envelope(params: Params, batch: Batch) -> Gradient:
            theta = params
            for _ in range(self.steps):
                result = gradient(theta, batch)
                pull = {name: self.lambda_prox * (theta[name] - value) for name, value in params.items()}
                theta = {name: value - lr * (result.values[name] + pull[name]) for name, value in theta.items()}
            values = {name: self.lambda_prox * (value - theta[name]) for name, value in params.items()}
            return result._replace(values=values, state={"personal": theta})

        return envelope

    def server_step(self, server: Slot, params: Params, delta: Params, messages: Messages, cohort: Cohort) -> tuple[Params, Slot]:
        return {name: self.beta * value for name, value in delta.items()}, server

    def personal(self, params: Params, ctx: Context) -> Personal:
        return Personal(ctx.state["personal"], own_statistics=True)
