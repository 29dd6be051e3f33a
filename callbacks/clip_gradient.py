"""ClipGradient: bounds the norm of the gradient of every local step."""

from dataclasses import dataclass

from flcog.core.checks import positive
from flcog.core.types import Params
from flcog.method import Context, Method
from flcog.method.gradient_clip import clip


@dataclass(frozen=True)
class ClipGradient(Method):
    """Shortens every client's gradient g of every local step to a norm of at most ``max_norm``, so that no client diverges.

    ::

        g <- g min(1, max_norm / ||g||)

    It clips the gradient after the changes of methods listed before it: list it after SCAFFOLD to clip the corrected gradient.

    Pascanu et al., On the Difficulty of Training Recurrent Neural Networks, ICML 2013, https://arxiv.org/abs/1211.5063. The codes
    of FedDyn, FedDC and FedExP clip at 10.

    Args:
        max_norm: the bound, > 0.

    Example:
        >>> ClipGradient(max_norm=1.0).max_norm
        1.0
    """

    max_norm: float = 10.0

    def __post_init__(self) -> None:
        super().__post_init__()
        positive(self, "max_norm")

    def correct_gradient(self, gradient: Params, params: Params, ctx: Context) -> Params:
        return clip(gradient, self.max_norm)
