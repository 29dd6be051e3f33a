"""Inputs and targets that are dicts, tuples or lists of tensors give the same numbers as a single tensor with all values."""

from typing import Any

import pytest
import torch
from contracts.registry import CASES
from harness import NUM_CLASSES, NUM_FEATURES, SGD, TinyData, distance, few_quickly, fit, train
from torch import Tensor, nn
from torchmetrics import Metric, MetricCollection

import flcog
from flcog.callbacks import FedDecorr
from flcog.callbacks.fedgen import FedGen
from flcog.callbacks.moon import MOON
from flcog.data import Samples, Splits
from flcog.datamodules import LongTail
from flcog.models import MLP, FeatureModel

pytestmark = pytest.mark.filterwarnings("error")


class Halves(TinyData):
    """The tiny data, with the inputs cut into two tensors and a third tensor of whole numbers.

    Args:
        kind: ``dict``, ``tuple`` or ``list``.
        labelled: whether the targets are a dict too, with a weight for each sample.
    """

    def __init__(self, kind: str = "dict", labelled: bool = False, **options: Any) -> None:
        super().__init__(**options)
        self.kind, self.labelled = kind, labelled

    def load(self) -> Splits:
        splits = super().load()
        return Splits(self._cut(splits.train), self._cut(splits.test))

    def _cut(self, samples: Samples) -> Samples:
        parts = {"left": samples.inputs[:, :2], "right": samples.inputs[:, 2:], "ids": torch.arange(len(samples))}
        inputs = parts if self.kind == "dict" else {"tuple": tuple, "list": list}[self.kind](parts.values())
        targets = {"label": samples.targets, "weight": torch.full((len(samples),), 2.0)} if self.labelled else samples.targets
        return Samples(inputs, targets)


class ByName(FeatureModel):
    """Receives the parts by name and joins them, and checks that whole numbers stay whole."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = MLP(NUM_FEATURES, (8,), NUM_CLASSES)
        self.head, self.num_features = self.inner.head, self.inner.num_features
        self.inner.head = nn.Identity()

    def features(self, left: Tensor, right: Tensor, ids: Tensor) -> Tensor:
        assert ids.dtype == torch.int64 and left.dtype == torch.get_default_dtype()
        return self.inner.features(torch.cat([left, right], 1))


class AsOne(ByName):
    """The same network, which receives all parts in one argument."""

    def features(self, parts: Any) -> Tensor:
        left, right, ids = parts.values() if isinstance(parts, dict) else parts
        return super().features(left, right, ids)


class Plain(ByName):
    """The same network, which receives the inputs as a single tensor."""

    def features(self, inputs: Tensor) -> Tensor:
        return self.inner.features(inputs)


def classifier(network: type[nn.Module]) -> flcog.Classifier:
    torch.manual_seed(0)
    return flcog.Classifier(network(), optimizer=SGD)


RAGGED = {"local_epochs": 2, "rounds": 2}


METHODS = [None, MOON(projection=4), FedDecorr(), FedGen(), CASES["SCAFFOLD"].method]


EXECUTORS = few_quickly([{"executor": "loop"}, {"executor": "vmap"}, {"executor": "loop", "chunk_size": 3}])


@pytest.mark.parametrize("options", EXECUTORS, ids=str)
@pytest.mark.parametrize("method", METHODS, ids=lambda method: method.name if method else "FedAvg")
def test_they_train_to_the_same_numbers(method: Any, options: dict[str, Any]) -> None:
    methods = [] if method is None else [method]
    plain = train(*methods, module=classifier(Plain), data=TinyData(batch_size=5), **RAGGED, **options)
    parts = train(*methods, module=classifier(ByName), data=Halves(batch_size=5), **RAGGED, **options)
    assert parts.executor.name == options["executor"]
    # A batched product may add in another order if its rows have another layout in memory.
    assert distance(plain.state, parts.state) <= (1e-14 if options["executor"] == "vmap" else 0)


@pytest.mark.parametrize("kind", ["dict", "tuple", "list"])
def test_a_network_may_take_them_as_one_argument(kind: str) -> None:
    by_name, as_one = (
        train(module=classifier(network), data=Halves(form), executor="vmap", rounds=1)
        for network, form in ((ByName, "dict"), (AsOne, kind))
    )
    assert distance(by_name.state, as_one.state) == 0


@pytest.mark.slow
def test_they_are_evaluated_and_resumed(tmp_path: Any) -> None:
    options = {"client_test": 0.3, "client_val": 0.2, "partition_seed": 3}

    def run(name: str, network: Any = ByName, data: Any = Halves, **more: Any) -> Any:
        return fit(tmp_path / name, CASES["Ditto"].method, module=classifier(network), data=data(**options), eval_every=1, **more)

    plain, parts, begun = run("plain", Plain, TinyData), run("parts"), run("again", rounds=1)
    timeless = [[{k: v for k, v in row.items() if "time" not in k} for row in each.rows] for each in (plain, parts)]
    assert timeless[0] == timeless[1] and "test/personal_accuracy_mean" in timeless[0][-1]
    assert distance(run("again", ckpt_path=str(begun.run_dir)).state, parts.state) == 0


class Weighted(flcog.Classifier):
    """Learns from targets with a label and a weight for each sample."""

    def per_example_loss(self, outputs: Tensor, targets: Any) -> Tensor:
        return targets["weight"] * super().per_example_loss(outputs, targets["label"])

    def per_example_score(self, outputs: Tensor, targets: Any) -> Tensor:
        return super().per_example_score(outputs, targets["label"])

    def metrics(self, num_classes: int) -> MetricCollection:
        return MetricCollection({"weight": MeanWeight()})


class MeanWeight(Metric):
    def __init__(self) -> None:
        super().__init__()
        self.add_state("total", torch.tensor(0.0), "sum")
        self.add_state("count", torch.tensor(0), "sum")

    def update(self, outputs: Tensor, targets: Any) -> None:
        self.total, self.count = self.total + targets["weight"].sum(), self.count + len(outputs)

    def compute(self) -> Tensor:
        return self.total / self.count


@pytest.mark.parametrize("executor", ["loop", "vmap"])
def test_targets_of_several_parts(executor: Any) -> None:
    """A weight of 2 has the same effect as twice the learning rate."""
    torch.manual_seed(0)
    module = Weighted(ByName(), optimizer=SGD)
    options = {"executor": executor, "eval_every": 1, **RAGGED}
    weighted = train(module=module, data=Halves(labelled=True, batch_size=5, client_test=0.3), **options)
    torch.manual_seed(0)
    twice = flcog.Classifier(ByName(), optimizer=lambda params: torch.optim.SGD(params, lr=0.2))
    plain = train(module=twice, data=Halves(batch_size=5, client_test=0.3), **options)
    assert distance(weighted.state, plain.state) < 1e-12
    figures, expected = weighted.evaluate(), plain.evaluate()
    assert figures["test/weight"] == 2.0 and figures["test/loss"] == pytest.approx(2 * expected["test/loss"])
    assert figures["test/client_accuracy_mean"] == expected["test/client_accuracy_mean"]


def test_labels_are_the_first_of_several() -> None:
    options = {"client_test": 0.3, "test_like_clients": True}
    parts, plain = Halves(labelled=True, **options).federation, TinyData(**options).federation
    assert torch.equal(parts.pooled_label_counts, plain.pooled_label_counts)
    assert torch.equal(parts.test.labels, plain.test.targets) and len(parts.test.targets["weight"]) == len(plain.test)
    assert LongTail(5.0)(parts.train, 4, 0).hash == LongTail(5.0)(plain.train, 4, 0).hash


@pytest.mark.parametrize("name", ["FedCOG", "VHL", "DENSE", "FedDM", "FedReg"])
def test_methods_that_make_inputs_refuse_them(name: str) -> None:
    with pytest.raises(ValueError, match=f"{name} makes, moves or reads inputs and targets itself, .* or remove {name}"):
        train(CASES[name].method, module=classifier(ByName), data=Halves())
