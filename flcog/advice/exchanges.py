"""Exchanges of data whose content a later method changes."""

from collections.abc import Iterator

from flcog.advice.finding import Finding
from flcog.server.engine import Engine


def outdated_exchanges(engine: Engine) -> Iterator[Finding]:
    """Methods that change the data after another has sent statistics of it."""
    sent: list[str] = []
    before = None
    for method in engine.methods:
        exchange = engine.exchanges.get(method.name)
        if exchange is None:
            continue
        if before is not None and exchange.federation is not before:
            for name in sent:
                consequence = f"changes the data after {name} has exchanged statistics of them"
                yield Finding(method.name, "prepare_data", consequence, f"list {name} after {method.name}")
        elif exchange.bytes_sent is not None:
            sent.append(method.name)
        before = exchange.federation
