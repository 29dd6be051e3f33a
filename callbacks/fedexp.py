"""FedExP: the server extrapolates, with a step size that grows if the clients' updates disagree."""

from dataclasses import dataclass
from typing import Literal

import torch

from flcog.core.checks import option
from flcog.core.precision import number_dtype
from flcog.core.types import Params, Slot
from flcog.method import Cohort, Messages, Method


def square_norm(params: Params) -> torch.Tensor:
    """The squared norm of all parameters together.

    >>> square_norm({"w": torch.tensor([3.0]), "b": torch.tensor([4.0])})
    tensor(25.)
    """
    return torch.stack([value.square().sum(dtype=number_dtype(value.dtype)) for value in params.values()]).sum()


@dataclass(frozen=True)
class FedExP(Method):
    """Multiplies the mean update by a step size of at least 1, the larger the more the clients' updates cancel in the mean.

    With D_k the updates of the round's M clients, p_k their weights and D their weighted mean::

        code:   eta = max(1, sum_k p_k ||D_k||^2 / (2 (||D||^2 + M epsilon decay^t)))        in round t = 0, 1, ...
        paper:  eta = max(1, sum_k p_k ||D_k||^2 / (2 (||D||^2 + epsilon decay^t)))
        x <- x + eta D

    ``code`` is the authors' program, and this project's tables use it: its epsilon grows with the cohort. The iterates
    oscillate. Paper and code therefore evaluate the mean of the last two, and continue training from the last. (The code's first
    evaluation is of the first iterate alone; here it is the mean with the initial model.) Each client sends one more number. The
    round's step size is logged as ``fedexp/eta``. D_k is what the server receives and averages, after other methods, clipping and
    codecs. List FedExP before other methods with a step of the server, which would change D. Beside unbiased weights p_k and D are
    normalised in eta, and the step is eta times the unbiased mean. The changes should begin at one model, unlike those of ``FedBuff``.

    Jhunjhunwala et al., FedExP: Speeding Up Federated Averaging via Extrapolation, ICLR 2023, https://arxiv.org/abs/2301.09604.

    Args:
        epsilon: keeps eta at 1 for small updates, > 0; a large one is FedAvg. The paper takes 0.001, and 0.1 on EMNIST.
        decay: factor on epsilon from round to round, in (0, 1]. Updates shrink with the local learning rate: the authors' code
            multiplies the learning rate by 0.998 each round, and epsilon by its square, 0.996.
        form: the form of epsilon in the equation: ``code`` or ``paper``.
        evaluate_mean: whether to evaluate the mean of the last two iterates instead of the last one.
    """

    epsilon: float = option(1e-3, "> 0")
    decay: float = option(1.0, "(0, 1]")
    form: Literal["code", "paper"] = "code"
    evaluate_mean: bool = True

    of_change = staticmethod(square_norm)

    def init_server(self, params: Params) -> Slot:
        return {"previous": dict(params)}

    def server_step(self, server: Slot, params: Params, delta: Params, messages: Messages, cohort: Cohort) -> tuple[Params, Slot]:
        epsilon = self.epsilon * self.decay ** (cohort.round - self.start_round)
        if self.form == "code":
            epsilon *= len(cohort.clients)
        # Unbiased weights have multiplied the change, and not the message, by their sum.
        square = square_norm(delta) / cohort.total_weight**2
        # FedDM's clients send no change of the model.
        squares = messages.mean.get("of_change", torch.zeros_like(square))
        eta = (squares / (2 * (square + epsilon))).clamp(min=1)
        cohort.log("fedexp/eta", eta)
        return {name: eta * value for name, value in delta.items()}, {"previous": dict(params)}

    def evaluate_at(self, server: Slot, params: Params) -> Params:
        if not self.evaluate_mean:
            return params
        return {name: (value + server["previous"][name]) / 2 for name, value in params.items()}
