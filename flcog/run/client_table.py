"""A row for each client: its data, its part in the rounds, and the scores of the global model and of its own."""

import math
from typing import Any

import numpy as np

from flcog.client.messages import RollCall
from flcog.data.label_statistics import num_labels
from flcog.method import clock_of
from flcog.server.engine import Engine
from flcog.server.privacy import withhold
from flcog.server.state import ServerState

MOST_ROWS = 10_000
"""A run writes ``clients.csv`` for at most this number of clients; ``trainer.clients`` has all."""


def client_table(engine: Engine, server: ServerState) -> dict[str, np.ndarray]:
    """The columns of ``clients.csv``, one value for each client, without those that a method withholds.

    Clients in other processes tell their label counts only if their host shares them, and not the time that they take. Bytes are those
    of the rounds. If a pool of all data trains (Centralized), the clients that test it have scores alone.
    """
    call, federation = engine.roll_call, engine.federation
    columns: dict[str, Any] = {"samples": call.sizes, "val_samples": call.val, "test_samples": call.test}
    columns |= server.ledger.columns(engine.num_clients)
    columns["train/loss"] = columns.pop("loss")
    if clock_of(engine.methods) is not None:
        columns["simulated_seconds"] = columns.pop("seconds")
    columns |= server.scores
    shared = RollCall.of(federation, shares_labels=True) if federation.is_complete else call
    if shared.label_counts is not None:
        names = federation.class_names or range(num_labels(federation))
        columns |= {f"labels/{name}": counts for name, counts in zip(names, shared.label_counts.numpy().T, strict=False)}
    rows = len(call.sizes if call.test is None else call.test)
    arrays = {name: np.asarray(column) for name, column in columns.items() if column is not None and len(column) == rows}
    found = {name if "/" in name else f"clients/{name}": column for name, column in arrays.items()}
    withhold(engine, found)
    return {name.removeprefix("clients/"): column for name, column in found.items()}


def rows_of(table: dict[str, np.ndarray]) -> list[dict[str, Any]]:
    """The rows as a file has them: without NaN."""
    values = zip(*(column.tolist() for column in table.values()), strict=True)
    return [
        {"client": client} | {name: value for name, value in zip(table, row, strict=True) if not math.isnan(value)}
        for client, row in enumerate(values)
    ]
