"""How many rounds shuffling saves on quadratics, counted and by Fedssyn's theory.

    python studies/shuffling_study.py

Section 2.3 and appendix A.3.2 of https://arxiv.org/abs/2306.13263: step sizes are tuned for each fraction.
"""

import math
from argparse import ArgumentParser, Namespace
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from quadratic_problem import Problem

from flcog.core.checks import at_least, positive
from flcog.core.files import write_figure, write_table
from flcog.datamodules import Natural, Quadratics, Shuffled


def problem_of(data: Quadratics, local_steps: int, start: float) -> Problem:
    """The clients of a data module as its partitioner made them."""
    return Problem(
        data.curvatures.numpy(), data.client_optima.numpy(), local_steps, np.full(data.dimension, start, dtype=np.float64)
    )


def fit_line(targets: np.ndarray, rounds: np.ndarray) -> tuple[float, float]:
    """A and B of R = A / sqrt(target) + B, by least squares.

    >>> targets = np.array([0.01, 0.04, 0.16])
    >>> [round(value, 9) for value in fit_line(targets, 3 / np.sqrt(targets) + 5)]
    [3.0, 5.0]
    """
    slope, constant = np.polyfit(1 / np.sqrt(targets), rounds, 1)
    return float(slope), float(constant)


@dataclass(frozen=True)
class Row:
    """The effect of shuffling a fraction p, counted and by the theory.

    Args:
        p: the fraction.
        smoothness: L_p, (1-p) L_max + p L_avg.
        zeta: measured gradient dissimilarity at the optimum, unsquared.
        zeta_theory: (1-p) zeta.
        lr: the best step size.
        rounds: the counted rounds with that step size.
        rounds_theory: A_p / sqrt(target) + B, where A_p / A_0 = (1-p) sqrt(L_p / L_max), and A_0 and B are fitted at p = 0; at
            least 1, because the line falls below 1 for p near 1.
        rounds_fixed_l: the same without the change of L.
        ratio: A_p / A_0, each fitted.
        ratio_theory: (1-p) sqrt(L_p / L_max).
        ratio_drift: the same ratio by :attr:`Problem.drift`. If that drift limits the step size, it determines the rounds. The
            drift is a covariance of the clients' curvatures and gradients. Shuffling shrinks *both* by 1 - p, so the drift falls
            faster than any bound by L and zeta.
    """

    p: float
    smoothness: float
    zeta: float
    zeta_theory: float
    lr: float
    rounds: float
    rounds_theory: float
    rounds_fixed_l: float
    ratio: float
    ratio_theory: float
    ratio_drift: float


def study(shares: list[float], target: float, local_steps: int, start: float, **data: Any) -> list[Row]:
    """Rounds to the target for each shuffled fraction; the first must be 0."""
    targets = target * np.geomspace(1, 4, 9)
    rows: list[Row] = []
    base = Quadratics(**data)
    largest, mean, zeta = base.curvatures.max().item(), base.curvatures.mean().item(), math.sqrt(base.dissimilarity)
    slope_at_0 = constant = drift_at_0 = math.nan
    for p in shares:
        shuffled = Quadratics(**data, partitioner=Shuffled(p, Natural())) if p else base
        problem = problem_of(shuffled, local_steps, start)
        rounds, rates = problem.tuned(targets)
        if not np.isfinite(rounds).all():
            raise ValueError(
                f"no step size reaches {target:g} with {p:.0%} shuffled: raise --target, or lower --zeta or --local-steps"
            )
        slope, offset = fit_line(targets, rounds)
        if not rows:
            if rounds[0] == rounds[-1]:
                raise ValueError(
                    f"--target {target:g} is reached after {rounds[0]:g} rounds, and so is four times that: lower it"
                )
            slope_at_0, constant, drift_at_0 = slope, offset, problem.drift
        smoothness = (1 - p) * largest + p * mean
        ratio = (1 - p) * math.sqrt(smoothness / largest)
        rows.append(
            Row(
                p=p,
                smoothness=smoothness,
                zeta=math.sqrt(shuffled.dissimilarity),
                zeta_theory=(1 - p) * zeta,
                lr=float(rates[0]),
                rounds=float(rounds[0]),
                rounds_theory=max(1.0, slope_at_0 * ratio / math.sqrt(target) + constant),
                rounds_fixed_l=max(1.0, slope_at_0 * (1 - p) / math.sqrt(target) + constant),
                ratio=slope / slope_at_0,
                ratio_theory=ratio,
                ratio_drift=problem.drift / drift_at_0,
            )
        )
    return rows


def noisy_errors(data: Quadratics, lr: float, local_steps: int, rounds: int, start: float, seed: int) -> np.ndarray:
    """||x - x*||^2 after each round of FedAvg with steps on the gradient of one random sample of the client: [rounds + 1]."""
    rng, pairs = np.random.default_rng(seed), data._clients
    slopes = np.stack([a.numpy() for a, _ in pairs])
    values = np.stack([b.numpy() for _, b in pairs])
    optimum, clients = data.optimum.numpy(), np.arange(len(slopes))
    x = np.full(values.shape[2], start, dtype=np.float64)
    errors = [float(((x - optimum) ** 2).sum())]
    for _ in range(rounds):
        local = np.repeat(x[None], len(slopes), 0)
        for drawn in rng.integers(slopes.shape[1], size=(local_steps, len(slopes))):
            a, b = slopes[clients, drawn][:, None], values[clients, drawn]
            local -= lr * a * (a * local - b)
        x = local.mean(0)
        errors.append(float(((x - optimum) ** 2).sum()))
    return np.array(errors)


def main(arguments: list[str] | None = None) -> None:
    """Count the rounds that shuffling a part of the clients' samples saves, and compare with the theory."""
    given = _parser().parse_args(arguments)
    _check(given)
    shares = sorted({0.0, *given.p})
    data = {
        "num_clients": given.clients,
        "dimension": given.dimension,
        "samples_per_client": given.samples,
        "zeta": given.zeta,
        "seed": given.seed,
        "partition_seed": given.seed,
    }
    rows = study(shares, given.target, given.local_steps, given.start, sigma=0.0, **data)
    _print_rounds(given, rows)
    curves: dict[tuple[float, float], np.ndarray] = {}
    for sigma in (0.0, given.sigma) if given.sigma else ():
        for p in shares:
            problem = Quadratics(**data, sigma=sigma, partitioner=Shuffled(p, Natural()))
            curves[sigma, p] = noisy_errors(
                problem, given.noise_lr, given.local_steps, given.noise_rounds, given.start, given.seed
            )
    if curves:
        _print_noise(given, shares, curves)
    _write(Path(given.out), rows, curves)


def _parser() -> ArgumentParser:
    parser = ArgumentParser(description=main.__doc__)
    parser.add_argument("--p", type=float, nargs="+", default=[0, 0.1, 0.2, 0.4, 0.6, 0.8, 1.0], help="shuffled fractions")
    parser.add_argument("--clients", type=int, default=10, help="n, at least 2")
    parser.add_argument("--dimension", type=int, default=25, help="d")
    parser.add_argument("--samples", type=int, default=100, help="samples of each client, n_i")
    parser.add_argument("--zeta", type=float, default=10.0, help="how far the clients differ, above 0")
    parser.add_argument("--sigma", type=float, default=1000**0.5, help="noise of the second part; 0 leaves it out")
    parser.add_argument("--local-steps", type=int, default=10, help="tau")
    parser.add_argument("--target", type=float, default=1.1e-6, help="squared distance to the optimum")
    parser.add_argument("--start", type=float, default=1.0, help="every coordinate of x_0")
    parser.add_argument("--noise-rounds", type=int, default=300, help="rounds of the second part")
    parser.add_argument("--noise-lr", type=float, default=1e-3, help="step size of the second part")
    parser.add_argument("--seed", type=int, default=0, help="seed of samples and shuffling")
    parser.add_argument("--out", default="runs/shuffling-study", help="folder for the tables and the figure")
    return parser


def _check(given: Namespace) -> None:
    if not all(0 <= p <= 1 for p in given.p):
        raise ValueError(f"--p takes fractions from 0 to 1; got {given.p}")
    at_least(None, 2, hint="a single client has no other to exchange samples with", **{"--clients": given.clients})
    names = ("dimension", "samples", "zeta", "local_steps", "target", "noise_rounds", "noise_lr")
    positive(None, **{f"--{name.replace('_', '-')}": getattr(given, name) for name in names})


def _print_rounds(given: Namespace, rows: list[Row]) -> None:
    print(f"rounds to ||x - x*||^2 <= {given.target:g}, {given.clients} clients, {given.local_steps} local steps, no noise")
    print("    p     L_p    zeta  (1-p)zeta   rounds  theory  theory, L fixed  A_p/A_0  theory   drift")
    for row in rows:
        print(
            f"{row.p:5.2f} {row.smoothness:7.1f} {row.zeta:7.4f} {row.zeta_theory:10.4f} {row.rounds:8.0f} {row.rounds_theory:7.0f} "
            f"{row.rounds_fixed_l:16.0f} {row.ratio:8.3f} {row.ratio_theory:7.3f} "
            f"{row.ratio_drift:7.3f}"
        )


def _print_noise(given: Namespace, shares: list[float], curves: dict[tuple[float, float], np.ndarray]) -> None:
    print(f"squared distance left after {given.noise_rounds} rounds of one-sample gradients, step size {given.noise_lr:g}")
    print("    p " + "".join(f"   sigma^2 = {sigma**2:<8g}" for sigma in (0.0, given.sigma)))
    for p in shares:
        print(f"{p:5.2f} " + "".join(f"   {curves[sigma, p][-20:].mean():<18.3e}" for sigma in (0.0, given.sigma)))


def _write(out: Path, rows: list[Row], curves: dict[tuple[float, float], np.ndarray]) -> None:
    remedy = "free space or choose another --out"
    write_table(out / "rounds.csv", [asdict(row) for row in rows], remedy=remedy)
    if curves:
        table = [
            {"sigma2": sigma**2, "p": p, "round": i, "error": e}
            for (sigma, p), errors in curves.items()
            for i, e in enumerate(errors)
        ]
        write_table(out / "noise.csv", table, remedy=remedy)
    write_figure(out / "figure.png", study_figure(rows, curves), remedy=remedy, bbox_inches="tight")
    print(f"tables and figure are in {out}")


def study_figure(rows: list[Row], curves: dict[tuple[float, float], np.ndarray]) -> Figure:
    """Counted and predicted rounds, the ratio of coefficients, and the errors under noise."""
    sigmas = sorted({sigma for sigma, _ in curves})
    figure = Figure(figsize=(4 * (2 + len(sigmas)), 3.2), layout="constrained")
    axes = figure.subplots(1, 2 + len(sigmas))
    p = [row.p for row in rows]
    axes[0].plot(p, [row.rounds for row in rows], "o-", label="counted")
    axes[0].plot(p, [row.rounds_theory for row in rows], "s--", label="theory with $L_p$")
    axes[0].plot(p, [row.rounds_fixed_l for row in rows], ":", label="theory, $L$ fixed")
    axes[0].set(xlabel="p", ylabel="rounds to the target")
    axes[1].plot(p, [row.ratio for row in rows], "o-", label="fitted")
    axes[1].plot(p, [row.ratio_theory for row in rows], "s--", label=r"$(1-p)\sqrt{L_p/L_{max}}$")
    axes[1].plot(p, [row.ratio_drift for row in rows], "^:", label="drift of the fixed point")
    axes[1].set(xlabel="p", ylabel="$A_p / A_0$")
    for i, sigma in enumerate(sigmas):
        for (other, share), errors in curves.items():
            if other == sigma:
                axes[2 + i].plot(errors, label=f"p = {share:g}")
        axes[2 + i].set(xlabel="round", ylabel="$||x - x^*||^2$", yscale="log", title=f"$\\sigma^2 = {sigma**2:g}$")
    for axis in axes:
        axis.legend(fontsize=7)
    return figure


if __name__ == "__main__":
    main()
