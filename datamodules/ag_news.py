"""AG News: headlines and first sentences of news articles in four topics."""

import csv
import re
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import torch

from flcog.core.checks import at_least
from flcog.core.files import arrays_in
from flcog.data import FederatedDataModule, NewInputs, Samples, Splits
from flcog.datamodules.files import reading, require_files

_HOW_TO_GET = (
    "get ag_news_csv of Zhang et al. (linked from https://github.com/zhangxiangxiao/Crepe), unpack it, and pass "
    "--data.data_dir; or pass --data.tokens with an .npz of token ids"
)


class AGNews(FederatedDataModule):
    """120,000 training and 7,600 test articles as sequences of token ids, in 4 equally large topics.

    Reads ``<data_dir>/train.csv`` and ``test.csv`` (Zhang et al. 2015, https://arxiv.org/abs/1509.01626), whose columns are the
    topic from 1 to 4, the title and the description, with or without a line of headings. Words and punctuation marks, in lower
    case, are tokens. Id 0 is padding, 1 is for words outside the vocabulary, and the others are numbered from 2 by falling
    frequency in the training set, equally frequent ones in alphabetical order.

    It can also read arrays of token ids that are already padded with 0: ``tokens_train``, ``y_train``, ``tokens_test``,
    ``y_test``.

    Args:
        data_dir: the folder with the two files.
        tokens: an ``.npz`` file of token ids to read instead.
        vocab_size: ids are below this. The default holds every word of the training set, as in token arrays made by PFLlib; the
            model's embedding needs the same number.
        max_length: tokens kept of each article; the longest has about 200.
    """

    num_classes = 4
    class_names = ("World", "Sports", "Business", "Sci/Tech")

    def __init__(
        self,
        data_dir: str = "data/ag_news",
        tokens: str | None = None,
        vocab_size: int = 98_635,
        max_length: int = 200,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        at_least(self, 3, vocab_size=vocab_size)
        at_least(self, 1, max_length=max_length)
        self.data_dir, self.tokens, self.vocab_size, self.max_length = Path(data_dir), tokens, vocab_size, max_length

    def load(self) -> Splits:
        if self.tokens is not None:
            return self._load_tokens(Path(self.tokens))
        paths = [self.data_dir / "train.csv", self.data_dir / "test.csv"]
        require_files("AGNews", paths, _HOW_TO_GET)
        train, test = ([(topic, tokenize(text)) for topic, text in read_articles(path)] for path in paths)
        self._ids = vocabulary((words for _, words in train), self.vocab_size)
        return Splits(*(Samples(self._encoded(rows), torch.tensor([topic for topic, _ in rows])) for rows in (train, test)))

    def new_inputs(self, rows: Any) -> NewInputs:
        if self.tokens is not None or not isinstance(rows, list):
            return super().new_inputs(rows)
        return NewInputs(self._encoded([(0, tokenize(text)) for text in rows]), range(len(rows)))

    def _encoded(self, articles: list[tuple[int, list[str]]]) -> torch.Tensor:
        inputs = np.zeros((len(articles), self.max_length), dtype=np.int32)
        for row, (_, words) in zip(inputs, articles, strict=True):
            kept = words[: self.max_length]
            row[: len(kept)] = [self._ids.get(word, 1) for word in kept]
        return torch.from_numpy(inputs)

    def _load_tokens(self, path: Path) -> Splits:
        require_files("AGNews", [path], _HOW_TO_GET)
        parts = []
        for part in ("train", "test"):
            with reading(path), arrays_in(path) as arrays:
                inputs, targets = arrays[f"tokens_{part}"][:, : self.max_length], arrays[f"y_{part}"]
            if inputs.max() >= self.vocab_size:
                raise ValueError(f"tokens_{part} has id {inputs.max()}, and vocab_size is {self.vocab_size}: raise vocab_size")
            parts.append(Samples(torch.from_numpy(inputs.astype(np.int32)), torch.from_numpy(targets.astype(np.int64))))
        return Splits(*parts)


def tokenize(text: str) -> list[str]:
    """Words and punctuation marks, in lower case."""
    return re.findall(r"\w+|[^\w\s]", text.lower())


def vocabulary(texts: Iterable[list[str]], size: int) -> dict[str, int]:
    """Ids from 2 to ``size`` - 1 by falling frequency, of equally frequent words in alphabetical order."""
    counts: Counter[str] = Counter()
    for words in texts:
        counts.update(words)
    order = sorted(counts, key=lambda word: (-counts[word], word))
    return {word: id for id, word in enumerate(order[: size - 2], start=2)}


def read_articles(path: Path) -> list[tuple[int, str]]:
    """Topic, from 0, and text of each article."""
    articles = []
    with reading(path), path.open(newline="", encoding="utf-8") as file:
        for number, row in enumerate(csv.reader(file), start=1):
            if number == 1 and len(row) == 3 and not row[0].isdigit():
                continue
            # The release writes a line break as a backslash.
            articles.append((int(row[0]) - 1, f"{row[1]} {row[2]}".replace("\\", " ")))
    return articles
