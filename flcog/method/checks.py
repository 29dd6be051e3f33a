"""Checks of a list of methods before a run."""

from collections.abc import Sequence
from math import inf

from flcog.method.aggregator import Aggregator
from flcog.method.asynchrony import AsynchronousRounds
from flcog.method.availability import AvailabilityModel
from flcog.method.broadcast_stage import BroadcastStage
from flcog.method.clock import Clock, Cutoff
from flcog.method.mask import ParameterMask
from flcog.method.method import SERVER_HOOKS, Method
from flcog.method.personal import Personalisation
from flcog.method.private_sum import PrivateSum
from flcog.method.sealed_sum import SealedSum
from flcog.method.selection import Selection
from flcog.method.stage import ORDER, Stage

EXCLUSIVE_PROTOCOLS = {
    AsynchronousRounds: "take the next arrivals as a round",
    Aggregator: "replace the mean of the clients' changes",
    Selection: "select the clients of a round",
    AvailabilityModel: "decide which clients are available",
    Clock: "tell the time that clients take",
    BroadcastStage: "encode what the server sends",
    Personalisation: "give clients models of their own",
    PrivateSum: "add noise to the sums of a round",
}
"""Protocols that one method of a run may implement, with their effects."""


def check_methods(methods: Sequence[Method]) -> None:
    """Refuse a list of methods that cannot run together."""
    names = [method.name for method in methods]
    for name in names:
        if names.count(name) > 1:
            raise ValueError(f"{name} is listed {names.count(name)} times in callbacks: keep one of them")
    for method in methods:
        if isinstance(method, Stage) and (kind := getattr(method, "kind", None)) not in ORDER:
            raise ValueError(
                f'{method.name}.kind must be one of {", ".join(ORDER)}; got {kind}: set it in the class, as kind = "bound"'
            )
    for method in methods:
        for other in methods:
            if (reason := _clash(method, other)) is not None:
                raise ValueError(f"{method.name} and {other.name} cannot be combined: {reason}")
    for method in methods:
        if isinstance(method, SealedSum):
            _check_sealed(method, methods)
        if isinstance(method, AsynchronousRounds):
            _check_asynchronous(method, methods)
        if isinstance(method, Selection) and method.weighs:
            _check_weights(method, methods)
    _check_exclusive(methods)


def _clash(method: Method, other: Method) -> str | None:
    """The reason why two methods cannot run together, and a remedy, as far as the first one knows."""
    for base in type(other).__mro__:
        if base.__name__ in method.excludes:
            return f"{method.excludes[base.__name__]}. Remove one of them"
    at_server = other.individual_uploads or isinstance(other, BroadcastStage | SealedSum)
    if not method.communicates and (at_server or any(map(other.overrides, SERVER_HOOKS))):
        return f"with {method.name} nothing is sent to a server, where {other.name} acts. Remove one of them"
    partial = not method.communicates or isinstance(method, ParameterMask)
    if partial and method.overrides("init_client") and isinstance(other, Selection) and other.asks_losses:
        return (
            f"{other.name} compares the losses of the server's model, which with {method.name} are not those of the models that clients "
            f"keep. Replace {other.name} by a uniform selection, or by one that reads the losses of their training"
        )
    if isinstance(method, BroadcastStage) and method.server_keeps_its_model and other.individual_uploads:
        return (
            f"the server keeps another model than clients receive, and {other.name} adds single clients' changes to the server's. "
            "Set error_feedback to false, or remove one of them"
        )
    return None


def _check_exclusive(methods: Sequence[Method]) -> None:
    """Refuse two methods with a part that only one of a run can have."""
    for protocol, effect in EXCLUSIVE_PROTOCOLS.items():
        claimants = [method.name for method in methods if isinstance(method, protocol)]
        if len(claimants) > 1:
            raise ValueError(f"{' and '.join(claimants)} both {effect}: keep one of them")
    encoders = [method.name for method in methods if isinstance(method, Stage) and method.kind == "encode"]
    if len(encoders) > 1:
        raise ValueError(f"{' and '.join(encoders)} both encode what clients send: keep one, or nest one as the other's values")


def _check_sealed(sealer: SealedSum, methods: Sequence[Method]) -> None:
    """Refuse methods that need more than sums over the clients."""
    lossy = next((method.name for method in methods if method.allows_lost_replies), None)
    for other in methods:
        if other.individual_uploads:
            reason = f"{other.name} reads single uploads, and {sealer.name} shows the server only their sum"
        elif isinstance(other, Selection) and other.reads_losses:
            reason = f"{other.name} reads the losses of single clients, and {sealer.name} shows the server only their sum"
        elif isinstance(other, Stage) and other.kind == "encode":
            reason = f"{other.name} encodes uploads, and encoded uploads cannot be added up without decoding each of them"
        elif lossy is not None and other.overrides("weights"):
            reason = f"clients multiply by their weights before they send, and the weights of {other.name} change if {lossy} loses replies"
        else:
            continue
        raise ValueError(f"{sealer.name} and {other.name} cannot be combined: {reason}. Remove one of them")


def _check_asynchronous(method: AsynchronousRounds, methods: Sequence[Method]) -> None:
    """Refuse methods that assume that all clients of a round start with it."""
    for other in methods:
        reason = None
        if other.overrides("weights"):
            reason = f"{other.name} has weights of its own, and {method.name} weighs clients by their staleness"
        elif other.individual_uploads:
            reason = f"{other.name} reads single uploads as if they began at one model"
        elif isinstance(other, SealedSum):
            reason = f"clients multiply by their weights before they send, and their staleness is known when {method.name} receives them"
        elif isinstance(other, Aggregator):
            reason = f"{other.name} replaces the sum of the clients' weighted changes"
        elif isinstance(other, Cutoff):
            reason = f"{method.name} waits for no late clients"
        elif isinstance(other, BroadcastStage) and method.rate is not None:
            reason = f"{other.name} encodes one broadcast for the clients of a round, which start one by one at a rate"
        if reason is not None:
            raise ValueError(f"{method.name} and {other.name} cannot be combined: {reason}. Remove one of them")
        at_server = isinstance(other, Stage | BroadcastStage | ParameterMask) or any(
            map(other.overrides, ("broadcast", "server_step"))
        )
        if at_server and not (other.start_round <= method.start_round and _end(other) >= _end(method)):
            raise ValueError(
                f"{other.name} must act in all rounds of {method.name}, because clients arrive in later rounds than they start in: give "
                "both the same start_round and stop_round"
            )


def _check_weights(selection: Selection, methods: Sequence[Method]) -> None:
    """Refuse weights of methods in the rounds of a selection that has weights of its own."""
    for other in methods:
        together = other.start_round < _end(selection) and selection.start_round < _end(other)
        if together and other.overrides("weights"):
            raise ValueError(f"unbiased weights replace those of {other.name}: set unbiased to false, or remove {other.name}")
        if together and isinstance(other, AsynchronousRounds):
            raise ValueError(
                f"{other.name} weighs clients by their staleness, and {selection.name} by their probabilities: set unbiased to false"
            )


def _end(method: Method) -> float:
    return inf if method.stop_round is None else method.stop_round
