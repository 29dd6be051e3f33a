"""Leashes that do not fit the model or the data."""

from functools import partial
from typing import Any

import lightning as L
import pytest
import torch
import torch.nn.functional as F
from harness import (
    NUM_CLASSES,
    NUM_FEATURES,
    SGD,
    classifier,
    train,
)
from torch import Tensor, nn

from flcog.callbacks.fedwalk.fedwalk import FedWalk
from flcog.datamodules import ArrayData
from methods.fedwalk.leashes import tiny_leash

pytestmark = pytest.mark.filterwarnings("error")


class Plain(L.LightningModule):
    """A LightningModule that has only a training step and an optimiser."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(NUM_FEATURES, NUM_CLASSES)

    def training_step(self, batch: Any, index: int) -> Tensor:
        return F.cross_entropy(self.layer(batch[0]), batch[1])

    def configure_optimizers(self) -> Any:
        return SGD(self.parameters())


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
    "another task": (
        classifier,
        {"leash": tiny_leash(3, "multilabel"), "head": "shared"},
        "for classification, ArrayData needs 3 for multilabel",
    ),
    "no features": (partial(classifier, network=lambda: nn.Linear(NUM_FEATURES, NUM_CLASSES)), {}, "Linear exposes no features"),
    "a plain module": (Plain, {}, "FedWalk changes the model, which must be a flcog.ClientModule"),
}


@pytest.mark.parametrize(("module", "arguments", "message"), UNFIT.values(), ids=UNFIT.keys())
def test_a_leash_that_does_not_fit_is_refused_before_the_first_round(
    module: Any, arguments: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        train(FedWalk(**({"leash": tiny_leash()} | arguments)), module=module(), rounds=1)
