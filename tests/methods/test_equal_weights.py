"""EqualWeights gives all clients the same weight."""

from functools import partial

from contracts.case import Case
from reference import fedavg

from flcog.callbacks import EqualWeights

CASES: dict[str, Case] = {
    "EqualWeights": Case(EqualWeights(), partial(fedavg.run, uniform=True)),
}
