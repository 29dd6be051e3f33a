"""New inputs: predictions for files, frames, texts and pictures are those for the same samples as arrays, or as a test set."""

import re
from pathlib import Path
from typing import Any

import datasets
import lightning as L
import numpy as np
import pandas
import pytest
import torch
from harness import make_trainer
from PIL import Image
from torch import Tensor, nn
from torchvision.datasets import ImageFolder
from torchvision.transforms import ToTensor

import flcog
from datamodules.common import bytes_of
from datamodules.test_ag_news import write_news
from flcog.datamodules import AGNews, Digits, HuggingFace, ImageFolders, Table, TorchDataset
from flcog.datamodules.new_inputs import read_new
from flcog.models import MLP
from flcog.run.predictions import by_name, write_predictions

ROWS = pandas.DataFrame({"age": range(20, 60), "colour": ["red", "blue"] * 20, "ill": [0, 1, 1, 0] * 10, "name": "x"})
NEW = pandas.DataFrame({"id": ["a", "b", "c"], "colour": ["blue", "green", "red"], "age": [30, 90, 10]})


def trained(network: nn.Module, data: Any) -> Any:
    trainer = make_trainer(None, rounds=1, clients_per_round=1.0, precision="32-true")
    trainer.prepare(flcog.Classifier(network), data)
    return trainer


@pytest.mark.parametrize("how", ["frame", "index", ".csv", ".parquet"])
def test_rows_are_prepared_as_the_training_rows(how: str, tmp_path: Path) -> None:
    table = Table(ROWS, target="ill", users="name", num_clients=1)
    given: Any = {"frame": NEW, "index": NEW.set_index("id")}.get(how, tmp_path / f"new{how}")
    if how == ".csv":
        NEW.to_csv(given, index=False)
    elif how == ".parquet":
        NEW.to_parquet(given)
    network = MLP(3, (4,), 2)
    found = trained(network, table).predict(inputs=given)
    one_hot = np.stack([ROWS["age"], ROWS["colour"] == "blue", ROWS["colour"] == "red"], 1).astype(np.float64)
    new = (np.array([[30, 1, 0], [90, 0, 0], [10, 0, 1]]) - one_hot.mean(0)) / one_hot.std(0)
    expected = network(torch.from_numpy(new).float()).softmax(1).detach()
    torch.testing.assert_close(found["probability"], expected)
    assert found["sample"].tolist() == ["a", "b", "c"] and "target" not in found
    found = trained(network, table).predict(inputs=NEW.drop(columns="id"))
    assert found["sample"].tolist() == [0, 1, 2]


def write_pictures(root: Path) -> None:
    for seed, name in enumerate(
        f"{split}/{label}/{i}.png" for split in ("train", "test") for label in ("cat", "dog") for i in range(4)
    ):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(bytes_of(8, 8, 3, seed=seed)).save(root / name)


@pytest.mark.parametrize("own", ["arrays", "transform"])
def test_pictures_and_their_folders(own: str, tmp_path: Path) -> None:
    write_pictures(tmp_path)
    data: Any = ImageFolders(str(tmp_path), num_clients=2, mean=[0.4, 0.5, 0.6], std=[0.2, 0.2, 0.3])
    if own == "transform":
        sets = [ImageFolder(str(tmp_path / split), ToTensor()) for split in ("train", "test")]
        data = TorchDataset(*sets, num_clients=2, num_workers=0)
    trainer = trained(MLP(192, (4,), 2), data)
    expected = trainer.predict()["probability"]
    found = trainer.predict(inputs=tmp_path / "test")
    assert torch.equal(found["probability"], expected) and found["sample"][5] == "dog/1.png"
    file = str(tmp_path / "test/dog/1.png")
    some = trainer.predict(inputs=[file, file])
    torch.testing.assert_close(some["probability"], expected[[5, 5]])
    assert some["sample"].tolist() == [file] * 2


def test_a_larger_picture_is_scaled_to_the_data_sets(tmp_path: Path) -> None:
    Image.new("RGB", (40, 60), (90, 90, 90)).save(tmp_path / "grey.png")
    inputs = read_new(Digits(image_size=8, num_clients=2), tmp_path / "grey.png").inputs
    assert inputs.shape == (1, 8, 8, 1) and inputs.unique().tolist() == [90]


def counts(text: str) -> Tensor:
    return torch.tensor([float(text.count(letter)) for letter in "abc"])


def test_lines_of_text(tmp_path: Path) -> None:
    texts = ["ab", "bbc", "ca", "aaa"] * 3
    rows = datasets.Dataset.from_dict({"text": texts, "label": [0, 1, 0, 1] * 3})
    both = datasets.DatasetDict({"train": rows, "test": rows})
    trainer = trained(MLP(3, (4,), 2), HuggingFace(both, "text", transform=counts, num_clients=2, num_workers=0))
    expected = trainer.predict()["probability"]
    (tmp_path / "new.txt").write_text("\n".join(texts))
    for given in (tmp_path / "new.txt", texts, pandas.DataFrame({"text": texts})):
        found = trainer.predict(inputs=given)
        assert torch.equal(found["probability"], expected) and found["sample"].tolist() == list(range(12))


def test_articles(tmp_path: Path) -> None:
    write_news(tmp_path)
    data = AGNews(str(tmp_path), max_length=12, num_clients=2)
    assert data.federation.test is not None
    found = read_new(data, ['Oil prices, oil A "quoted" word; the oil.', "unseen words"]).inputs
    assert torch.equal(found, data.federation.test.inputs[[1, -1]])


class Own(L.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.network = MLP(3, (4,), 2)

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        return nn.functional.cross_entropy(self.network(batch[0]), batch[1])

    def predict_step(self, batch: Any, batch_idx: int) -> dict[str, Tensor]:
        return {"prediction": self.network(batch[0]).argmax(1)}

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), lr=0.1)


def test_a_modules_own_results_have_names_in_the_file(tmp_path: Path) -> None:
    trainer, own = make_trainer(None, rounds=1, clients_per_round=1.0, precision="32-true"), Own()
    trainer.prepare(own, Table(ROWS.drop(columns="name"), target="ill", num_clients=1, eval_batch_size=2))
    results = trainer.predict(inputs=NEW)
    assert [len(result["prediction"]) for result in results] == [2, 1]
    write_predictions(tmp_path / "p.csv", by_name(results), ("well", "ill"))
    written = pandas.read_csv(tmp_path / "p.csv")
    assert written["sample"].tolist() == ["a", "b", "c"] and set(written["prediction"]) <= {"well", "ill"}


WRONG: dict[str, tuple[Any, str]] = {
    "a column is missing": (NEW.drop(columns="age"), "inputs has no 'age'; it has id, colour"),
    "text for numbers": (NEW.assign(age="old"), "column 'age' holds numbers in train, and in inputs values such as old"),
    "a missing value": (NEW.assign(age=[1, None, 2]), "column 'age' of inputs has 1 missing values, the first in row 1"),
    "no file": ("none.csv", "predict found no none.csv"),
}


@pytest.mark.parametrize("case", WRONG)
def test_wrong_inputs_are_named(case: str) -> None:
    given, message = WRONG[case]
    with pytest.raises((ValueError, FileNotFoundError), match=re.escape(message)):
        read_new(Table(ROWS, target="ill", features=["age", "colour"], num_clients=1), given)


def test_a_data_set_says_what_it_reads(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"Digits cannot read a table: give arrays .*\.npy or \.npz"):
        read_new(Digits(num_clients=2), NEW)
    with pytest.raises(ValueError, match=r"has no images \(\.png"):
        read_new(Digits(num_clients=2), tmp_path)
