"""LeashPretraining: training on public data before round 1, the arm that FedWalk is compared with."""

import copy
import logging
from dataclasses import dataclass, field
from typing import Literal

import torch

from flcog.apply import Apply, ModelFunction
from flcog.callbacks.fedwalk.leash import Leash, check_lr, value_at
from flcog.client_module import ClientModule
from flcog.core.checks import at_least
from flcog.core.randomness import make_rng
from flcog.data import FederatedDataModule
from flcog.method import Method
from flcog.schedules import Schedule

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class LeashPretraining(Method):
    """Trains the initial model on public data, a leash, before round 1; the rounds are left as they are.

    ::

        W_0 <- W_0 - lr grad F(W_0)      for num_steps batches of the leash

    FedWalk's comparison arm, which holds the leash only before the walk. The paper does not say for how many steps, nor at which
    rates. For as many as :class:`~flcog.callbacks.FedWalk` took, fewer than its rounds where tau decides, set ``num_steps`` to the
    last value of its column ``fedwalk/steps``, and ``lr`` to the rates of those steps: a ``Piecewise`` whose boundaries count steps.
    It is the cheaper: a run of FedWalk also measures the clients' losses and the leash's.

    The leash's head is thrown away afterwards, unless it is the model's. It runs where the model is made, on the CPU, and again on
    every start of a run, also of one that then resumes from a checkpoint, whose parameters take the place of the result. With a
    ``start_round`` above 0 there is none.

    Zhai et al., The Dog Walking Theory: Rethinking Convergence in Federated Learning, 2024, section 5.3 (2),
    https://arxiv.org/abs/2404.11888.

    Args:
        leash: the public data; see :class:`~flcog.callbacks.FedWalk`.
        num_steps: steps of plain SGD, >= 1.
        lr: their step size, > 0, or its schedule by step, counted from 0.
        head: ``own`` or ``shared``, as in FedWalk.
        mode: ``eval`` or ``train``, as in FedWalk.
        seed: of the batches and the head; None draws it from the run's.

    Example:
        >>> from flcog.datamodules import Digits
        >>> LeashPretraining(leash=Digits(), num_steps=10).lr
        0.01
    """

    leash: FederatedDataModule = field(kw_only=True, repr=False)
    num_steps: int = 300
    lr: float | Schedule = 0.01
    head: Literal["own", "shared"] = "own"
    mode: Literal["eval", "train"] = "eval"
    seed: int | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        at_least(self, 1, "num_steps")
        check_lr(self)
        _ = self._leash

    @property
    def _leash(self) -> Leash:
        return Leash(self.name, self.leash, self.head, self.mode)

    def configure_model(self, model: ClientModule) -> ClientModule:
        if not self.active(0):
            return model
        leash, seed = self._leash, int(torch.randint(2**62, ())) if self.seed is None else self.seed
        leash.check(model)
        # A copy: the user's module may serve another run, which trains it anew.
        function = ModelFunction(copy.deepcopy(model))
        apply = Apply(function, function.buffers)
        params = {name: value.detach() for name, value in function.params.items()}
        head = leash.make_head(apply, params, make_rng(seed, "leash", "head"))
        for step in range(self.num_steps):
            params, head = leash.walk(apply, params, head, value_at(self.lr, step), step, 1, seed)
        with torch.no_grad():
            for name, value in function.params.items():
                value.copy_(params[name])
        if _log.isEnabledFor(logging.INFO):
            _log.info("the leash's loss is %.4g after %d steps of pre-training", leash.loss(apply, params, head), self.num_steps)
        assert isinstance(function.module, ClientModule)
        return function.module
