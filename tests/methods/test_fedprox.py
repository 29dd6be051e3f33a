"""FedProx against its paper, and the arguments that it refuses."""

from functools import partial

from contracts.case import Case, Refusals
from reference import fedprox

from flcog.callbacks import FedProx

CASES: dict[str, Case] = {
    "FedProx": Case(FedProx(mu=0.5), partial(fedprox.run, mu=0.5), neutral=FedProx(mu=0.0)),
}


REFUSED: Refusals = {
    FedProx: [
        ({"mu": -1.0}, "mu must be at least 0; got -1.0"),
    ],
}
