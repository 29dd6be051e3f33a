"""State that methods keep on themselves, uploads that they did not ask for, and columns that are not theirs."""

import re
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from harness import train

from flcog.method import Cohort, Context, Messages, Method, Params, Slot, Upload, UploadAggregator, UploadMatrix


class Reads(Method):
    """Momentum that the constructor begins, and a hook keeps on ``self``."""

    def __init__(self, beta: float = 0.9) -> None:
        self.beta, self.last = beta, None

    def server_step(self, server: Slot, params: Params, delta: Params, messages: Messages, cohort: Cohort) -> tuple[Params, Slot]:
        self._keep(delta)
        return delta, server

    def _keep(self, delta: Params) -> None:
        self.last = delta  # type: ignore[assignment]


class Counts(Method):
    """Counts a client's rounds on ``self``."""

    count = 0

    def finish_client(self, delta: Params, params: Params, ctx: Context) -> Upload:
        self.count += 1
        return Upload(delta, {})


class Saved(Reads):
    """Momentum on ``self`` that checkpoints contain."""

    def state_dict(self) -> dict[str, Any]:
        return {"last": self.last}


@pytest.mark.parametrize("executor", ["loop", "vmap"])
@pytest.mark.parametrize(
    ("method", "says"),
    [(Reads, "Reads.server_step sets self.last, which checkpoints"), (Counts, "Counts.finish_client sets self.count")],
)
def test_a_hook_keeps_no_state_on_the_method(executor: str, method: type[Method], says: str) -> None:
    with pytest.raises(ValueError, match="^" + re.escape(says)) as caught:
        train(method(), executor=executor, rounds=1, local_steps=1)
    assert "\n" not in str(caught.value)


def test_a_method_may_keep_what_it_saves() -> None:
    method = Saved()
    train(method, rounds=1)
    assert method.last is not None


class Looks(Method):
    def server_step(self, server: Slot, params: Params, delta: Params, messages: Messages, cohort: Cohort) -> tuple[Params, Slot]:
        for upload in messages.individual:
            cohort.log(f"mine/{upload.client}", upload.weight)
        return delta, server


@dataclass(frozen=True)
class Combines(Looks, UploadAggregator):
    def combine(self, uploads: UploadMatrix, server: Slot) -> tuple[torch.Tensor, Slot]:
        return uploads.mean(), server


class Asks(Looks):
    individual_uploads = True


@pytest.mark.parametrize(
    ("method", "says"),
    [
        (Looks, "Looks reads messages.individual, which needs individual_uploads = True in the class: set it there"),
        (Combines, "Combines reads messages.individual, and gets the uploads of single clients as the rows of a matrix"),
    ],
)
def test_single_uploads_belong_to_methods_that_ask_for_them(method: type[Method], says: str) -> None:
    with pytest.raises(ValueError, match=f"^{re.escape(says)}"):
        train(method(), rounds=1, local_steps=1)
    row = train(Asks(), rounds=1, local_steps=1).rows[0]
    assert sum(value for name, value in row.items() if name.startswith("mine/")) == pytest.approx(1)


@pytest.mark.parametrize(("value", "got"), [(torch.ones(3), "a tensor of shape [3]"), ("high", "'high'"), ([1.0], "[1.0]")])
def test_a_column_takes_one_number(value: Any, got: str) -> None:
    class Logs(Method):
        def server_step(
            self, server: Slot, params: Params, delta: Params, messages: Messages, cohort: Cohort
        ) -> tuple[Params, Slot]:
            cohort.log("mine/loss", value)
            return delta, server

    said = f"^Logs: cohort.log needs one number for 'mine/loss'; got {re.escape(got)}: log a mean, or each number under its own"
    with pytest.raises(ValueError, match=said):
        train(Logs(), rounds=1, local_steps=1)


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
