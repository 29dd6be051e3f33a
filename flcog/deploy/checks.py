"""Refuses methods and observers that a deployment cannot run."""

from collections.abc import Sequence

from flcog.method import AsynchronousRounds, Callback, Method, SealedSum, method_of
from flcog.run.hosting import check_separate
from flcog.run.observers.checkpoint import Checkpoint


def check_run(methods: Sequence[Method], observers: Sequence[Callback]) -> None:
    """Refuse a run before its app is written, and again before it starts, because users may edit the app."""
    check_methods(methods)
    check_separate(methods)
    if (asynchronous := method_of(methods, AsynchronousRounds)) is not None:
        raise ValueError(
            f"{asynchronous.name} decides by simulated time when clients arrive, and nodes train in real time: remove it"
        )
    for observer in observers:
        if isinstance(observer, Checkpoint) and (observer.every_n_rounds != 1 or not observer.enabled):
            raise ValueError(
                f"nodes keep the states of two rounds, so a deployment writes a checkpoint after every round; got every_n_rounds="
                f"{observer.every_n_rounds}, enabled={observer.enabled}: leave both out, and enable_checkpointing"
            )


def check_methods(methods: Sequence[Method]) -> None:
    """Refuse methods whose secrets the server would know. Each node checks this for itself."""
    for method in methods:
        if method.public_noise:
            raise ValueError(
                f"{method.name}: everybody who knows the run's seed could remove this noise, and the server does: {method.public_noise}"
            )
        if isinstance(method, SealedSum):
            raise ValueError(
                f"{method.name} cannot be deployed: it simulates the exchange of keys between clients, and the server would know all "
                f"keys. Remove {method.name}"
            )
