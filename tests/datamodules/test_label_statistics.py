"""A federation counts its labels once and keeps the counts. A changed copy counts again."""

from dataclasses import replace

import numpy as np
import torch

from flcog.data import Federation, Partition, Samples


def federation_of(targets: torch.Tensor, task: str) -> Federation:
    partition = Partition.from_clients([np.array([0, 1]), np.array([2, 3])])
    return Federation(Samples(torch.zeros(len(targets), 1), targets), partition, task, 3, lambda inputs: inputs)  # type: ignore[arg-type]


def test_a_changed_copy_counts_anew() -> None:
    federation = federation_of(torch.tensor([0.0, 1.0, 2.0, 3.0]), "regression")
    before = federation.pooled_label_counts, federation.bin_edges
    changed = replace(federation, train=replace(federation.train, targets=torch.tensor([5.0, 5.0, 5.0, 9.0])))
    assert before[0].tolist() == [2, 1, 1] and changed.pooled_label_counts.tolist() == [3, 1, 0]
    assert changed.bin_edges.tolist() != before[1].tolist() and federation.bin_edges is before[1]
