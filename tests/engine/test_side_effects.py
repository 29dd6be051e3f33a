"""Networks and losses that keep something between their calls train one client at a time, because clients would share it."""

import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
from harness import NUM_CLASSES, NUM_FEATURES, TinyData, assert_close, classifier, make_trainer, train
from torch import Tensor, nn

import flcog

pytestmark = pytest.mark.filterwarnings("error")


class Warms(nn.Linear):
    """Scales its outputs by the number of its calls."""

    def __init__(self) -> None:
        super().__init__(NUM_FEATURES, NUM_CLASSES)
        self.calls = 0

    def forward(self, x: Tensor) -> Tensor:
        self.calls += self.training
        return super().forward(x) * min(1.0, self.calls / 8)


class Remembers(nn.Linear):
    """Adds the mean of the batch before, which it stores in an attribute."""

    def __init__(self) -> None:
        super().__init__(NUM_FEATURES, NUM_CLASSES)
        self.before = torch.zeros(NUM_FEATURES)

    def forward(self, x: Tensor) -> Tensor:
        mean, self.before = self.before, x.detach().mean(0)
        return super().forward(x + mean)


class Caches(nn.Linear):
    """Stores a table at its first call and its last outputs, on which no later call depends."""

    def __init__(self) -> None:
        super().__init__(NUM_FEATURES, NUM_CLASSES)
        self.table: Tensor | None = None
        self.last: Tensor | None = None

    def forward(self, x: Tensor) -> Tensor:
        if self.table is None:
            self.table = torch.ones(NUM_CLASSES)
        self.last = super().forward(x) * self.table
        return self.last


class Adapts(flcog.Classifier):
    """A loss whose weight falls from call to call."""

    weight = 1.0

    def per_example_loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        self.weight *= 0.99
        return self.weight * super().per_example_loss(outputs, targets)


def adapts() -> flcog.Classifier:
    torch.manual_seed(0)
    return Adapts(nn.Linear(NUM_FEATURES, NUM_CLASSES))


def with_network(network: Callable[[], nn.Module]) -> Callable[[], flcog.Classifier]:
    return lambda: classifier(network=network)


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (with_network(Warms), r"the model keeps something between steps \(self.model.calls\)"),
        (with_network(Remembers), "the loss of the model depends on earlier steps"),
        (adapts, r"the model keeps something between steps \(self.weight\)"),
    ],
    ids=["counter", "last-batch", "loss"],
)
def test_clients_that_would_share_it_train_one_at_a_time(make: Callable[[], flcog.Classifier], reason: str) -> None:
    with pytest.warns(UserWarning, match=f"executor=vmap falls back to loop: {reason}$"):
        forced = train(module=make(), executor="vmap")
    threads: Any = make_trainer(None, chunk_size=2)
    threads.prepare(make(), TinyData())
    assert threads.notes[0].startswith("executor: loop (one client at a time: the")
    alone = train(module=make())
    assert_close(forced.state, alone.state, 0)
    assert_close(train(module=make(), chunk_size=2).state, alone.state, 0)


def test_caches_are_no_side_effects() -> None:
    trainer = train(module=classifier(network=Caches), executor="vmap")
    assert trainer.executor.name == "vmap"
    threads = train(module=classifier(network=Caches), chunk_size=2)
    assert threads.executor.clients_at_once == 2
    assert_close(threads.state, train(module=classifier(network=Caches)).state, 0)


class Hooked(nn.Sequential):
    """Adds the features that a forward hook has stored: a function's variable, or the model's attribute."""

    def __init__(self, own: bool) -> None:
        super().__init__(nn.Linear(NUM_FEATURES, NUM_CLASSES))
        self.own, self.seen = own, dict[str, Tensor]()
        self[0].register_forward_hook(self.keep if own else lambda layer, inputs, output: self.seen.update(x=output))

    def keep(self, layer: nn.Module, inputs: Any, output: Tensor) -> None:
        self.seen["x"] = output

    def forward(self, x: Tensor) -> Tensor:
        self[0](x)
        return self.seen["x"]


def test_functions_as_forward_hooks_are_shared_by_copies() -> None:
    told = "copies of the model share the forward hook .*<lambda> of self.model.0, which is a function"
    threads: Any = make_trainer(None, chunk_size=2)
    threads.prepare(classifier(network=lambda: Hooked(own=False)), TinyData())
    assert re.search(f"^executor: loop .one client at a time: {told}.$", threads.notes[0])
    with pytest.raises(KeyError) as error:
        threads.evaluate()
    assert any(re.match(told, note) for note in error.value.__notes__)


def test_methods_as_forward_hooks_are_copied_with_their_layers() -> None:
    batched = train(module=classifier(network=lambda: Hooked(own=True)), executor="vmap")
    assert batched.executor.name == "vmap"
    batched.evaluate()
