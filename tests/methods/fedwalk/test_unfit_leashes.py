"""Leashes that do not fit the model or the data."""

from typing import Any

import pytest
import torch
from harness import (
    NUM_FEATURES,
    classifier,
    train,
)

from flcog.callbacks.fedwalk.fedwalk import FedWalk
from flcog.datamodules import ArrayData
from methods.fedwalk.leashes import tiny_leash

pytestmark = pytest.mark.filterwarnings("error")


def narrow_leash() -> ArrayData:
    return ArrayData(train_inputs=torch.zeros(9, NUM_FEATURES - 1), train_targets=torch.arange(9) % 3, num_clients=1)


UNFIT: dict[str, tuple[Any, dict[str, Any], str]] = {
    "inputs of another size": (
        classifier,
        {"leash": narrow_leash()},
        r"FedWalk: the model cannot read the leash ArrayData.*\(5,\)",
    ),
    "other classes": (
        classifier,
        {"leash": tiny_leash(5), "head": "shared"},
        "the model has 3 outputs .* needs 5 .* use head=own",
    ),
}


@pytest.mark.parametrize(("module", "arguments", "message"), UNFIT.values(), ids=UNFIT.keys())
def test_a_leash_that_does_not_fit_is_refused_before_the_first_round(
    module: Any, arguments: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        train(FedWalk(**({"leash": tiny_leash()} | arguments)), module=module(), rounds=1)
