"""RandomData: shapes, types, ranges, balanced classes, and equal data for equal seeds. It can be split and trained on like a data set."""

from pathlib import Path

import pytest
import torch
import yaml
from torch import Tensor

from datamodules.common import everything, one_line
from flcog.commands.cli import main
from flcog.data import Samples
from flcog.datamodules import RandomData


def parts(data: RandomData) -> tuple[Samples, Samples]:
    federation = data.federation
    assert federation.test is not None
    return federation.train, federation.test


def test_images() -> None:
    data = RandomData(shape=(16, 12, 3), num_samples=2000, num_test_samples=300, num_classes=10)
    train, test = parts(data)
    assert train.inputs.shape == (2000, 16, 12, 3) and test.inputs.shape == (300, 16, 12, 3) and train.inputs.dtype == torch.uint8
    assert train.inputs.unique().tolist() == list(range(256))
    inputs, targets = everything(data.federation, train)
    assert inputs.shape == (2000, 3, 16, 12) and inputs.is_contiguous(memory_format=torch.channels_last)
    assert abs(inputs.mean()) < 0.01 and abs(inputs.std() - 1) < 0.01
    assert targets.dtype == torch.int64
    assert targets.bincount().tolist() == [200] * 10 and test.targets.bincount().tolist() == [30] * 10


def test_features() -> None:
    train, _ = parts(RandomData(shape=[784], num_samples=1003, num_classes=4))
    assert train.inputs.shape == (1003, 784) and train.inputs.dtype == torch.float32
    assert abs(train.inputs.mean()) < 0.01 and abs(train.inputs.std() - 1) < 0.01
    assert sorted(train.targets.bincount().tolist()) == [250, 251, 251, 251]


def test_token_ids() -> None:
    data = RandomData(shape=[20], vocab_size=30, num_samples=500, num_classes=4)
    inputs, _ = everything(data.federation, data.federation.train)
    assert inputs.shape == (500, 20) and not inputs.is_floating_point()
    assert inputs.unique().tolist() == list(range(1, 30)), "0 is padding"


@pytest.mark.parametrize("kind", [{"shape": (4, 4, 1)}, {"shape": (6,)}, {"shape": (6,), "vocab_size": 50}], ids=str)
def test_a_seed_fixes_the_samples(kind: dict) -> None:
    def drawn(**options: int) -> tuple[Tensor, ...]:
        train, test = parts(RandomData(**kind, num_samples=200, num_test_samples=options.pop("num_test_samples", 200), **options))
        return train.inputs, train.targets, test.inputs, test.targets

    first = drawn(seed=3)
    torch.manual_seed(17)
    assert all(map(torch.equal, first, drawn(seed=3)))
    assert not any(map(torch.equal, first, drawn(seed=4)))
    assert all(map(torch.equal, first[:2], drawn(seed=3, num_test_samples=7)[:2])), "the test set's size moves no training sample"
    assert not torch.equal(first[0], first[2]), "the test set is another draw"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"shape": (28, 28)}, "the length of shape must be 1 or 3; got 2: height, width and channels"),
        ({"vocab_size": 100}, "vocab_size belongs to rows, and augmentation to images"),
        ({"num_samples": 0}, "num_samples must be at least 1; got 0"),
    ],
    ids=str,
)
def test_what_cannot_be_drawn(options: dict, message: str) -> None:
    with one_line(ValueError, message):
        _ = RandomData(**options).federation


RUN = """
trainer: {rounds: 1, local_steps: 2, logger: false, executor: EXECUTOR}
model: {class_path: flcog.Classifier, init_args: {model: {class_path: flcog.models.SoftmaxRegression, init_args: {in_features: 48}}}}
data:
  class_path: flcog.datamodules.RandomData
  init_args: {shape: [4, 4, 3], num_samples: 100, num_test_samples: 40, num_clients: 5, batch_size: 8, augmentation: flip}
"""


@pytest.mark.usefixtures("command_line")
@pytest.mark.parametrize("executor", ["loop", "vmap"])
def test_a_run_from_yaml(executor: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = tmp_path / "random.yaml"
    config.write_text(RUN.replace("EXECUTOR", executor))
    main(["fit", "-c", str(config), "--trainer.default_root_dir", str(tmp_path / "runs")])
    assert "1 of 1" in capsys.readouterr().out
    (run,) = (tmp_path / "runs").glob("*/config.yaml")
    assert yaml.safe_load(run.read_text())["data"]["init_args"]["shape"] == [4, 4, 3]
    assert len((run.parent / "metrics.csv").read_text().splitlines()) >= 2
