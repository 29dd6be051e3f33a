"""AG News on small files in its format: samples, words and tokens."""

import csv
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import torch

from datamodules.common import everything, one_line, save
from flcog.datamodules import AGNews, ag_news

NEWS = [
    (3, "Wall St. Bears Claw Back Into the Black (Reuters)", "Short-sellers, Wall Street's dwindling\\band of ultra-cynics."),
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
    words = ag_news.tokenize("Wall St. Bears' #39;s \u00fcber-cool")
    assert " ".join(words) == "wall st . bears ' # 39 ; s über - cool"
    assert ag_news.vocabulary([["b", "a", "c"], ["c"]], size=4) == {"c": 2, "a": 3}


def test_ag_news_token_arrays(tmp_path: Path) -> None:
    tokens = np.random.default_rng(0).integers(0, 40, (8, 20)).astype(np.int32)
    arrays = {"tokens_train": tokens, "y_train": np.arange(8) % 4, "tokens_test": tokens[:4], "y_test": np.arange(4)}
    path = save(tmp_path / "tokens.npz", **arrays)
    federation = AGNews(tokens=path, vocab_size=40, max_length=15, num_clients=2).federation
    assert np.array_equal(federation.train.inputs, tokens[:, :15])
    with one_line(ValueError, "tokens_train has id 39, and vocab_size is 39"):
        AGNews(tokens=path, vocab_size=39).setup()
    part = save(tmp_path / "part.npz", tokens_train=tokens)
    with one_line(ValueError, r"part.npz cannot be read.*y_train"):
        AGNews(tokens=part).setup()
