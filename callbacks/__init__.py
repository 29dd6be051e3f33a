"""Federated methods and observers, to be listed in ``FederatedTrainer(callbacks=[...])`` in the order in which they act."""

from flcog.callbacks.fedavgm import FedAvgM
from flcog.callbacks.fedprox import FedProx
from flcog.callbacks.scaffold import SCAFFOLD
from flcog.observers import Checkpoint

__all__ = [
    "SCAFFOLD",
    "Checkpoint",
    "FedAvgM",
    "FedProx",
]
