"""Per-FedAvg: a global model that is good after one gradient step on a client's data."""

from dataclasses import dataclass
from typing import Literal

import torch
from torch.utils import _pytree as pytree

from flcog.core.checks import option
from flcog.core.precision import number_dtype
from flcog.core.trees import first_leaf
from flcog.core.types import Batch, Params
from flcog.method import Context, Gradient, GradientFunction, Personal, Personalisation


@dataclass(frozen=True)
class PerFedAvg(Personalisation):
    """Trains the loss after one gradient step (MAML), so that each client's personal model is the global one after such a step.

    With D, D' (and D'') equal parts of a client's batch, and w its copy of the global model, the local optimiser gets::

        theta = w - alpha grad F_k(w; D),        g = grad F_k(theta; D')                                        (first order)
        g - alpha [grad F_k(w + delta g; D'') - grad F_k(w - delta g; D'')] / (2 delta)                         (Hessian-free)

    The first form drops the Hessian, the second one approximates its product with g. The personal model is the global one after one step
    with the rate alpha on a batch of the client's samples, taken at each evaluation. Row i of a batch belongs to part i modulo the
    number of parts, and a part without rows has no gradient. Take batches that are two or three times as large as FedAvg's.

    Fallah et al., Personalized Federated Learning with Theoretical Guarantees: A Model-Agnostic Meta-Learning Approach, NeurIPS 2020,
    https://arxiv.org/abs/2002.07948, Algorithm 1 and Section 5.

    Args:
        alpha: the rate of the step to the personal model, > 0.
        form: ``first_order`` (Per-FedAvg (FO)) or ``hessian_free`` (Per-FedAvg (HF)).
        delta: the distance of the two gradients of the Hessian-free form, > 0.
    """

    alpha: float = option(0.01, "> 0")
    form: Literal["first_order", "hessian_free"] = "first_order"
    delta: float = option(0.001, "> 0")

    plain_batches = True

    def wrap_gradient(self, gradient: GradientFunction, ctx: Context) -> GradientFunction:
        def after_a_step(params: Params, batch: Batch) -> Gradient:
            number = 2 if self.form == "first_order" else 3
            first, second, *third = (_part(batch, start, number) for start in range(number))
            result = gradient(_moved(params, gradient(params, first).values, -self.alpha), second)
            for part in third:
                ahead, behind = (gradient(_moved(params, result.values, by), part).values for by in (self.delta, -self.delta))
                product = {name: (value - behind[name]) / (2 * self.delta) for name, value in ahead.items()}
                result = result._replace(values=_moved(result.values, product, -self.alpha))
            return result

        return after_a_step

    def personal(self, params: Params, ctx: Context) -> Personal:
        return Personal(params, steps=1, lr=self.alpha)


def _moved(params: Params, direction: Params, by: float) -> Params:
    return {name: value + by * direction[name] for name, value in params.items()}


def _part(batch: Batch, start: int, number: int) -> Batch:
    """The rows ``start``, ``start + number``, and so on; if there are none, one row that does not count."""
    first = first_leaf(batch.inputs)
    rows = slice(start, None, number) if start < len(first) else slice(1)
    part = pytree.tree_map_only(torch.Tensor, lambda value: value[rows], batch)
    return part if start < len(first) else part._replace(mask=first.new_zeros(1, dtype=number_dtype()))
