"""Networks whose forward pass writes into parameters train alike in all executors, also after some clients have finished."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from harness import NUM_CLASSES, NUM_FEATURES, RAGGED, TinyData, assert_close, classifier, needs_compiler, train
from torch import Tensor, nn


class Clamps(nn.Linear):
    """Clamps its weights before each use."""

    def __init__(self) -> None:
        super().__init__(NUM_FEATURES, NUM_CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        self.weight.data.clamp_(-0.1, 0.1)
        return super().forward(x)


class Looks(nn.Module):
    """Looks up vectors, which nn.Embedding shortens where they are used."""

    def __init__(self) -> None:
        super().__init__()
        self.vectors, self.head = nn.Embedding(8, 4, max_norm=0.5), nn.Linear(4, NUM_CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.vectors((2 * x.abs()).long().clamp(max=7)).mean(1))


@pytest.mark.parametrize("compile", [False, pytest.param(True, marks=[needs_compiler, pytest.mark.slow])])
@pytest.mark.parametrize("network", [Clamps, Looks])
def test_clients_that_have_finished_stay_as_they_are(network: Callable[[], nn.Module], compile: bool) -> None:
    torch.manual_seed(0)
    options: dict[str, Any] = RAGGED | {"rounds": 2}
    loop, batched = (
        train(
            module=classifier(network=network),
            data=TinyData(batch_size=2),
            executor=name,
            compile=compile and name == "vmap",
            **options,
        )
        for name in ("loop", "vmap")
    )
    assert (batched.executor.name, batched.executor.compiled) == ("vmap", compile)
    assert_close(batched.state, loop.state, 1e-12)
