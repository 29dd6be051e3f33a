"""AG News on small files in its format: samples, words and tokens."""

import csv
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import torch
from harness import make_trainer
from torch import Tensor, nn

import flcog
from datamodules.common import everything, one_line, save
from flcog.datamodules import AGNews, BiasedUnbiased, ag_news
from flcog.models import TextCNN

NEWS = [
    (
        3,
        "Wall St. Bears Claw Back Into the Black (Reuters)",
        "Reuters - Short-sellers, Wall Street's dwindling\\band of ultra-cynics.",
    ),
    (1, "Oil prices, oil", 'A "quoted" word; the oil.'),
    (2, "Goal", "The the THE"),
    (4, "CPU", ""),
] * 3


def write_news(root: Path, header: bool = False) -> None:
    for name in ("train.csv", "test.csv"):
        with (root / name).open("w", newline="", encoding="utf-8") as file:
            writer = csv.writer(file, quoting=csv.QUOTE_ALL)
            writer.writerows(
                [("Class Index", "Title", "Description")] * header + NEWS + [(1, "unseen", "words")] * (name == "test.csv")
            )


@pytest.mark.parametrize("header", [False, True])
def test_ag_news(tmp_path: Path, header: bool) -> None:
    write_news(tmp_path, header)
    federation = AGNews(str(tmp_path), max_length=12, num_clients=2).federation
    assert federation.test is not None and federation.class_names is not None
    assert federation.train.targets.tolist() == [2, 0, 1, 3] * 3 and federation.test.targets[-1] == 0
    inputs, _ = everything(federation, federation.train)
    assert inputs.shape == (12, 12) and inputs.dtype == torch.int32
    words = Counter(word for _, title, text in NEWS for word in ag_news.tokenize(f"{title} {text}".replace("\\", " ")))
    order = sorted(words, key=lambda word: (-words[word], word))
    assert order[0] == "the" and inputs[2].tolist() == [2 + order.index("goal"), 2, 2, 2] + [0] * 8
    assert inputs[3].tolist() == [2 + order.index("cpu")] + [0] * 11
    assert federation.test.inputs[-1].tolist() == [1, 1] + [0] * 10


def test_ag_news_words() -> None:
    assert ag_news.tokenize("Wall St. Bears' #39;s \u00fcber-cool") == [
        "wall",
        "st",
        ".",
        "bears",
        "'",
        "#",
        "39",
        ";",
        "s",
        "über",
        "-",
        "cool",
    ]
    assert ag_news.vocabulary([["b", "a", "c"], ["c"]], size=4) == {"c": 2, "a": 3}


def test_ag_news_as_in_feddisco(tmp_path: Path) -> None:
    with (tmp_path / "train.csv").open("w", newline="") as file:
        csv.writer(file).writerows((1 + k % 4, f"title {k}", "text") for k in range(400))
    (tmp_path / "test.csv").write_bytes((tmp_path / "train.csv").read_bytes())
    federation = AGNews(str(tmp_path), num_clients=5, partitioner=BiasedUnbiased(4, 1, 2)).federation
    assert [int((federation.label_counts(k) > 0).sum()) for k in range(5)] == [2, 2, 2, 2, 4]


def test_ag_news_token_arrays(tmp_path: Path) -> None:
    tokens = np.random.default_rng(0).integers(0, 40, (8, 20)).astype(np.int32)
    arrays = {
        "tokens_train": tokens,
        "y_train": np.arange(8) % 4,
        "len_train": np.full(8, 20),
        "tokens_test": tokens[:4],
        "y_test": np.arange(4),
    }
    path = save(tmp_path / "tokens.npz", **arrays)
    federation = AGNews(tokens=path, vocab_size=40, max_length=15, num_clients=2).federation
    assert np.array_equal(federation.train.inputs, tokens[:, :15])
    with one_line(ValueError, r"tokens.npz: tokens_train has id 39, and vocab_size is 39"):
        AGNews(tokens=path, vocab_size=39).setup()
    wrong = save(tmp_path / "wrong.npz", **{**arrays, "y_test": np.arange(1, 5)})
    with one_line(ValueError, r"wrong.npz: y_test has label 4"):
        AGNews(tokens=wrong).setup()
    part = save(tmp_path / "part.npz", tokens_train=tokens)
    with one_line(ValueError, r"part.npz cannot be read.*y_train"):
        AGNews(tokens=part).setup()


def tokens_up_to(folder: Path, largest: dict[str, int]) -> AGNews:
    """Ids from 1 to 9, with a larger one in the last row of some sets."""
    arrays = {}
    for part in ("train", "test"):
        arrays[f"tokens_{part}"] = np.random.default_rng(0).integers(1, 10, (8, 20))
        arrays[f"tokens_{part}"][-1, -1] = largest.get(part, 1)
        arrays[f"y_{part}"] = np.arange(8) % 4
    return AGNews(tokens=save(folder / "tokens.npz", **arrays), vocab_size=40, num_clients=2)


@pytest.mark.parametrize(("part", "name"), [("train", "training"), ("test", "test")])
def test_a_model_with_too_few_ids(part: str, name: str, tmp_path: Path) -> None:
    message = f"'model.embedding' embeds the ids 0 to 29, and the {name} set has ids from 1 to 35: give the model at least 36 ids"
    with one_line(ValueError, message):
        make_trainer(None).prepare(flcog.Classifier(TextCNN(30)), tokens_up_to(tmp_path, {part: 35}))


def test_inputs_with_unknown_ids(tmp_path: Path) -> None:
    trainer = make_trainer(None, precision="32-true", clients_per_round=1.0)
    trainer.prepare(flcog.Classifier(TextCNN(36)), tokens_up_to(tmp_path, {"train": 35}))
    assert len(trainer.predict(inputs=np.full((2, 20), 35))["prediction"]) == 2
    with one_line(
        ValueError, "'model.embedding' embeds the ids 0 to 35, and the array to predict has ids from 36 to 36: give ids"
    ):
        trainer.predict(inputs=np.full((2, 20), 36))


class Positions(nn.Embedding):
    """Reads only the shape of the ids, as the positions of some transformers do."""

    def forward(self, ids: Tensor) -> Tensor:
        return super().forward(torch.arange(ids.shape[1]))


class WithPositions(TextCNN):
    def __init__(self) -> None:
        super().__init__(36)
        self.positions = Positions(20, 32)

    def features(self, x: Tensor) -> Tensor:
        return super().features(x) + self.positions(x).mean()


def test_rows_of_positions_are_no_ids(tmp_path: Path) -> None:
    trainer = make_trainer(None, precision="32-true", clients_per_round=1.0)
    trainer.prepare(flcog.Classifier(WithPositions()), tokens_up_to(tmp_path, {"train": 35}))
    assert len(trainer.predict(inputs=np.full((2, 20), 35))["prediction"]) == 2


def test_ag_news_bad(tmp_path: Path) -> None:
    with one_line(FileNotFoundError, r"AGNews found no .*train.csv.*test.csv.*--data.tokens"):
        AGNews(str(tmp_path)).setup()
    write_news(tmp_path)
    with (tmp_path / "test.csv").open("a") as file:
        file.write('"7","a","b"\n')
    with one_line(ValueError, r"test.csv cannot be read.*row 14 is not a topic"):
        AGNews(str(tmp_path)).setup()
    with one_line(ValueError, "vocab_size must be at least 3"):
        AGNews(vocab_size=2)
