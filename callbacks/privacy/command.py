"""The command ``flcog epsilon``: the privacy that a training spends, or the noise that keeps to a target."""

import argparse

from flcog.callbacks.privacy.accountant import Sampling, epsilons, noise_for
from flcog.core.commands import parser_of


def report(arguments: list[str]) -> None:
    """Print the epsilon of differential privacy after a training with noisy sums, or the noise for a target epsilon.

    >>> report("--clients 100 --rate 0.1 --rounds 10 --delta 1e-5 --noise 0".split())  # doctest: +ELLIPSIS
    no guarantee: without noise, epsilon is infinite
    of 10 rounds with delta 1e-05; ...
    """
    given = _parser().parse_args(arguments)
    sampling = Sampling(given.clients, given.rate, given.at_most, fixed_size=given.fixed_size, separation=given.separation)
    noise = given.noise
    if noise is None:
        noise = noise_for(sampling, given.target_epsilon, given.rounds, given.delta)
        print(f"noise multiplier {noise:.6g} meets the target epsilon {given.target_epsilon:g}")
    spent = epsilons(sampling, noise, given.rounds, given.delta)
    if not spent:
        print("no guarantee: without noise, epsilon is infinite")
    for name, epsilon in spent.items():
        print(f"epsilon {epsilon:.6g} by {name}")
    print(f"of {given.rounds} rounds with delta {given.delta:g}; {sampling}; hides whether {sampling.adjacency}")


def _parser() -> argparse.ArgumentParser:
    parser = parser_of("epsilon", report)
    parser.add_argument("--clients", type=int, required=True, help="the number of all clients")
    parser.add_argument(
        "--rate", type=float, required=True, help="the probability that a client takes part in a round, or the share of clients"
    )
    parser.add_argument("--rounds", type=int, required=True, help="the number of rounds")
    parser.add_argument(
        "--delta", type=float, required=True, help="the probability that the guarantee may fail, below 1 / clients"
    )
    either = parser.add_mutually_exclusive_group(required=True)
    either.add_argument(
        "--noise", type=float, help="the standard deviation of a round's noise over the largest norm of a client's vector"
    )
    either.add_argument("--target_epsilon", type=float, help="find the noise that keeps to this epsilon")
    parser.add_argument("--at_most", type=int, help="the largest number of clients in a round (truncated Poisson sampling)")
    parser.add_argument(
        "--fixed_size", action="store_true", help="the same number of clients in every round, drawn without replacement"
    )
    parser.add_argument(
        "--separation", type=int, help="the least distance in rounds between two participations of a client (BandedNoise)"
    )
    return parser
