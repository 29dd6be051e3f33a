"""Columns of a round's row that methods may log."""

import pytest
from harness import train

from flcog.method import Cohort, Messages, Method, Params, Slot


@pytest.mark.parametrize("name", ["train/loss", "round", "time/round", "comm/up_bytes", "val/acc", "mine/loss", "train/mine"])
def test_flcogs_own_columns_are_not_logged(name: str) -> None:
    class Logs(Method):
        def server_step(
            self, server: Slot, params: Params, delta: Params, messages: Messages, cohort: Cohort
        ) -> tuple[Params, Slot]:
            cohort.log(name, 7.0)
            return delta, server

    if "mine" in name:
        assert train(Logs(), rounds=1, local_steps=1).rows[0][name] == 7
        return
    with pytest.raises(ValueError, match=f"^cohort.log got {name!r}, a name of flcog's own columns: begin"):
        train(Logs(), rounds=1, local_steps=1)
