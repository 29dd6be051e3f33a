"""Gaussian noise on a client's envelope and on the sums of a round, and its division between sums and counts."""

from collections.abc import Mapping, Sequence
from itertools import count
from typing import Any

from torch import Tensor
from torch.utils import _pytree as pytree

from flcog.callbacks.parts.noise import normal
from flcog.callbacks.privacy.banded_noise import BandedNoise
from flcog.callbacks.privacy.clipping import is_float
from flcog.method import Envelope, Normal


def noise_beside_counts(name: str, noise: float, groups: int, on_counts: float) -> float:
    """The multiplier of the noise on the clipped sums, larger than ``noise``, so that noisy counts of clients are paid for.

    Args:
        name: the method's.
        noise: the noise multiplier of sums and counts together, > 0.
        groups: the number of counts.
        on_counts: the standard deviation of the noise on each count, in clients.

    >>> round(noise_beside_counts("DPFedAvg", noise=1.0, groups=1, on_counts=5.0), 3)  # 0.99 ** -0.5
    1.005
    """
    left = noise**-2 - groups / (2 * on_counts) ** 2
    if left <= 0:
        least = noise * groups**0.5 / 2
        raise ValueError(
            f"{name}: count_noise must exceed {least:.3g} with a noise multiplier of {noise:.3g}, or the counts alone would "
            f"spend the budget; got {on_counts:.3g}: raise it, or set quantile to null"
        )
    return left**-0.5


def with_clients_noise(envelope: Envelope, std: Tensor, key: Tensor) -> Envelope:
    """A client's envelope with noise of its own key on all floating-point numbers except the measurements. *Pure.*"""
    place = count()

    def noised(value: Any) -> Any:
        if not is_float(value):
            return value
        return value + (std * normal(key, next(place), tuple(value.shape))).to(value.dtype)

    return pytree.tree_map(noised, envelope._replace(measured={}))._replace(measured=envelope.measured)


class NoiseOfRound:
    """Adds the server's noise to the sums of one round, and keeps it if later rounds subtract parts of it.

    Args:
        draw: draws normal numbers of a shape.
        banded: correlates the noise with that of earlier rounds; None for independent noise.
        past: the noise of earlier rounds, the latest first.
    """

    def __init__(self, draw: Normal, banded: BandedNoise | None, past: Sequence[Mapping[str, Tensor]]) -> None:
        self._draw, self._banded, self._past = draw, banded, past
        self.added: dict[str, Tensor] = {}

    def add(self, field: str, values: Any, std: float) -> Any:
        """The values of a field of the sums with noise of this standard deviation."""

        def noised(path: Any, value: Tensor) -> Tensor:
            drawn = self._draw(tuple(value.shape))
            if self._banded is not None:
                name = field + pytree.keystr(path)
                drawn = self.added[name] = self._banded.correlated(name, drawn, self._past)
            return value + std * drawn.to(value.device)

        return pytree.tree_map_with_path(noised, values)
