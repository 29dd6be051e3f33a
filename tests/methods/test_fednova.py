"""FedNova against its paper, with and without momentum."""

from functools import partial

from contracts.case import Case
from harness import MOMENTUM, RAGGED
from reference import fednova

from flcog.callbacks import FedNova

CASES: dict[str, Case] = {
    "FedNova": Case(FedNova(), fednova.run, options=RAGGED),
    "FedNova-momentum": Case(FedNova(), partial(fednova.run, momentum=0.9), optimizer=MOMENTUM, options=RAGGED),
}
