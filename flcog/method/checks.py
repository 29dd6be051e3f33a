"""Checks of a list of methods before a run: pairs that cannot work together, or whose result would be wrong."""

from collections.abc import Sequence
from math import inf

from flcog.method.aggregator import AggregationRule
from flcog.method.clock import AsynchronousRounds, Clock, Cutoff
from flcog.method.method import SERVER_HOOKS, Method
from flcog.method.personal import Personalisation
from flcog.method.private_sum import PrivateSum
from flcog.method.sealed_sum import SealedSum
from flcog.method.selection import AvailabilityModel, Selection
from flcog.method.stage import BroadcastStage, Stage

EXCLUSIVE_PROTOCOLS = {
    AsynchronousRounds: "take the next arrivals as a round",
    AggregationRule: "replace the mean of the clients' changes",
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
        for other in methods:
            if other is not method and (reason := _clash(method, other)) is not None:
                raise ValueError(f"{method.name} and {other.name} cannot be combined: {reason}. Remove one of them")
    for protocol, effect in EXCLUSIVE_PROTOCOLS.items():
        claimants = [method.name for method in methods if isinstance(method, protocol)]
        if len(claimants) > 1:
            raise ValueError(f"{' and '.join(claimants)} both {effect}: keep one of them")
    encoders = [method.name for method in methods if isinstance(method, Stage) and method.kind == "encode"]
    if len(encoders) > 1:
        raise ValueError(f"{' and '.join(encoders)} both encode what clients send: keep one, or nest one as the other's values")


def _clash(method: Method, other: Method) -> str | None:
    """The reason why two methods cannot run together, as far as it follows from what the first one is."""
    named = [method.excludes[base.__name__] for base in type(other).__mro__ if base.__name__ in method.excludes]
    if named:
        return named[0]
    at_server = other.individual_uploads or isinstance(other, BroadcastStage | SealedSum)
    if not method.communicates and (at_server or any(map(other.overrides, SERVER_HOOKS))):
        return f"with {method.name} nothing is sent to a server, where {other.name} acts"
    if isinstance(method, BroadcastStage) and method.server_keeps_its_model and other.individual_uploads:
        return (
            f"the server keeps another model than clients receive, and {other.name} adds single clients' changes to the server's, unless "
            "error_feedback is false"
        )
    if isinstance(method, Selection) and method.weighs and other.overrides("weights") and _meet(method, other):
        return f"unbiased weights replace those of {other.name}, unless unbiased is false"
    if isinstance(method, SealedSum):
        return _beside_sealed(method, other)
    if isinstance(method, AsynchronousRounds):
        return _beside_asynchronous(method, other)
    return None


def _beside_sealed(sealer: SealedSum, other: Method) -> str | None:
    """The reason why a method needs more than sums over the clients."""
    if other.individual_uploads:
        return f"{other.name} reads single uploads, and {sealer.name} shows the server only their sum"
    if isinstance(other, Selection) and other.reads_losses:
        return f"{other.name} reads the losses of single clients, and {sealer.name} shows the server only their sum"
    if isinstance(other, Stage) and other.kind == "encode":
        return f"{other.name} encodes uploads, and encoded uploads cannot be added up without decoding each of them"
    return None


def _beside_asynchronous(method: AsynchronousRounds, other: Method) -> str | None:
    """The reason why a method needs rounds whose clients all start with them."""
    if other.overrides("weights"):
        return f"{other.name} has weights of its own, and {method.name} weighs clients by their staleness"
    if isinstance(other, Selection) and other.weighs:
        return (
            f"{method.name} weighs clients by their staleness, and {other.name} by their probabilities, unless unbiased is false"
        )
    if other.individual_uploads or isinstance(other, AggregationRule):
        return f"{other.name} combines uploads as if they began at one model"
    if isinstance(other, Cutoff):
        return f"{method.name} waits for no late clients"
    if isinstance(other, BroadcastStage) and method.rate is not None:
        return f"{other.name} encodes one broadcast for the clients of a round, which start one by one at a rate"
    return None


def _meet(method: Method, other: Method) -> bool:
    """Whether both act in some round."""
    ends = [inf if each.stop_round is None else each.stop_round for each in (method, other)]
    return max(method.start_round, other.start_round) < min(ends)
