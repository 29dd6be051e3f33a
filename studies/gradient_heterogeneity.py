"""GradientHeterogeneity: an observer that measures the noise of clients' gradients and their differences between clients.

PYTHONPATH=studies flcog fit -c studies/fedssyn-quadratics -c studies/gradient_heterogeneity.yaml
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from flcog.callbacks.fedssyn.shuffling import SampleExchange
from flcog.client_module import ClientModule
from flcog.core.checks import at_least
from flcog.core.precision import float64_device, to_float64_device
from flcog.core.randomness import fold, sample_without_replacement
from flcog.core.trees import Tree, map_leaves
from flcog.data import Partition
from flcog.functional.model_function import forward
from flcog.method import Callback, Run


class Moments(NamedTuple):
    """The gradients of a set of samples: their mean [d], their mean squared norm, and the number of samples."""

    mean: Tensor
    square: float
    num_samples: int

    @property
    def noise(self) -> float:
        """E || g - E g ||^2."""
        # Rounding may leave a variance of 0 slightly negative.
        return max(0.0, self.square - float(self.mean.square().sum()))


def mixture(first: Moments, second: Moments, p: float) -> Moments:
    """The moments of a draw that comes from ``second`` with probability p.

    >>> a, b = Moments(torch.zeros(1), 1.0, 9), Moments(torch.ones(1), 1.0, 1)
    >>> both = mixture(a, b, 0.5)
    >>> both.mean.item(), both.square, both.noise, both.num_samples
    (0.5, 1.0, 0.75, 10)
    """
    mean = (1 - p) * first.mean + p * second.mean
    return Moments(mean, (1 - p) * first.square + p * second.square, first.num_samples + second.num_samples)


def noise_bound(p: float, noise: float, shared_noise: float, dissimilarity: float, shift: float) -> float:
    """Lemma 1 of Fedssyn: (1-p) sigma^2 + p sigma~_avg^2 + p (1-p) zeta^2 + p (1-p) delta^2.

    >>> noise_bound(0.5, 4.0, 2.0, 8.0, 4.0)
    6.0
    """
    return (1 - p) * noise + p * shared_noise + p * (1 - p) * (dissimilarity + shift)


class GradientHeterogeneity(Callback):
    """Adds the constants of the convergence theory to a round's row, measured at the server's model x.

    With g_i the gradient of client i's loss, averaged over its data D_i, and bars for means over the N clients, in columns
    ``heterogeneity/...``::

        noise          1/N sum_i E || grad F(x, xi) - g_i ||^2                           sigma^2
        dissimilarity  1/N sum_i || g_i - g_bar ||^2                                      zeta^2

    If clients exchanged data before the first round (:class:`Fedssyn`), these two measure the data after the exchange, and there
    are also::

        noise_before, dissimilarity_before     measured on the clients' own data alone
        noise_shared                           measured on all exchanged data, D~: sigma~_avg^2
        shift                                  || g_bar - grad f(x, D~) ||^2: delta^2, with g_bar from the clients' own data
        p                                      the received part of a client's data, the clients' mean
        noise_bound                            (1-p) sigma^2 + p sigma~_avg^2 + p (1-p) (zeta^2 + delta^2)
        dissimilarity_bound                    (1-p)^2 zeta^2

    The bounds come from Lemma 1, in expectation over the part of D~ that each client receives, for clients with equal p.
    Dropout is off and BatchNorm uses its running statistics, so that each sample has a gradient of its own.

    Section 2 and appendix A.3.5 of Fedssyn, https://arxiv.org/abs/2306.13263.

    Args:
        every_n_rounds: rounds between measurements, >= 1; only evaluated rounds count.
        max_samples: largest number of samples used of each client's own data, and of its received data, drawn once; None for all.
            With m samples of a client, zeta^2 is overestimated by about sigma^2 / m.
        chunk_size: gradients in memory at once, >= 1.

    Example:
        >>> GradientHeterogeneity(every_n_rounds=5).max_samples
        500
    """

    def __init__(self, every_n_rounds: int = 1, max_samples: int | None = 500, chunk_size: int = 32) -> None:
        at_least(self, 1, every_n_rounds=every_n_rounds, max_samples=max_samples, chunk_size=chunk_size)
        self.every_n_rounds, self.max_samples, self.chunk_size = every_n_rounds, max_samples, chunk_size

    def on_fit_start(self, run: Run) -> None:
        if not isinstance(run.model.module, ClientModule):
            raise ValueError(
                "GradientHeterogeneity needs the loss of each sample, which a plain LightningModule does not provide: use a "
                "flcog.ClientModule, or remove it"
            )

    def on_evaluation_end(self, run: Run, round: int, metrics: dict[str, float]) -> None:
        if round % self.every_n_rounds == 0:
            figures = measure(run, self.max_samples, self.chunk_size)
            metrics |= {f"heterogeneity/{name}": value for name, value in figures.items()}


def measure(run: Run, max_samples: int | None = None, chunk_size: int = 32) -> dict[str, float]:
    """The values of :class:`GradientHeterogeneity` at the run's present model. Every process calls it."""
    exchanges = (run.method_record(method.name).exchange for method in run.methods)
    exchange = next((exchange for exchange in exchanges if isinstance(exchange, SampleExchange)), None)
    means, scalars = _sums(run, exchange, max_samples, chunk_size)

    def dissimilarity(name: str) -> float:
        # Rounding may leave a squared distance of 0 slightly negative.
        return max(0.0, scalars[f"{name}/length"] - float(means[name].square().sum()))

    figures = {"noise": scalars["present/noise"], "dissimilarity": dissimilarity("present")}
    if exchange is None or not scalars["shared/count"]:
        return figures
    total = scalars["shared/count"]
    shared = Moments(means["shared"] / total, scalars["shared/square"] / total, int(total))
    shift, p = float((means["before"] - shared.mean).square().sum()), scalars["p"]
    noise, before = scalars["before/noise"], dissimilarity("before")
    return figures | {
        "noise_before": noise,
        "dissimilarity_before": before,
        "noise_shared": shared.noise,
        "shift": shift,
        "p": p,
        "noise_bound": noise_bound(p, noise, shared.noise, before, shift),
        "dissimilarity_bound": (1 - p) ** 2 * before,
    }


SAMPLES = ("present", "before", "shared")
"""The samples that gradients are taken of: all that clients train on now, their own before an exchange, and received ones."""


def _sums(
    run: Run, exchange: SampleExchange | None, max_samples: int | None, chunk_size: int
) -> tuple[dict[str, Tensor], dict[str, float]]:
    """Sums over all clients: gradients by samples, and squares, counts and the mean share of received samples."""
    moments_of, size = _gradient_moments(run, chunk_size), sum(value.numel() for value in run.params.values())
    num_clients = run.federation.num_clients

    def moments(partition: Partition, client: int, purpose: str) -> Moments:
        rows = partition.client(client)
        if max_samples is not None and len(rows) > max_samples:
            key = fold(run.settings.seed, client, "gradient heterogeneity", purpose)
            rows = rows[sample_without_replacement(len(rows), max_samples, key)]
        return moments_of(rows)._replace(num_samples=len(partition.client(client)))

    means = {name: torch.zeros(size, dtype=torch.float64) for name in SAMPLES}
    scalars = {f"{name}/{figure}": 0.0 for name in SAMPLES for figure in ("noise", "length", "square", "count")} | {"p": 0.0}
    for client in range(run.processes.rank, num_clients, run.processes.count):
        if exchange is None:
            parts = {"present": moments(run.federation.partition, client, "own")}
        else:
            parts, p = _parts(exchange, client, moments)
            scalars["p"] += p / num_clients
        for name, part in parts.items():
            weight = part.num_samples if name == "shared" else 1 / num_clients
            means[name] += weight * part.mean.cpu()
            scalars[f"{name}/noise"] += weight * part.noise
            scalars[f"{name}/length"] += weight * float(part.mean.square().sum())
            scalars[f"{name}/square"] += weight * part.square
            scalars[f"{name}/count"] += part.num_samples
    together = torch.cat([*means.values(), torch.tensor(list(scalars.values()), dtype=torch.float64)])
    *rows, rest = run.processes.total(together.to(run.processes.device)).cpu().split([*map(len, means.values()), len(scalars)])
    return dict(zip(means, rows, strict=True)), dict(zip(scalars, rest.tolist(), strict=True))


def _parts(
    exchange: SampleExchange, client: int, moments: Callable[[Partition, int, str], Moments]
) -> tuple[dict[str, Moments], float]:
    """The moments of a client after an exchange, and the share of the received samples."""
    original = moments(exchange.before, client, "own")
    # Synthetic data are added to a client's own; after an exchange of real data, it has only a part of its own.
    whole = len(exchange.own.client(client)) == original.num_samples
    own = original if whole else moments(exchange.own, client, "kept")
    received, p = moments(exchange.received, client, "received"), float(exchange.shares[client])
    return {"before": original, "shared": received, "present": mixture(own, received, p)}, p


def _gradient_moments(run: Run, chunk_size: int) -> Callable[[np.ndarray], Moments]:
    """A function from rows of the training set to the moments of their gradients at the server's model."""
    model, buffers, device = run.model, run.buffers, run.processes.device
    params = {name: value.detach() for name, value in run.params.items()}

    def loss(params: dict[str, Tensor], inputs: Tree, targets: Tree) -> Tensor:
        inputs, targets = (map_leaves(lambda leaf: leaf[None], part) for part in (inputs, targets))
        outputs = model.frozen(params, buffers, forward, inputs)
        return model.module.per_example_loss(outputs, targets).sum()  # type: ignore[operator,union-attr]

    each = torch.func.vmap(torch.func.grad(loss), in_dims=(None, 0, 0))

    def moments(rows: np.ndarray) -> Moments:
        mean = torch.zeros(sum(value.numel() for value in params.values()), dtype=torch.float64, device=float64_device(device))
        square = 0.0
        if not len(rows):
            return Moments(mean, square, 0)  # if p = 1, a client has no own samples left, and their weight is 0
        for first in range(0, len(rows), chunk_size):
            gradients = each(params, *run.evaluator.reader.train(rows[first : first + chunk_size]))
            slopes = {name: to_float64_device(value) for name, value in gradients.items()}
            mean += torch.cat([slopes[name].flatten(1).sum(0, dtype=torch.float64) for name in params]) / len(rows)
            square += float(sum(slopes[name].square().sum(dtype=torch.float64) for name in params)) / len(rows)
        return Moments(mean, square, len(rows))

    return moments
