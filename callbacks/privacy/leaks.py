"""Everything that a private training refuses or withholds because it tells more of the clients than the noisy sums do."""

from collections.abc import Callable, Mapping, Sequence
from fnmatch import fnmatch

from flcog.method import DataExchange, Method, SealedSum, method_of

LATE = "it leaves out clients that are later than others, so that one client can move another out of the sum"

EXCLUDED: Mapping[str, str] = {
    "Aggregator": "its result is no sum, so that one client can change it by more than a client's bound",
    "AsynchronousRounds": LATE,
    "Cutoff": LATE,
    "BroadcastStage": "it leaves out rounds without clients, and so tells of the cohort, which is secret",
    "AvailabilityModel": "who is available is known, and cohorts must be secret",
}
"""Classes of methods that cannot run with a private sum, each with the leak."""

REFUSED: Mapping[str, Callable[[Method], bool]] = {
    "the server reads the uploads of single clients, which have no noise": lambda method: method.individual_uploads,
    "it weights clients by the other clients of the round or by their reports, so that one client changes every weight": (
        lambda method: method.overrides("weights")
    ),
    "its clients exchange data before round 1, without noise": lambda method: (
        isinstance(method, DataExchange) and method.exchanges_data
    ),
    "its step size depends on the size of the cohort, which is secret: set form to paper": (
        lambda method: method.name == "FedExP" and getattr(method, "form", None) == "code"
    ),
}
"""What other methods must not do beside a private sum, each by the sentence that names the leak."""

OF_SAMPLES: Mapping[str, tuple[str, ...]] = {
    "the training loss, and everything else that clients measure in training, has no noise": ("train/*",),
    "they measure the model on the clients' training samples, without noise": ("training/*", "heterogeneity/*"),
    "they depend on clients' numbers of samples of each class, which have no noise": (
        "labels/*",
        "local/reweighted_*",
        *(f"test/class_accuracy_{group}" for group in ("head", "middle", "tail")),
    ),
    "scores on clients' own held-out samples have no noise": ("*/client_*", "*/personal_*"),
    "a validation on clients' samples has no noise; a best checkpoint may only be selected on public data": ("clients_val/*",),
}
"""Columns that depend on single samples beyond the trained model, by the sentence that names the leak. An asterisk stands for any text."""

WITHHELD: Mapping[str, tuple[str, ...]] = {
    **OF_SAMPLES,
    "the length and the direction of clients' changes have no noise": ("drift/*",),
    "the number of clients that took part, were lost or sent NaN tells of the cohort, which must be secret": ("clients/*",),
    "bytes grow with the cohort": ("comm/*",),
    "so does the time of a round": ("time/*",),
}
"""Columns that a run with a private sum leaves out of its metrics, in the same form."""


def check_beside(name: str, methods: Sequence[Method], noise_at: str) -> None:
    """Refuse methods that leak beside the private method of this name."""
    for reason, leaks in REFUSED.items():
        if (method := next(filter(leaks, methods), None)) is not None:
            raise ValueError(f"{name} and {method.name} cannot be combined: {reason}. Remove one of them")
    if (sealer := method_of(methods, SealedSum)) is not None and noise_at == "server":
        raise ValueError(
            f"{name} and {sealer.name} cannot be combined: a server that adds the noise has read the sum without it. Set noise_at "
            "to clients"
        )


def is_withheld(column: str, columns: Mapping[str, tuple[str, ...]] = WITHHELD) -> bool:
    """Whether a column is among those that are left out.

    >>> is_withheld("train/loss"), is_withheld("test/accuracy"), is_withheld("test/client_accuracy_mean")
    (True, False, True)
    """
    return any(fnmatch(column, pattern) for patterns in columns.values() for pattern in patterns)
