"""Networks that mix the rows of a batch by themselves train as in the loop: padding rows would change their outputs."""

from collections.abc import Callable

import pytest
import torch
from harness import NUM_CLASSES, NUM_FEATURES, RAGGED, assert_close, classifier, train
from torch import Tensor, nn


class Centred(nn.Linear):
    """Subtracts the batch's mean."""

    def __init__(self) -> None:
        super().__init__(NUM_FEATURES, NUM_CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x - x.mean(0, keepdim=True))


class Standardised(Centred):
    """Standardises features by torch's function, in training alone."""

    def forward(self, x: Tensor) -> Tensor:
        return nn.Linear.forward(self, nn.functional.batch_norm(x, None, None, training=True) if self.training else x)


class Averaged(Centred):
    """Centres by a running mean over the batches before, which it keeps in a buffer."""

    mean: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(NUM_FEATURES))

    def forward(self, x: Tensor) -> Tensor:
        outputs = nn.Linear.forward(self, x - self.mean)
        if self.training:
            self.mean = 0.9 * self.mean + 0.1 * x.detach().mean(0)
        return outputs


class Counted(Centred):
    """Counts its samples, and scales outputs by the count."""

    count: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("count", torch.ones(()))

    def forward(self, x: Tensor) -> Tensor:
        outputs = nn.Linear.forward(self, x) / self.count
        if self.training:
            self.count = self.count + len(x)
        return outputs


class Steps(Counted):
    """Counts its steps instead, and mixes no rows."""

    def forward(self, x: Tensor) -> Tensor:
        outputs = nn.Linear.forward(self, x) / self.count
        if self.training:
            self.count = self.count + 1
        return outputs


class Gated(Centred):
    """Adds the batch's mean through a gate that begins at 0."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = nn.Parameter(torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        return nn.Linear.forward(self, x + self.gate * x.mean(0))


class Bounded(nn.Sequential):
    """Shortens the vectors of the words that it looks up, also of those in padding rows."""

    def __init__(self) -> None:
        super().__init__(nn.Embedding(9, 4, max_norm=1.0), nn.Flatten(), nn.Linear(4 * NUM_FEATURES, NUM_CLASSES))

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x.abs().long().clamp(max=8))


class Dropped(Centred):
    """Drops features, and mixes no rows."""

    def forward(self, x: Tensor) -> Tensor:
        return nn.Linear.forward(self, nn.functional.dropout(x, 0.5, self.training))


@pytest.mark.parametrize("network", [Centred, Standardised, Averaged, Counted, Gated, Bounded])
def test_batched_clients_equal_the_loop(network: Callable[[], nn.Module]) -> None:
    loop, batched = (train(module=classifier(network=network), executor=name, **RAGGED) for name in ("loop", "vmap"))
    assert batched.executor.name == "vmap" and batched.run.model.feels_padding
    assert_close(batched.state, loop.state, 1e-12)


@pytest.mark.parametrize("network", [None, Dropped, Steps])
def test_networks_that_mix_no_rows_are_padded(network: Callable[[], nn.Module] | None) -> None:
    trainer = train(module=classifier(network=network), executor="vmap", **RAGGED)
    assert not trainer.run.model.feels_padding
