"""The command ``flcog feddisco-bound``: the numerical simulation of FedDisco's Table 6."""

import argparse

import numpy as np
import torch

from flcog.callbacks.feddisco.bound import Bound
from flcog.callbacks.feddisco.feddisco import METRICS, discrepancy
from flcog.core.checks import at_least
from flcog.core.commands import parser_of
from flcog.data import Partitioner, Samples
from flcog.datamodules import Dirichlet


def clients(partitioner: Partitioner, num_clients: int, num_classes: int, num_samples: int, metric: str, seed: int) -> tuple:
    """Shares of the samples and discrepancies from uniform of the clients of a split of balanced classes.

    >>> shares, distances = clients(Dirichlet(1e6), 4, 10, 1000, "l2", seed=0)
    >>> bool(abs(shares - 0.25).max() < 0.01 and distances.max() < 0.01)
    True
    """
    labels = torch.arange(num_samples) % num_classes
    partition = partitioner(Samples(labels, labels), num_clients, seed)
    counts = [torch.bincount(labels[partition.client(k)], minlength=num_classes) for k in range(num_clients)]
    distances = np.array([discrepancy(count, torch.ones(num_classes), metric) for count in counts])
    if metric == "kl":
        distances /= max(distances.sum(), 1e-12)  # as in FedDisco's weights
    return partition.sizes / partition.sizes.sum(), distances


def minimise_bound(arguments: list[str]) -> None:
    """Minimise FedDisco's reformulated bound over the aggregation weights, and print the original (Theorem 4.5, Table 6)."""
    given = _parser().parse_args(arguments)
    at_least(None, 1, **{f"--{name}": getattr(given, name) for name in ("clients", "classes", "samples", "steps", "every")})
    n, d = clients(Dirichlet(given.beta), given.clients, given.classes, given.samples, given.metric, given.seed)
    bound = Bound(n, d, **{name: getattr(given, name) for name in ("tau", "eta", "L", "sigma", "B", "gap", "T")})
    weight = bound.original(n) if given.weight is None else given.weight
    path = bound.descend(n, weight, given.steps, given.lr)
    _print_descent(bound, path, weight, given.every)
    a, b = bound.coefficients(weight)
    print(f"\nlambda = {weight:.4g}, and eq. 2's a = {a:.4g} and b = {b:.4g}\n")
    print(f"{'client':>8}{'n':>10}{'d':>10}{'p':>10}")
    for k in range(given.clients):
        print(f"{k:>8}{n[k]:>10.4f}{d[k]:>10.4f}{path[-1][k]:>10.4f}")


def _parser() -> argparse.ArgumentParser:
    parser = parser_of("feddisco-bound", minimise_bound, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    parser.add_argument("--clients", type=int, default=10, help="number of clients")
    parser.add_argument("--beta", type=float, default=0.5, help="parameter of the Dirichlet split of balanced classes (NIID-1)")
    parser.add_argument("--classes", type=int, default=10, help="number of classes")
    parser.add_argument("--samples", type=int, default=50_000, help="size of the training set")
    parser.add_argument("--metric", choices=METRICS, default="kl", help="the discrepancy")
    parser.add_argument("--seed", type=int, default=0, help="seed of the split")
    for name, what in (
        ("tau", "local steps"),
        ("eta", "local learning rate"),
        ("L", "smoothness of the losses"),
        ("sigma", "noise of the gradients"),
        ("B", "dissimilarity for each unit of discrepancy"),
        ("gap", "initial loss above the minimum"),
        ("T", "rounds"),
    ):
        default = getattr(Bound, name)
        parser.add_argument(f"--{name}", type=type(default), default=default, help=what)
    parser.add_argument(
        "--lambda", dest="weight", type=float, help="lambda of the reformulation; by default the bound of FedAvg's weights"
    )
    parser.add_argument("--steps", type=int, default=400, help="steps of gradient descent")
    parser.add_argument("--every", type=int, default=100, help="steps between lines")
    parser.add_argument("--lr", type=float, default=0.01, help="step size of the descent, as a share of the inverse curvature")
    return parser


def _print_descent(bound: Bound, path: np.ndarray, weight: float, every: int) -> None:
    """Both bounds along the descent, at the closed form, and at the minimum of the original."""
    print(f"{'step':>8}{'reformulated':>14}{'original':>12}")
    steps = len(path) - 1
    for step in sorted({*range(0, steps + 1, every), steps}):
        print(f"{step:>8}{bound.reformulated(path[step], weight):>14.6f}{bound.original(path[step]):>12.6f}")
    closed, tightest = bound.minimiser(weight), bound.tightest()
    print(f"{'closed':>8}{bound.reformulated(closed, weight):>14.6f}{bound.original(closed):>12.6f}   eq. 54")
    print(f"{'least':>8}{bound.reformulated(tightest, weight):>14.6f}{bound.original(tightest):>12.6f}   of the original bound")
