"""The labels that a FedCOG client generates inputs for, and the number of inputs of each label."""

import torch
from torch import Tensor


def complement(counts: Tensor) -> Tensor:
    """Each label's lack of samples against the client's most frequent label, ``max(d) - d`` (A.1.1); ones if all are equal.

    >>> complement(torch.tensor([500, 0, 400, 200, 400]))
    tensor([  0, 500, 100, 300, 100])
    """
    missing = counts.max() - counts
    return missing if missing.any() else torch.ones_like(counts)


def allot(shares: Tensor, num_samples: int, rng: torch.Generator) -> Tensor:
    """``num_samples`` labels in proportion to the shares, in random order; the largest remainders are rounded up.

    >>> allot(torch.tensor([0, 500, 100, 300, 100]), 10, torch.Generator().manual_seed(0)).bincount()
    tensor([0, 5, 1, 3, 1])
    """
    exact = shares.double() * num_samples / shares.sum()
    # Among equal remainders the choice is random, so that every label gets its turn over the rounds.
    drawn = torch.randperm(len(shares), generator=rng)
    by_remainder = drawn[(exact.floor() - exact)[drawn].argsort(stable=True)]
    counts = exact.floor().long()
    counts[by_remainder[: num_samples - int(counts.sum())]] += 1
    return torch.arange(len(shares)).repeat_interleave(counts)[torch.randperm(num_samples, generator=rng)]
