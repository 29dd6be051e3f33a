"""The table of methods: the papers and bytes that it lists, and that it fits a terminal."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch

import flcog.callbacks
from flcog.callbacks import SCAFFOLD, FedAvgM, FedDisco, FedProx
from flcog.commands import methods as tables
from flcog.data import Exchange, Federation
from flcog.method import DataExchange, Method, Params, Slot, Upload

METHODS = {name: value for name in flcog.callbacks.__all__ if issubclass(value := getattr(flcog.callbacks, name), Method)}


@dataclass(frozen=True)
class SendsThings(DataExchange):
    """Sends a tensor every round, and exchanges data before the first round."""

    def prepare_data(self, federation: Federation, rng: torch.Generator, workspace: Path | None) -> Exchange:
        return Exchange(federation, (100_000, 40_000))

    def init_server(self, params: Params) -> Slot:
        return {"state": torch.zeros(1000)}

    def broadcast(self, server: Slot) -> Slot:
        return server

    def finish_client(self, delta: Params, params: Params, ctx: Any) -> Upload:
        return Upload(delta, ctx.state, sum={"message": torch.zeros(500)})


def test_bytes_are_those_that_travel() -> None:
    """Two clients have SimpleCNN with 44,426 parameters of four bytes. Bytes before the first round are counted separately."""
    plain = tables.bytes_of_a_round()
    assert plain == (2 * 4 * 44_426, 2 * 4 * 44_426, 0, 0, False)
    assert tables.bytes_of_a_round(SendsThings()) == (plain.up + 2 * 2000, plain.down + 2 * 4000, 100_000, 40_000, False)
    assert tables.bytes_of_a_round(FedProx()) == plain
    assert tables.bytes_of_a_round(FedDisco()) == plain._replace(once_up=2 * 4)
    (row,) = tables.method_rows([SendsThings()])
    assert (row[2], row[3]) == ("1.01 + 0.28 once", "1.02 + 0.11 once")


@pytest.mark.parametrize(
    ("method", "column", "value"),
    [
        (SCAFFOLD(), "notes", "stateful clients; used by FedCOG, Fedssyn, FedWalk"),
        (SCAFFOLD(), "up", "2.00"),
        (FedAvgM(), "notes", ""),
        (FedDisco(), "up", "1.00"),
    ],
)
def test_its_columns(method: Method, column: str, value: Any) -> None:
    (row,) = tables.method_rows([method])
    assert dict(zip(tables.HEADER, row, strict=True))[column] == value
