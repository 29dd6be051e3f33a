"""Requirements on all data modules: they are listed, YAML sets their arguments, and they refuse more clients than samples."""

import inspect
import itertools
import math
import re
import textwrap
from pathlib import Path

import numpy as np
import pytest
import torch

import flcog.datamodules
from datamodules.common import one_line, parse
from flcog.data import FederatedDataModule
from flcog.data.preprocess import moments
from flcog.datamodules import CIFAR10, IID, ArrayData, Dirichlet, Natural, RandomData

EXPORTED = {name: getattr(flcog.datamodules, name) for name in flcog.datamodules.__all__}
MODULES = {name for name, cls in EXPORTED.items() if isinstance(cls, type) and issubclass(cls, FederatedDataModule)}


REQUIRED = {
    "ArrayData": ("--data.path=x.npz",),
    "HuggingFace": ("--data.dataset=folder",),
    "InstructionData": ("--data.train=answers.jsonl", "--data.tokenizer=folder"),
    "LightningData": ("--data.module=lightning.pytorch.demos.boring_classes.BoringDataModule",),
    "Table": ("--data.train=rows.csv", "--data.target=y"),
    "TorchDataset": ("--data.train=torchvision.datasets.FakeData",),
}


def test_all_data_sets_are_listed() -> None:
    assert len(MODULES) == 20


@pytest.mark.parametrize("name", sorted(MODULES))
def test_yaml_reaches_own_and_base_arguments(name: str) -> None:
    cls = getattr(flcog.datamodules, name)
    documented = inspect.getdoc(cls) or ""
    own = {n for n in inspect.signature(cls.__init__).parameters if n not in ("self", "kwargs")}
    assert not {argument for argument in own if f"    {argument}: " not in documented}, "undocumented arguments"
    extra = REQUIRED.get(name, ())
    data = parse(f"--data={name}", "--data.num_clients=20", "--data.partition_seed=7", "--data.client_test=0.25", *extra)
    assert type(data) is cls and (data.num_clients, data.partition_seed, data.client_test) == (20, 7, 0.25)


def test_yaml_makes_typed_values() -> None:
    data = parse("--data=CIFAR10", "--data.mean=[0.1, 0.2, 0.3]", "--data.partitioner=Dirichlet", "--data.partitioner.beta=0.1")
    assert isinstance(data, CIFAR10) and data.mean == (0.1, 0.2, 0.3) and data.partitioner == Dirichlet(0.1)
    arrays = parse("--data=ArrayData", "--data.path=x.npz", "--data.mean=auto", "--data.std=auto")
    assert isinstance(arrays, ArrayData) and arrays.mean == "auto"
    assert parse("--data=FEMNIST", "--data.partitioner=IID").partitioner == IID()


def test_more_clients_than_samples() -> None:
    data = ArrayData(train_inputs=np.ones((3, 2)), train_targets=[0, 1, 1], num_clients=4)
    with one_line(ValueError, "1 of 4 clients have no training samples .*: use fewer clients"):
        data.setup()


FROM_FILES = "AGNews CIFAR10 CIFAR100 DSprites FacebookComments FEMNIST FLAIR FashionMNIST HAM10000 ImageFolders MNIST"


@pytest.mark.parametrize("name", FROM_FILES.split())
def test_missing_files_are_named(name: str, tmp_path: Path) -> None:
    with one_line(FileNotFoundError, rf"^{name} found no \S*{tmp_path}"):
        EXPORTED[name](data_dir=str(tmp_path)).setup()


@pytest.mark.parametrize(
    "shares", [{"client_test": -0.1}, {"client_val": math.nan}, {"client_test": 0.5, "client_val": 0.5}], ids=str
)
def test_held_out_parts_are_fractions(shares: dict[str, float]) -> None:
    with pytest.raises(ValueError, match=r"client_.* must lie in \[0, 1\)"):
        RandomData(**shares)


MY_MODULE = """
import lightning

def tokenize(text: str) -> str:
    return text

class MyDataModule(lightning.LightningDataModule):
    def __init__(self, data_dir: str) -> None:
        super().__init__()
"""


@pytest.mark.parametrize("name", ["TorchDataset", "LightningData", "HuggingFace", "Table"])
def test_the_yaml_of_their_docstrings_is_understood(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The data are not loaded, because the files that the YAML names do not exist."""
    (tmp_path / "my_module.py").write_text(MY_MODULE)
    monkeypatch.syspath_prepend(tmp_path)
    documented = re.split("as YAML:\n\n", inspect.getdoc(EXPORTED[name]) or "", flags=re.I)[1]
    text = textwrap.dedent("\n".join(itertools.takewhile(lambda line: line.startswith(" "), documented.splitlines())))
    text = re.sub(r"root: data, train: \w+", "size: 3", text.replace("datasets.CIFAR10", "datasets.FakeData"))
    (tmp_path / "data.yaml").write_text(text)
    assert type(parse(f"--data={tmp_path / 'data.yaml'}")) is EXPORTED[name]


def test_a_number_of_clients_without_effect_is_noted() -> None:
    rows = {"train_inputs": np.zeros((12, 2)), "train_targets": np.arange(12) % 2, "train_users": np.arange(12) % 3}
    data = ArrayData(**rows, num_clients=8, partitioner=Natural())
    assert data.federation.num_clients == 3 and data.notes == ("num_clients=8 has no effect: Natural makes 3 clients",)
    for quiet in ({"partitioner": Natural()}, {"num_clients": 3}, {"train_users": None, "num_clients": 8}):
        data = ArrayData(**(rows | quiet))
        assert data.federation and not data.notes


def test_constant_columns_keep_their_scale() -> None:
    mean, std = moments(torch.tensor([[1.0, 5], [3, 5]]))
    assert mean == (2, 5) and std == (1, 1)
