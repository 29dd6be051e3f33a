"""Networks that are not pure: whatever executor is wanted, clients train with the numbers of the loop."""

import copy
import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from harness import NUM_CLASSES, NUM_FEATURES, RAGGED, assert_close, classifier, distance, few_quickly, train
from torch import Tensor, nn

import flcog
from faithful.modules import Plain


class Odd(nn.Linear):
    """A linear layer whose inputs, outputs or state are odd."""

    def __init__(self) -> None:
        super().__init__(NUM_FEATURES, NUM_CLASSES)
        self.register_buffer("mean", torch.zeros(NUM_FEATURES))
        self.register_buffer("count", torch.ones(()))
        self.gate, self.calls, self.last = nn.Parameter(torch.zeros(())), 0, torch.zeros(NUM_FEATURES)


Forward = Callable[[Any, Tensor, Callable[[Tensor], Tensor]], Tensor]


def centred(self: Any, x: Tensor, linear: Any) -> Tensor:
    return linear(x - x.mean(0, keepdim=True))


def standardised(self: Any, x: Tensor, linear: Any) -> Tensor:
    return linear(F.batch_norm(x, None, None, training=True) if self.training and len(x) > 1 else x)


def averaged(self: Any, x: Tensor, linear: Any) -> Tensor:
    outputs = linear(x - self.mean)
    if self.training:
        self.mean = 0.9 * self.mean + 0.1 * x.detach().mean(0)
    return outputs


def counted(self: Any, x: Tensor, linear: Any) -> Tensor:
    outputs = linear(x) / self.count
    if self.training:
        self.count = self.count + len(x)
    return outputs


def stepped(self: Any, x: Tensor, linear: Any) -> Tensor:
    outputs = linear(x) / self.count
    if self.training:
        self.count = self.count + 1
    return outputs


def gated(self: Any, x: Tensor, linear: Any) -> Tensor:
    return linear(x + self.gate * x.mean(0))


def warms(self: Any, x: Tensor, linear: Any) -> Tensor:
    self.calls += self.training
    return linear(x) * min(1.0, self.calls / 8)


def remembers(self: Any, x: Tensor, linear: Any) -> Tensor:
    mean, self.last = self.last, x.detach().mean(0)
    return linear(x + mean)


def flags(self: Any, x: Tensor, linear: Any) -> Tensor:
    self.last = x.detach()  # for nobody
    return linear(x)


def draws(self: Any, x: Tensor, linear: Any) -> Tensor:
    return linear(F.dropout(x, 0.5, self.training))


def branches(self: Any, x: Tensor, linear: Any) -> Tensor:
    return linear(x) if x.sum() > 0 else linear(-x)


def sorts(self: Any, x: Tensor, linear: Any) -> Tensor:
    return linear(x[x[:, 0].argsort()])[x[:, 0].argsort().argsort()]


FORWARDS = (centred, standardised, averaged, counted, stepped, gated, warms, remembers, flags, draws, branches, sorts)


def odd(forward: Forward) -> Callable[[], flcog.Classifier]:
    kind = type("Network", (Odd,), {"forward": lambda self, x: forward(self, x, super(Odd, self).forward)})
    return lambda: classifier(network=kind)


class Bounded(nn.Sequential):
    """Shortens the vectors of the words that it looks up, also of those in padding rows."""

    def __init__(self) -> None:
        super().__init__(nn.Embedding(9, 4, max_norm=1.0), nn.Flatten(), nn.Linear(4 * NUM_FEATURES, NUM_CLASSES))

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x.abs().long().clamp(max=8))


class Hooked(nn.Sequential):
    """Returns what a forward hook has stored: a function's variable, or the model's attribute."""

    def __init__(self, own: bool) -> None:
        super().__init__(nn.Linear(NUM_FEATURES, NUM_CLASSES))
        self.seen, seen = dict[str, Tensor](), dict[str, Tensor]()
        self.read = (lambda: self.seen["x"]) if own else (lambda: seen["x"])
        self[0].register_forward_hook(self.keep if own else lambda layer, inputs, output: seen.update(x=output))

    def keep(self, layer: nn.Module, inputs: Any, output: Tensor) -> None:
        self.seen["x"] = output

    def forward(self, x: Tensor) -> Tensor:
        self[0](x)
        return self.read()


class Adapts(flcog.Classifier):
    """A loss whose weight falls from call to call."""

    weight = 1.0

    def per_example_loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        self.weight *= 0.99
        return self.weight * super().per_example_loss(outputs, targets)


class Steps(Plain):
    """A LightningModule whose step keeps something, draws from streams of its own, or reads its trainer."""

    def __init__(self, how: str) -> None:
        super().__init__()
        self.how, self.losses, self.counter = how, list[float](), itertools.count()
        self.streams = np.random.default_rng(0), torch.Generator().manual_seed(0)

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        loss = super().training_step(batch, batch_idx)
        if self.how == "list":
            self.losses.append(1.0)
            return loss * len(self.losses)
        if self.how == "iterator":
            return loss / (1 + next(self.counter))
        if self.how == "numpy":
            return loss * float(self.streams[0].random())
        if self.how == "torch":
            return loss * torch.rand((), generator=self.streams[1])
        if self.how == "global_step":
            return loss / (1 + self.global_step)
        return loss * (1 + self.current_epoch)


def fixed(make: Callable[[], Any]) -> Callable[[], Any]:
    def seeded() -> Any:
        torch.manual_seed(0)
        return make()

    return seeded


MODULES: dict[str, Callable[[], Any]] = {
    **{forward.__name__: odd(forward) for forward in FORWARDS},
    "bounded": lambda: classifier(network=Bounded),
    "own hook": lambda: classifier(network=lambda: Hooked(own=True)),
    "function as hook": lambda: classifier(network=lambda: Hooked(own=False)),
    "loss": fixed(lambda: Adapts(nn.Linear(NUM_FEATURES, NUM_CLASSES))),
    **{how: lambda how=how: Steps(how) for how in ("list", "iterator", "numpy", "torch", "global_step", "current_epoch")},
}
WANTED: dict[str, dict[str, Any]] = {
    "auto": {"executor": "auto"},
    "vmap": {"executor": "vmap"},
    "threads": {"executor": "loop", "chunk_size": 2},
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", few_quickly(MODULES, 6))
def test_numbers_are_the_loops(name: str) -> None:
    loop, *others = (train(module=MODULES[name](), rounds=2, **RAGGED, **how) for how in ({"executor": "loop"}, *WANTED.values()))
    for other in others:
        if name != "draws" or other.executor.name == "loop":
            assert_close(other.state, loop.state, 1e-12 if other.executor.name == "vmap" else 0)
    assert distance(loop.state, train(module=MODULES[name](), rounds=1, **RAGGED).state) > 1e-3


class Unused(Plain):
    """Its loss depends on one of two layers, and its optimiser shrinks the weights of both."""

    def __init__(self) -> None:
        super().__init__()
        self.unused = nn.Linear(2, 2)

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), lr=0.1, weight_decay=0.1)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("wanted", WANTED)
def test_weight_decay_leaves_unused_parameters_as_lightning_does(wanted: str) -> None:
    trained = train(module=Unused(), rounds=1, **WANTED[wanted])
    assert trained.executor.name == "lightning"
    assert_close({"w": trained.state["unused.weight"]}, {"w": Unused().double().unused.weight.detach()}, 0)


# Teachers -----------------------------------------------------------------------------------------------------------------------------


class Taught(Plain):
    """A student and its frozen teacher, whose weights follow the student's by one of several means, in the step or in a hook."""

    def __init__(self, means: str = "in place") -> None:
        super().__init__()
        self.means, self.net = means, nn.Linear(NUM_FEATURES, NUM_CLASSES)
        self.teacher = copy.deepcopy(self.net).requires_grad_(False)

    @torch.no_grad()
    def follow(self) -> None:
        for own, value in zip(self.teacher.parameters(), self.net.parameters(), strict=True):
            if self.means == "data":
                own.data = own.data * 0.9 + value.data * 0.1
            elif self.means == "in place":
                own.data.mul_(0.9).add_(value.data, alpha=0.1)
            else:
                own.copy_(own * 0.9 + value * 0.1)

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        self.follow()
        return super().training_step(batch, batch_idx) + F.mse_loss(self(batch[0]), self.teacher(batch[0]))


class TaughtByAHook(Taught):
    def training_step(self, batch: Any, batch_idx: int) -> Any:
        return Plain.training_step(self, batch, batch_idx) + F.mse_loss(self(batch[0]), self.teacher(batch[0]))

    def on_train_batch_end(self, *args: Any) -> None:
        self.follow()


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("means", few_quickly(["data", "in place", "copy"], 1))
@pytest.mark.parametrize("kind", [Taught, TaughtByAHook])
def test_a_frozen_teacher_ends_with_the_same_weights(kind: type[Taught], means: str) -> None:
    loop, *others = (train(module=kind(means), rounds=2, **how) for how in ({"executor": "loop"}, *WANTED.values()))
    for other in others:
        assert_close(dict(other.model.state_dict()), dict(loop.model.state_dict()), 0)
    assert distance(dict(loop.model.state_dict()), dict(kind().double().state_dict())) > 1e-3
