"""Codecs that lose a part of the clients' states, whose sum the server keeps."""

from collections.abc import Iterator

from flcog.advice.finding import Finding
from flcog.advice.order import meet
from flcog.server.engine import Engine


def missing_feedback(engine: Engine) -> Iterator[Finding]:
    """Codecs without error feedback beside methods whose server adds up the changes of clients' states."""
    for codec in engine.methods:
        if getattr(codec, "error_feedback", True):  # other methods have no such option
            continue
        names = [method.name for method in engine.methods if method.sums_client_states and meet(method, codec, engine)]
        if names:
            consequence = (
                f"is false, so that the errors of the codec are missing where {' and '.join(names)} add up changes of the clients' "
                "states at the server, and training can diverge"
            )
            yield Finding(codec.name, "error_feedback", consequence, "set it to true")
