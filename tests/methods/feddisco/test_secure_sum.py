"""FedDisco's global label distribution is a sum of masked messages that hide the clients' label counts."""

import numpy as np
import torch
from harness import train
from scipy.stats import chisquare, kstest

from flcog.callbacks import FedDisco
from flcog.callbacks.feddisco import masked


def test_the_global_distribution_is_a_sum_that_hides_its_terms() -> None:
    trainer = train(FedDisco(target="global"), clients_per_round=8)
    assert trainer.run.engine.exchanges["FedDisco"].label_counts.tolist() == [14, 15, 51]
    counts = torch.stack([trainer.run.federation.label_counts(k) for k in range(8)]).long()
    messages = masked(counts, "secret")
    assert messages.sum(0).remainder(2**32).tolist() == [14, 15, 51] and not (messages == counts).any()
    # With the same masks and other counts, a client's two messages differ by the difference of its counts, and by nothing else.
    other = masked(counts.flip(0), "secret")
    assert torch.equal((messages - other) % 2**32, (counts - counts.flip(0)) % 2**32)


def test_messages_are_uniform_and_all_but_one_are_independent() -> None:
    messages = masked(torch.tensor([0, 1, 5])[:, None].expand(3, 50_000), "secret").double() / 2**32
    assert all(kstest(message, "uniform").pvalue > 1e-3 for message in messages.numpy())
    # Pairs of two clients' messages fill 4 x 4 cells equally.
    cells = (4 * messages[:2]).long()
    assert chisquare(np.bincount(4 * cells[0] + cells[1], minlength=16)).pvalue > 1e-3
    # Two clients share one mask a, and send D_1 + a and D_2 - a, as in appendix A.3 of the paper.
    one, two = masked(torch.tensor([[7], [9]]), "secret")
    assert (one - 7 + two - 9) % 2**32 == 0 and (one - 7) % 2**32 != 0
