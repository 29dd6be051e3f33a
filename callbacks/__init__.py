"""Federated methods and observers, to be listed in ``FederatedTrainer(callbacks=[...])`` in the order in which they act."""

from flcog.callbacks.client_dropout import ClientDropout
from flcog.callbacks.clip_gradient import ClipGradient
from flcog.callbacks.equal_weights import EqualWeights
from flcog.callbacks.fedavgm import FedAvgM
from flcog.callbacks.feddisco import FedDisco
from flcog.callbacks.feddyn import FedDyn
from flcog.callbacks.fednova import FedNova
from flcog.callbacks.fedopt import FedAdagrad, FedAdam, FedYogi
from flcog.callbacks.fedprox import FedProx
from flcog.callbacks.fedsam import FedSAM
from flcog.callbacks.scaffold import SCAFFOLD
from flcog.callbacks.stragglers import Stragglers
from flcog.observers import Checkpoint

__all__ = [
    "SCAFFOLD",
    "Checkpoint",
    "ClientDropout",
    "ClipGradient",
    "EqualWeights",
    "FedAdagrad",
    "FedAdam",
    "FedAvgM",
    "FedDisco",
    "FedDyn",
    "FedNova",
    "FedProx",
    "FedSAM",
    "FedYogi",
    "Stragglers",
]
