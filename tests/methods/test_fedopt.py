"""FedAdagrad, FedAdam and FedYogi against their paper, and the arguments that they refuse."""

from functools import partial

from contracts.case import Case, Refusals
from reference import fedopt

from flcog.callbacks import FedAdagrad, FedAdam, FedYogi

ALMOST_ONE = 1 - 2**-53


CASES: dict[str, Case] = {
    # In the neutral settings the scale stays at tau, so a learning rate of 2 tau gives the step of FedAvg.
    "FedAdagrad": Case(
        FedAdagrad(lr=0.05, beta1=0.3, tau=0.01),
        partial(fedopt.run, form="adagrad", lr=0.05, beta1=0.3, tau=0.01),
        neutral=FedAdagrad(lr=2e9, beta1=0.0, tau=1e9),
    ),
    "FedAdam": Case(
        FedAdam(lr=0.02, beta1=0.8, beta2=0.9, tau=0.01),
        partial(fedopt.run, form="adam", lr=0.02, beta1=0.8, beta2=0.9, tau=0.01),
        neutral=FedAdam(lr=2.0, beta1=0.0, beta2=ALMOST_ONE, tau=1.0),
    ),
    "FedYogi": Case(
        FedYogi(lr=0.02, beta1=0.8, beta2=0.9, tau=0.1),
        partial(fedopt.run, form="yogi", lr=0.02, beta1=0.8, beta2=0.9, tau=0.1),
        neutral=FedYogi(lr=2.0, beta1=0.0, beta2=ALMOST_ONE, tau=1.0),
    ),
}


REFUSED: Refusals = {
    FedAdagrad: [
        ({"tau": 0.0}, "tau must be positive; got 0.0"),
    ],
    FedAdam: [
        ({"lr": 0.0}, "lr must be positive; got 0.0"),
    ],
    FedYogi: [
        ({"beta1": -0.1}, "beta1 must lie in [0, 1); got -0.1"),
    ],
}
