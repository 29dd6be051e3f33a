"""HuggingFace: a data module for the data sets of the ``datasets`` library, from a hub, a folder or a file."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch.utils.data import Dataset

from flcog.core.extras import require
from flcog.core.text import reason
from flcog.core.trees import Tree
from flcog.data import NewInputs
from flcog.datamodules.files import names_of, require_files, require_names
from flcog.datamodules.item_sets import ItemSets
from flcog.datamodules.items import ItemSet, as_array
from flcog.datamodules.row_file import IN_MEMORY_BYTES

FORMATS = {".csv": "csv", ".json": "json", ".jsonl": "json", ".parquet": "parquet", ".arrow": "arrow", ".txt": "text"}


def characters(text: str) -> torch.Tensor:
    """A text's characters as token ids below 256, as ``transform`` for a network such as ``TextCNN``.

    >>> characters("ab")
    tensor([97, 98])
    """
    return torch.tensor([*text.encode("latin-1", "replace")])


class HuggingFace(ItemSets):
    """Any data set of Hugging Face's ``datasets``: from a hub or, without network access, from files.

    ``input`` names the column for the network. Several columns reach it as a dict, or by name if its forward has parameters of
    these names. The worker processes call ``transform``, for example a tokenizer, on each input, with random streams that follow
    from seed, round, client and sample. With ``users``, every value of that column is a client. Needs ``pip install
    'flcog[datasets]'``.

    Texts, as YAML:

        class_path: HuggingFace
        init_args:
          dataset: {train: reviews/train.parquet, test: reviews/test.parquet}
          input: text
          target: stars
          users: author
          transform: my_module.tokenize

    Args:
        dataset: a ``datasets.Dataset`` or ``DatasetDict``, a name on the hub, a folder that ``save_to_disk`` wrote, a file (.parquet,
            .csv, .json, .arrow), or a dict of files by split.
        input: the column, or a list of columns, or a dict from the network's names to columns.
        target: the column to predict: classes by number or name, values, rows of 0 and 1, or lists of named classes
            (``List(ClassLabel(...))``) for several labels.
        users: the column with the owner of each sample.
        name: the configuration, if a data set on the hub has several.
        train: the split to train on.
        test: the split to test on; none if the data set has no such split.
        val: the split to validate on.
        transform: a function from a stored input (a picture, a text, a dict of columns) to an input of the network.
        eval_transform: the same for test and validation samples, also for those that clients hold out; ``transform`` by default.
        task: the kind of targets; ``auto`` infers it from them.
        num_classes: number of classes or labels, if some do not occur; for regression, bins of the target.
        collate_fn: a function from a list of inputs to a batch, e.g. a ``DataCollatorWithPadding``; see :class:`TorchDataset`.
        num_workers: how many processes read items; 0 reads them in the training process.
        cache_dir: a folder for the transformed items, which are then read once; None transforms them while the model trains.

    Example:
        >>> import datasets
        >>> rows = datasets.Dataset.from_dict({"x": [[0.5, 1.0]] * 40, "y": ["cat", "dog"] * 20, "owner": list("abcd") * 10})
        >>> HuggingFace(rows, input="x", target="y", users="owner").federation.num_clients
        4
    """

    def __init__(
        self,
        dataset: Any,
        input: str | list[str] | dict[str, str] = "image",
        target: str = "label",
        users: str | None = None,
        name: str | None = None,
        train: str = "train",
        test: str | None = "test",
        val: str | None = None,
        transform: Callable[[Any], Any] | None = None,
        eval_transform: Callable[[Any], Any] | None = None,
        task: Literal["auto", "classification", "multilabel", "regression"] = "auto",
        num_classes: int | None = None,
        collate_fn: Callable[[list[Any]], Any] | None = None,
        num_workers: int = 2,
        cache_dir: str | None = None,
        **kwargs: Any,
    ) -> None:
        batches = None if collate_fn is None else partial(_of_inputs, collate_fn)
        super().__init__(task, num_classes, batches, num_workers, cache_dir, **kwargs)
        require("datasets", "HuggingFace", "datasets")
        self._given, self._name, self.input, self.target, self.users = dataset, name, input, target, users
        self.splits = {"train": train, "test": test, "val": val}
        self.transform, self.eval_transform = transform, eval_transform or transform
        if cache_dir is not None and self.eval_transform is not transform and (self.client_val or self.client_test):
            raise ValueError(
                "cache_dir keeps each training sample once, as transform makes it, and client_val and client_test need eval_transform: "
                "leave out cache_dir, or give a val and a test split"
            )

    @property
    def class_names(self) -> tuple[str, ...] | None:  # type: ignore[override]
        """What the data set calls its classes."""
        return self._named or super().class_names

    @property
    def num_classes(self) -> int:  # type: ignore[override]
        """Given, or the data set's, or read from the targets."""
        return len(self._named) if self._named and self._num_classes is None else super().num_classes

    @cached_property
    def _named(self) -> tuple[str, ...] | None:
        rows = self._rows["train"]
        feature = rows.features[self.target]
        if _label_sets(rows, self.target) is not None:
            feature = feature.feature
        return tuple(getattr(feature, "names", None) or ()) or None

    @cached_property
    def _rows(self) -> dict[str, Any]:
        return _splits_of(self._given, self._name, self.splits)

    def new_inputs(self, rows: Any) -> NewInputs:
        columns, features = _columns_of(self.input), self._rows["train"].features
        if isinstance(rows, list):
            if len(columns) > 1:
                raise ValueError(f"HuggingFace reads the columns {', '.join(columns.values())}: give a table with these columns")
            names, rows = range(len(rows)), dict.fromkeys(columns.values(), rows)
        else:
            require_names(rows.columns, columns.values(), "HuggingFace: inputs")
            names = names_of(rows, [*columns.values(), self.target, self.users])
            rows = {column: rows[column].tolist() for column in columns.values()}
        datasets = require("datasets", "HuggingFace", "datasets")
        kept = datasets.Dataset.from_dict(rows, datasets.Features({column: features[column] for column in rows}))
        return NewInputs(self._read_new(_Rows(kept, self.input, None, self.eval_transform), self._stored_of(kept)), names)

    def _stored_of(self, rows: Any) -> Tree | None:
        return None if self.eval_transform or self.collate_fn or self.cache_dir else _stored(rows, self.input)

    def _parts(self) -> dict[str, ItemSet]:
        parts = {}
        for part, rows in self._rows.items():
            owners = [self.users] if self.users and part == "train" else []
            require_names(
                rows.column_names, [*_columns_of(self.input).values(), self.target, *owners], f"HuggingFace: the {part} set"
            )
            targets = _label_sets(rows, self.target)
            evaluated = _Rows(rows, self.input, self.target if targets is None else None, self.eval_transform)
            parts[part] = ItemSet(
                items=replace(evaluated, transform=self.transform) if part == "train" else evaluated,
                targets=as_array(rows[self.target][:]) if targets is None else targets,
                checked=False,
                users=as_array(rows[self.users][:]) if owners else None,
                stored=self._stored_of(rows),
                evaluated=evaluated,
                collate_fn=self.collate_fn,
            )
        return parts


@dataclass(frozen=True)
class _Rows(Dataset):
    """Rows as pairs of input and target, or of input and None."""

    rows: Any
    input: str | list[str] | dict[str, str]
    target: str | None
    transform: Callable[[Any], Any] | None

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> tuple[Any, Any]:
        row = self.rows[int(index)]
        values = {name: _value(row[column]) for name, column in _columns_of(self.input).items()}
        input = values[self.input] if isinstance(self.input, str) else values
        return (input if self.transform is None else self.transform(input)), self.target and row[self.target]


def _of_inputs(collate_fn: Callable[[list[Any]], Any], items: list[Any]) -> tuple[Any, None]:
    """Calls the user's ``collate_fn`` with inputs alone."""
    return collate_fn([input for input, _ in items]), None


def _label_sets(rows: Any, column: str) -> np.ndarray | None:
    """Rows of 0 and 1 for a column with lists of named classes; None for other columns, and for lists that are such rows themselves."""
    names = getattr(getattr(rows.features[column], "feature", None), "names", None)
    if names is None:
        return None
    lists = rows.with_format(None)[column][:]
    counts = np.zeros((len(lists), len(names)), np.float32)
    for row, labels in enumerate(lists):
        if labels is None or any(label is None or label < 0 for label in labels):
            raise ValueError(f"the column {column!r} has a missing label in row {row}: leave such rows out")
        np.add.at(counts[row], labels, 1)
    return counts if counts.max(initial=0) <= 1 else None


def _columns_of(input: str | list[str] | dict[str, str]) -> Mapping[str, str]:
    """Columns by the names that the network has for them."""
    return input if isinstance(input, dict) else {name: name for name in ([input] if isinstance(input, str) else input)}


def _value(value: Any) -> Any:
    """A cell; nested lists of numbers as an array."""
    return np.asarray(value) if isinstance(value, list) and value and not isinstance(value[0], str | dict) else value


def _stored(rows: Any, input: str | list[str] | dict[str, str]) -> Tree | None:
    """The inputs as tensors, where their columns hold numbers of one shape and fit into memory."""
    columns = _columns_of(input)
    kept = rows.select_columns(list(dict.fromkeys(columns.values())))
    if any(type(feature).__name__ not in ("Value", "List", "Sequence", "LargeList") for feature in kept.features.values()):
        return None
    if (kept.data.nbytes or 0) > IN_MEMORY_BYTES:
        return None
    arrays = kept.with_format("numpy")[:]
    if any(array.dtype.kind not in "biuf" for array in arrays.values()):
        return None
    tensors = {name: torch.from_numpy(np.array(arrays[column])) for name, column in columns.items()}
    return tensors[input] if isinstance(input, str) else tensors


def _splits_of(given: Any, name: str | None, splits: Mapping[str, str | None]) -> dict[str, Any]:
    """The splits that are there, by part."""
    if isinstance(given, str | Path) or (
        isinstance(given, Mapping) and all(isinstance(file, str | Path) for file in given.values())
    ):
        given = _loaded(given, name)
    if not isinstance(given, Mapping):
        given = {splits["train"]: given}
    found = {}
    for part, split in splits.items():
        if split in given:
            found[part] = given[split]
        elif split is not None and (part, split) != ("test", "test"):
            raise ValueError(f"there is no split {split!r}; the data set has {', '.join(map(str, given))}: set data.{part}")
    if not all(hasattr(rows, "__len__") for rows in found.values()):
        raise ValueError("the data set is a stream, whose samples cannot be given to clients: load it without streaming=True")
    return found


def _loaded(given: Any, name: str | None) -> Any:
    """What lies under a path, or has this name on the hub."""
    datasets = require("datasets", "HuggingFace", "datasets")
    files = {split: str(file) for split, file in given.items()} if isinstance(given, Mapping) else None
    path = Path(next(iter(files.values())) if files else given)
    require_files("HuggingFace", map(Path, (files or {}).values()), "check data.dataset")
    try:
        if files or (path.is_file() and path.suffix in FORMATS):
            return datasets.load_dataset(FORMATS[path.suffix], data_files=files or str(path))
        if path.is_dir() and any((path / mark).exists() for mark in ("dataset_dict.json", "state.json")):
            return datasets.load_from_disk(str(path))
        return datasets.load_dataset(str(given), name)
    except Exception as error:  # network, hub, parsers: nearly every kind
        raise ValueError(
            f"the data set {path if files else given} cannot be loaded ({reason(error)}): where the hub cannot be reached, give a folder "
            "that save_to_disk wrote, or files"
        ) from error
