"""FedAvgM in its three forms, and the arguments that it refuses."""

from functools import partial

from contracts.case import Case, Refusals
from reference import fedavgm

from flcog.callbacks import FedAvgM, FedAvgMInFedCOG, FedAvgMInFedDisco

CASES: dict[str, Case] = {
    "FedAvgM": Case(FedAvgM(beta=0.6, lr=0.8), partial(fedavgm.run, beta=0.6, lr=0.8), neutral=FedAvgM(beta=0.0)),
    "FedAvgM-fedcog": Case(
        FedAvgMInFedCOG(beta=0.6),
        partial(fedavgm.run, beta=0.6, form="fedcog"),
        neutral=FedAvgMInFedCOG(beta=0.0),
    ),
    "FedAvgM-feddisco": Case(
        FedAvgMInFedDisco(beta=0.6),
        partial(fedavgm.run, beta=0.6, form="feddisco"),
        neutral=FedAvgMInFedDisco(beta=0.0),
    ),
}


REFUSED: Refusals = {
    FedAvgM: [
        ({"beta": 1.0}, "beta must lie in [0, 1); got 1.0"),
    ],
}
