"""SCAFFOLD against its paper, and the arguments that it refuses."""

from functools import partial

from contracts.case import Case, Refusals
from harness import MOMENTUM, RAGGED
from reference import scaffold

from flcog.callbacks import SCAFFOLD, SCAFFOLDInFedDisco

CASES: dict[str, Case] = {
    "SCAFFOLD": Case(SCAFFOLD(), scaffold.run),
    "SCAFFOLD-momentum": Case(
        SCAFFOLD(server_lr=0.7), partial(scaffold.run, server_lr=0.7, momentum=0.9), optimizer=MOMENTUM, options=RAGGED
    ),
    "SCAFFOLD-feddisco": Case(SCAFFOLDInFedDisco(), scaffold.run_feddisco, optimizer=MOMENTUM, options=RAGGED),
}


REFUSED: Refusals = {
    SCAFFOLD: [
        ({"server_lr": 0.0}, "server_lr must be positive; got 0.0"),
    ],
}
