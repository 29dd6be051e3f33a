"""LeashPretraining: training on public data before round 1, an arm for comparison with FedWalk."""

import copy
import logging
from dataclasses import dataclass, field

import torch

from flcog.callbacks.fedwalk.leash import OnLeash, value_at
from flcog.client_module import ClientModule
from flcog.core.checks import option
from flcog.core.randomness import make_rng
from flcog.functional.apply import Apply
from flcog.functional.model_function import ModelFunction
from flcog.schedules import Schedule

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class LeashPretraining(OnLeash):
    """Trains the initial model on public data, a leash, before round 1; the rounds are unchanged.

    ::

        W_0 <- W_0 - lr grad F(W_0)      for num_steps batches of the leash

    FedWalk's comparison arm, which holds the leash only before the walk. The paper does not state the number of steps or their
    rates. To take the same steps as :class:`~flcog.callbacks.FedWalk`, set ``num_steps`` to the last value of its column
    ``fedwalk/steps`` (less than its rounds if tau decides), and ``lr`` to the rates of those steps: a ``Piecewise`` with
    boundaries in steps. It costs less than FedWalk, which also measures the clients' losses and the leash's.

    The leash's head is discarded afterwards, unless it is the model's. The training runs on the CPU when the model is made, on
    every start of a run. A resumed run repeats it as well, and then replaces the result by the checkpoint's parameters. With a
    ``start_round`` above 0 there is none.

    Zhai et al., The Dog Walking Theory: Rethinking Convergence in Federated Learning, 2024, section 5.3 (2),
    https://arxiv.org/abs/2404.11888.

    Args:
        leash: the public data; see :class:`~flcog.callbacks.FedWalk`.
        num_steps: steps of plain SGD, >= 1.
        lr: their step size, > 0, or its schedule by step, counted from 0.
        head: ``own`` or ``shared``, as in FedWalk.
        mode: ``eval`` or ``train``, as in FedWalk.
        seed: seed of the batches and the head; None draws it from the run's.

    Example:
        >>> from flcog.datamodules import Digits
        >>> LeashPretraining(leash=Digits(), num_steps=10).lr
        0.01
    """

    num_steps: int = option(300, ">= 1")
    lr: float | Schedule = field(default=0.01, kw_only=True)
    seed: int | None = None

    def configure_model(self, model: ClientModule) -> ClientModule:
        if not self.active(0):
            return model
        leash, seed = self._leash, int(torch.randint(2**62, ())) if self.seed is None else self.seed
        leash.check(model)
        # A copy, because the user's module may serve another run, which trains it from the start.
        function = ModelFunction(copy.deepcopy(model))
        apply = Apply(function, function.buffers)
        params = {name: value.detach() for name, value in function.params.items()}
        head = leash.make_head(apply, params, make_rng(seed, "leash", "head"))
        for step in range(self.num_steps):
            params, head = leash.walk(apply, params, head, value_at(self.lr, step), range(step, step + 1), seed)
        with torch.no_grad():
            for name, value in function.params.items():
                value.copy_(params[name])
        if _log.isEnabledFor(logging.INFO):
            _log.info("the leash's loss is %.4g after %d steps of pre-training", leash.loss(apply, params, head), self.num_steps)
        assert isinstance(function.module, ClientModule)
        return function.module
