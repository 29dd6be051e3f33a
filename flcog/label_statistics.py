"""Label counts of all clients at once, and the divergence (KL) of each client's labels from the uniform distribution."""

import numpy as np
from scipy import sparse

from flcog.data import Federation, Partition


def label_table(federation: Federation, partition: Partition | None = None) -> sparse.csr_array:
    """How many of each client's samples carry each label: ``Federation.label_counts`` of all clients at once, sparse [K, C].

    A million clients over a thousand labels cost what their samples' labels cost.

    Args:
        federation: the clients.
        partition: another partition of the training set, such as ``federation.client_test``.
    """
    partition = partition or federation.partition
    client = np.repeat(np.arange(partition.num_clients), partition.sizes)
    position, label = _labels_of(federation, partition.indices)
    counts = sparse.coo_array(
        (np.ones(len(label), dtype=np.int64), (client[position], label)), shape=(partition.num_clients, federation.num_classes)
    )
    return counts.tocsr()


def kl_to_uniform(counts: sparse.csr_array) -> np.ndarray:
    """KL(D_k || uniform) = log C + sum_c p_kc log p_kc of each row, in nats: 0 is balanced, log C is one label alone.

    FedDisco's discrepancy (https://arxiv.org/abs/2305.19229). NaN for a client without any label.
    """
    total = counts.sum(axis=1)
    share = counts.data / np.repeat(total, np.diff(counts.indptr))
    p_log_p = sparse.csr_array((share * np.log(share), counts.indices, counts.indptr), shape=counts.shape)
    # Rounding leaves -1e-16 for balanced clients.
    return np.where(total > 0, np.maximum(0, np.log(counts.shape[1]) + p_log_p.sum(axis=1)), np.nan)


def _labels_of(federation: Federation, indices: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Positions in ``indices`` and a label each; a multi-label sample comes once per label."""
    targets = federation.train.labels.cpu()
    if federation.task == "multilabel":
        # In blocks: a copy of all rows at once would double what the targets of 1,628 labels take.
        rows = range(0, len(indices), 2**16)
        found = [np.nonzero(targets.numpy()[indices[row : row + 2**16]]) for row in rows]
        position = np.concatenate([row + part[0] for row, part in zip(rows, found, strict=True)] or [np.zeros(0, np.int64)])
        return position, np.concatenate([part[1] for part in found] or [np.zeros(0, np.int64)])
    if federation.task == "regression":
        label = np.searchsorted(federation.bin_edges.cpu().numpy(), federation.values.cpu().numpy()[indices])
    else:
        label = targets.numpy()[indices]
    return np.arange(len(indices)), label
