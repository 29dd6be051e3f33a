"""HuggingFace: columns of data sets in memory, folders and files give the same as arrays with the same values."""

from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pytest
import torch
from harness import ROOT, distance, make_trainer
from PIL import Image
from torch import Tensor, nn

from datamodules.common import everything, one_line
from datamodules.test_torch_dataset import COMMON, FEATURES, LABELS, OPTIONS, module, trained
from flcog.commands.cli import main
from flcog.datamodules import ArrayData, HuggingFace, Natural

NAMES = np.array(["owl", "cat", "dog"])
OWNERS = np.array(["ann", "bob", "cem"])[np.arange(60) % 3]


def rows(count: int = 60) -> datasets.Dataset:
    return datasets.Dataset.from_dict(
        {
            "x": FEATURES[:count].tolist(),
            "label": LABELS[:count].tolist(),
            "kind": NAMES[LABELS[:count]].tolist(),
            "owner": OWNERS[:count].tolist(),
            "text": [" ".join("abcdefgh"[: 1 + i % 5]) for i in range(count)],
        }
    )


def of(dataset: Any = None, **options: Any) -> HuggingFace:
    return HuggingFace(rows() if dataset is None else dataset, **{"input": "x", "num_workers": 0, **COMMON, **options})


def double(x: Any) -> Tensor:
    return 2 * torch.as_tensor(x, dtype=torch.float32)


def halved(x: Any) -> Tensor:
    return torch.as_tensor(x, dtype=torch.float32) / 2


def shaken(x: Any) -> Tensor:
    return torch.as_tensor(x, dtype=torch.float32) + torch.rand(6)


@pytest.mark.parametrize("transform", [None, torch.as_tensor], ids=["stored", "streamed"])
def test_rows_train_like_arrays(transform: Any, tmp_path: Path) -> None:
    both = datasets.DatasetDict({"train": rows(), "test": rows(9)})
    arrays = {"train_inputs": FEATURES, "train_targets": LABELS, "test_inputs": FEATURES[:9], "test_targets": LABELS[:9]}
    got, expected = (trained(data, tmp_path) for data in (of(both, transform=transform), ArrayData(**arrays, **COMMON)))
    assert distance(got.state, expected.state) == 0 and got.rows[-1]["test/loss"] == expected.rows[-1]["test/loss"]


@pytest.mark.parametrize("kind", ["folder", "folder of splits", "parquet", "csv", "json"])
def test_files(kind: str, tmp_path: Path) -> None:
    if kind == "folder":
        rows().save_to_disk(tmp_path / "saved")
        given: Any = str(tmp_path / "saved")
    elif kind == "folder of splits":
        datasets.DatasetDict({"train": rows(), "test": rows(9)}).save_to_disk(tmp_path / "saved")
        given = tmp_path / "saved"
    else:
        given = {"train": str(tmp_path / f"a.{kind}"), "test": str(tmp_path / f"b.{kind}")}
        for file, count in zip(given.values(), (60, 9), strict=True):
            getattr(rows(count), f"to_{kind}")(file)
    input = "x" if kind != "csv" else "text"
    federation = of(given, input=input, transform=len if kind == "csv" else None, users="owner", partitioner=None).federation
    assert federation.num_clients == 3 and (federation.test is None) == (kind == "folder")
    assert federation.train.targets.tolist() == LABELS.tolist()
    assert federation.partition.client(2).tolist() == list(range(2, 60, 3))


def test_classes_by_name() -> None:
    texts = of(target="kind").federation
    assert texts.class_names == ("cat", "dog", "owl") and texts.train.targets.tolist() == [[2, 0, 1][c] for c in LABELS]
    named = rows().cast_column("label", datasets.ClassLabel(names=["a", "b", "c", "never"]))
    data = of(named)
    assert data.num_classes == 4 and data.federation.class_names == ("a", "b", "c", "never")


def labels_of(lists: list[list[int]], names: str = "abc") -> datasets.Dataset:
    table = datasets.Dataset.from_dict({"x": FEATURES[: len(lists)].tolist(), "label": lists})
    return table.cast_column("label", datasets.Sequence(datasets.ClassLabel(names=list(names))))


@pytest.mark.parametrize(
    "options", [{}, {"transform": torch.as_tensor}, {"cache_dir": "cache"}], ids=["stored", "streamed", "cached"]
)
def test_lists_of_named_classes_are_several_labels(options: dict[str, Any], tmp_path: Path) -> None:
    options |= {"cache_dir": str(tmp_path)} if "cache_dir" in options else {}
    data = of(labels_of([[0], [2, 1], [], [2]] * 10), partitioner=None, **options)
    federation = data.federation
    assert (federation.task, federation.class_names, data.num_classes) == ("multilabel", ("a", "b", "c"), 3)
    inputs, targets = everything(federation, federation.train)
    assert targets.tolist() == [[1, 0, 0], [0, 1, 1], [0, 0, 0], [0, 0, 1]] * 10
    assert torch.equal(inputs.double(), torch.from_numpy(FEATURES[:40]).double())


class Tokenizer:
    """Has the call and the return type of transformers' tokenizers."""

    def __call__(self, text: str) -> Any:
        from collections import UserDict

        ids = [1 + "abcdefgh".index(word) for word in text.split()]
        return UserDict({"input_ids": ids + [0] * (5 - len(ids)), "attention_mask": [1] * len(ids) + [0] * (5 - len(ids))})


class Bag(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.head = nn.Embedding(9, 4), nn.Linear(4, 3)

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        return self.head((self.embedding(input_ids) * attention_mask[..., None]).sum(1))


def test_texts_and_columns_of_tokens(tmp_path: Path) -> None:
    """A tokenizer in the workers gives the same run as columns of tokens with the same names."""
    tokens = rows().map(lambda row: dict(Tokenizer()(row["text"])))
    renamed = tokens.rename_columns({"input_ids": "ids"})
    runs = [
        trained(data, tmp_path, Bag, executor="loop", rounds=1, eval_every=0)
        for data in (
            of(input="text", transform=Tokenizer()),
            of(tokens, input=["input_ids", "attention_mask"]),
            of(renamed, input={"input_ids": "ids", "attention_mask": "attention_mask"}, cache_dir=str(tmp_path / "cache")),
        )
    ]
    assert distance(runs[0].state, runs[1].state) == distance(runs[0].state, runs[2].state) == 0


def longest(inputs: list[dict[str, Any]]) -> Any:
    width = max(len(row["input_ids"]) for row in inputs)
    return {name: torch.tensor([[*row[name], *[0] * (width - len(row[name]))] for row in inputs]) for name in inputs[0]}


def ragged(text: str) -> dict[str, list[int]]:
    tokens = Tokenizer()(text)
    return {name: values[: sum(tokens["attention_mask"])] for name, values in tokens.items()}


def test_a_collator_pads(tmp_path: Path) -> None:
    runs = [
        trained(of(input="text", transform=transform, collate_fn=collate), tmp_path, Bag, executor="loop", precision="64-true")
        for transform, collate in ((Tokenizer(), None), (ragged, longest))
    ]
    assert distance(runs[0].state, runs[1].state) < 1e-14


def test_pictures(tmp_path: Path) -> None:
    pixels = np.random.default_rng(0).integers(256, size=(12, 5, 4, 3), dtype=np.uint8)
    table = datasets.Dataset.from_dict({"image": [Image.fromarray(image) for image in pixels], "label": [0, 1] * 6})
    data = HuggingFace(table, num_workers=1, num_clients=2)
    inputs, _ = everything(data.federation, data.federation.train)
    assert torch.equal(inputs, torch.from_numpy(pixels.transpose(0, 3, 1, 2) / np.float32(255)))


def test_another_transform_for_evaluation(tmp_path: Path) -> None:
    """Steps train on ``transform``; tests and the clients' held-out samples are read with ``eval_transform``, without random keys."""
    both, some = datasets.DatasetDict({"train": rows(), "test": rows(9)}), torch.arange(9)
    for options in ({"transform": double, "eval_transform": torch.as_tensor}, {"eval_transform": halved}):
        federation = of(both, **options).federation
        train, test = federation.train, federation.test
        assert test is not None and torch.equal(train.gather(some, some.numpy().astype(np.uint64)), 2 * test.gather(some))
        assert torch.equal(train.gather(some), test.gather(some))
    data = of(transform=shaken, eval_transform=torch.as_tensor, client_val=0.2, num_workers=2)
    run, network = trained(data, tmp_path, rounds=1), module()
    network.model.load_state_dict(run.state)  # type: ignore[union-attr]
    own = data.federation.client_val.indices  # type: ignore[union-attr]
    outputs = network.eval()(torch.from_numpy(FEATURES[own]))
    expected = nn.functional.cross_entropy(outputs, torch.from_numpy(LABELS[own])).item()
    assert run.rows[-1]["val/loss"] == pytest.approx(expected, rel=1e-4)


@pytest.mark.parametrize(
    ("options", "what"),
    [
        ({"input": "pixels"}, "HuggingFace: the train set has no 'pixels'; it has x, label, kind, owner, text"),
        ({"val": "validation"}, "there is no split 'validation'; the data set has train: set data.val"),
        ({"input": "text"}, "its input holds text, and a network takes numbers: .*tokenizer|training set contains a str"),
        ({"dataset": rows().to_iterable_dataset()}, "is a stream, .* without streaming=True"),
        ({"dataset": {"train": "none.parquet"}}, "HuggingFace found no none.parquet"),
    ],
    ids=lambda value: "" if isinstance(value, str) else str(list(value)) if value else "",
)
def test_what_it_refuses(options: dict[str, Any], what: str) -> None:
    data = of(options.pop("dataset", None), **options)
    with one_line((ValueError, FileNotFoundError), what):
        make_trainer(None, **OPTIONS).prepare(module(), data)


def test_a_cache_has_no_second_transform(tmp_path: Path) -> None:
    with one_line(ValueError, "cache_dir keeps each training sample once, .* leave out cache_dir"):
        of(transform=double, eval_transform=torch.as_tensor, client_val=0.2, cache_dir=str(tmp_path))


def test_no_hub(monkeypatch: pytest.MonkeyPatch) -> None:
    def unreachable(*arguments: Any, **options: Any) -> Any:
        raise ConnectionError("no route\nto host")

    monkeypatch.setattr(datasets, "load_dataset", unreachable)
    with one_line(ValueError, "mnist cannot be loaded .*no route to host.*give a folder that save_to_disk wrote, or files"):
        HuggingFace("mnist").setup()


def natural(name: str, count: int = 48) -> datasets.Dataset:
    """A few rows with the columns of the data set on the hub."""
    rng = np.random.default_rng(0)

    def image(i: int) -> Any:
        height, width, channels = {"femnist": (28, 28, 1), "celeba": (218, 178, 3)}.get(name, (40 + i % 3, 50, 3))
        return Image.fromarray(rng.integers(0, 256, (height, width, channels), dtype=np.uint8).squeeze())

    owners = [f"{'abcd'[i % 4]}" for i in range(count)]
    if name == "shakespeare":
        texts = {"x": ["to be, or not to be" * 5] * count, "y": list("abc") * (count // 3)}
        return datasets.Dataset.from_dict({"character_id": owners, **texts})
    target, users = {"femnist": ("character", "writer_id"), "celeba": ("Smiling", "celeb_id")}.get(name, ("label", "domain"))
    classes = {"femnist": 62, "pacs": 7, "office-home": 65, "digits-5": 10, "domainnet": 345}.get(name)
    features = {"image": datasets.Image(), users: datasets.Value("string")}
    features |= {target: datasets.ClassLabel(num_classes=classes) if classes else datasets.Value("bool")}
    labels = [i % classes if classes else i % 3 == 0 for i in range(count)]
    columns = {"image": [image(i) for i in range(count)], users: owners, target: labels}
    return datasets.Dataset.from_dict(columns, datasets.Features(features))


@pytest.mark.slow
@pytest.mark.parametrize("path", sorted((ROOT / "configs/natural").glob("*.yaml")), ids=lambda path: path.stem)
def test_natural_clients(path: Path, tmp_path: Path, command_line: None, capsys: pytest.CaptureFixture[str]) -> None:
    natural(path.stem).to_parquet(tmp_path / "rows.parquet")
    parts = 2 if "domain" in path.read_text() else 1
    given = {
        "trainer.rounds": 1,
        "data.dataset": tmp_path / "rows.parquet",
        "data.num_workers": 0,
        "trainer.clients_per_round": 2,
    }
    given |= {"trainer.default_root_dir": tmp_path, "trainer.logger": False, "data.partitioner.clients_per_user": parts}
    options = [word for name, value in given.items() for word in (f"--{name}", str(value))]
    main(["fit", "-c", str(path), *options])
    assert "round 1/1  test client accuracy 0." in capsys.readouterr().out
    (run,) = tmp_path.glob("2*")
    assert len((run / "clients.csv").read_text().splitlines()) == 1 + 4 * parts


def test_a_user_may_have_several_clients() -> None:
    data = of(users="owner", partitioner=Natural(clients_per_user=3))
    partition = data.federation.partition
    assert [len({OWNERS[row] for row in partition.client(k)}) for k in range(9)] == [1] * 9
    assert sorted(partition.indices) == list(range(60)) and set(partition.sizes) == {6, 7}
