"""A client's control variate: its estimate of its own mean gradient."""

import torch
from torch import Tensor

from flcog.core.types import Params
from flcog.method import Context


def change_of_control(mean: Params, params: Params, ctx: Context, num_steps: Tensor | int | float) -> Params:
    """The change ``c_k' - c_k = (x - y) / (K lr) - c`` of a client's control variate after K steps from x to y: SCAFFOLD's option II.

    With a learning rate of 0, as at the start of a warm-up, the client has not moved and learns nothing about its gradient: the
    change is 0.

    >>> from types import SimpleNamespace as Facts
    >>> context = Facts(received=Facts(params={"w": torch.tensor([1.0])}), optimisation=Facts(lr=0.1))
    >>> change_of_control({"w": torch.tensor([0.5])}, {"w": torch.tensor([0.8])}, context, num_steps=2)
    {'w': tensor([0.5000])}

    Args:
        mean: c, the mean over all clients, for the parameters that have control variates.
        params: y, the trained parameters. A method may have changed the upload ``delta``, which therefore is not used.
        ctx: the client's.
        num_steps: K.
    """
    lr = ctx.optimisation.lr
    travelled = lr * num_steps
    change = {name: (ctx.received.params[name] - params[name]) / travelled - c for name, c in mean.items()}
    if not isinstance(lr, Tensor) and lr != 0:
        return change
    still = {name: (ctx.received.params[name] == params[name]) & (lr == 0) for name in change}
    return {name: torch.where(still[name], 0, value) for name, value in change.items()}
