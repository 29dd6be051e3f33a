"""Label counts of all clients at once, and the divergence (KL) of each client's labels from the uniform distribution."""

import numpy as np
from scipy import sparse

from flcog.data import Federation, Partition

MOST_LABELS = 100
"""Data with more labels have no column of counts for each of them."""

BLOCK = 2**22
"""The number of samples that are counted at a time, which bounds the memory."""


def label_table(federation: Federation, partition: Partition | None = None) -> sparse.csr_array:
    """Count the samples of each client and label: ``Federation.label_counts`` of all clients at once, sparse [K, C].

    Memory and time depend on the number of samples, not on the number of clients times labels.

    Args:
        federation: the clients.
        partition: another partition of the training set, such as ``federation.client_test``.
    """
    partition = partition or federation.partition
    shape = (partition.num_clients, federation.num_classes)
    counts = sparse.csr_array(shape, dtype=np.int64)
    # A copy of all rows would double the memory of the targets of 1,628 labels.
    block = max(1, BLOCK // 64) if federation.task == "multilabel" else BLOCK
    for first in range(0, len(partition.indices), block):
        offsets = partition.offsets.clip(first, first + block)
        client = np.repeat(np.arange(partition.num_clients), np.diff(offsets))
        position, label = _labels_of(federation, partition.indices[first : first + block])
        counts += sparse.coo_array((np.ones(len(label), dtype=np.int64), (client[position], label)), shape=shape).tocsr()
    return counts


def num_labels(federation: Federation) -> int:
    """The labels that samples can have; for a regression the bins that exist, which equal targets make fewer than ``num_classes``."""
    return len(federation.bin_edges) + 1 if federation.task == "regression" else federation.num_classes


def kl_to_uniform(counts: sparse.csr_array) -> np.ndarray:
    """KL(D_k || uniform) = log C + sum_c p_kc log p_kc of each row, in nats: 0 if labels are balanced, log C for a single label.

    This is FedDisco's discrepancy (https://arxiv.org/abs/2305.19229). It is NaN for a client without labels.
    """
    total = counts.sum(axis=1)
    share = counts.data / np.repeat(total, np.diff(counts.indptr))
    p_log_p = sparse.csr_array((share * np.log(share), counts.indices, counts.indptr), shape=counts.shape)
    # Rounding errors make it -1e-16 for balanced clients.
    return np.where(total > 0, np.maximum(0, np.log(counts.shape[1]) + p_log_p.sum(axis=1)), np.nan)


def _labels_of(federation: Federation, indices: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Pairs of a position in ``indices`` and a label. A sample with several labels appears once for each of them."""
    targets = federation.train.labels.cpu()
    if federation.task == "multilabel":
        position, label = np.nonzero(targets.numpy()[indices])
        return position, label
    if federation.task == "regression":
        label = np.searchsorted(federation.bin_edges.cpu().numpy(), federation.values.cpu().numpy()[indices])
    else:
        label = targets.numpy()[indices]
    return np.arange(len(indices)), label
