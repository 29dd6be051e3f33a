"""FedNova against its paper, with and without momentum, and in the form of FedDisco's code."""

from functools import partial

from contracts.case import Case, Refusals
from harness import MOMENTUM, RAGGED
from reference import fednova

from flcog.callbacks import FedNova, FedNovaInFedDisco

CASES: dict[str, Case] = {
    "FedNova": Case(FedNova(), fednova.run, options=RAGGED),
    "FedNova-momentum": Case(FedNova(), partial(fednova.run, momentum=0.9), optimizer=MOMENTUM, options=RAGGED),
    "FedNova-feddisco": Case(
        FedNovaInFedDisco(batch_size=4),
        partial(fednova.run_feddisco, batch_size=4),
        optimizer=MOMENTUM,
        options=RAGGED,
    ),
}


REFUSED: Refusals = {
    FedNovaInFedDisco: [
        ({"batch_size": 0}, "batch_size must be at least 1; got 0"),
    ],
}
