"""Table: a data module for rows of features, from CSV or Parquet files or a pandas data frame."""

from collections.abc import Callable, Iterable, Mapping
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch

from flcog.core.checks import within
from flcog.core.extras import require
from flcog.core.trees import Tree
from flcog.data import NewInputs, Preprocess, Samples, Splits
from flcog.datamodules.files import names_of, reading, require_files, require_names
from flcog.datamodules.targets import Targets, WithTargets, read_targets

MOST_VALUES = 1000
"""The most categories of a column: one with more different texts is refused, because it holds names or free text."""


class Table(WithTargets):
    """Rows of features and one or more columns to predict, from CSV or Parquet files or a pandas ``DataFrame``.

    Numbers become features, standardised by the rows of all clients. Text and categories become one column for each value in the
    training set, or for each of the given ``categories``; so does a column of numbers among which some text is left. Missing values
    cause an error. With ``users``, every value of that column is a client. In a deployment the tables of all hospitals must have the
    same columns, categories and classes. Parquet files need ``pip install 'flcog[pandas]'``.

    As YAML:

        class_path: Table
        init_args: {train: patients.csv, target: outcome, users: hospital, test_fraction: 0.2}

    Args:
        train: the training rows: a file (.csv, .tsv, .parquet) or, from Python, a data frame.
        target: the column to predict: classes by number or name, or values. A list of columns is several labels of 0 and 1, or
            several values.
        users: the column with the owner of each row; it is not a feature.
        features: the columns that the network reads; by default all except target and users.
        test: the test rows, as ``train``.
        val: the validation rows, as ``train``.
        test_fraction: the fraction of the training rows, drawn at random, that becomes the test set, in [0, 1).
        standardise: whether features get mean 0 and standard deviation 1 over the rows of all clients, of which a deployment adds up
            sums and no rows. With ``own`` each machine uses its own rows alone.
        categories: the values of columns of text, in their order, by column. By default those of the training rows, sorted.
        classes: the names of the classes, in their order, for a target of text. By default those of the training rows, sorted.
        task: the kind of targets. By default text and whole numbers are classes, and fractions are values.
        num_classes: the number of classes, if some do not occur. For regression, the number of bins that replace classes in
            methods that use label counts (10 by default).

    Example:
        >>> import pandas
        >>> frame = pandas.DataFrame({"age": range(40), "colour": ["red", "blue"] * 20, "ill": [0, 1, 1, 0] * 10})
        >>> Table(frame, target="ill").federation.train.inputs.shape
        torch.Size([40, 3])
    """

    def __init__(
        self,
        train: Any,
        target: str | list[str],
        users: str | None = None,
        features: list[str] | None = None,
        test: Any = None,
        val: Any = None,
        test_fraction: float = 0.0,
        standardise: bool | Literal["own"] = True,
        categories: dict[str, list[str]] | None = None,
        classes: list[str] | None = None,
        task: Literal["auto", "classification", "multilabel", "regression"] = "auto",
        num_classes: int | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        within(self, "[0, 1)", test_fraction=test_fraction)
        if test is not None and test_fraction:
            raise ValueError("Table: the test set is either test or a test_fraction of train: give only one")
        self._targets = list(target) if isinstance(target, list | tuple) else [target]
        if both := {*self._targets, users} & {*(features or ())}:
            raise ValueError(f"Table: column {both.pop()!r} is a target or the users, and no feature: take it out of features")
        self._given = {part: rows for part, rows in (("train", train), ("test", test), ("val", val)) if rows is not None}
        self.target, self.users, self.features, self.standardise = target, users, features, standardise
        self.categories, self.classes = categories or {}, classes
        self.test_fraction, self._task, self._num_classes = test_fraction, task, num_classes

    @property
    def _learnt(self) -> Targets:
        return self._read[0]

    @property
    def class_names(self) -> tuple[str, ...] | None:  # type: ignore[override]
        """The classes, where they are text, or the columns of several labels."""
        return tuple(self._targets) if self.task == "multilabel" else super().class_names

    def load(self) -> Splits:
        return self._read[1]

    def preprocess(self) -> Callable[[Tree], Tree]:
        return Preprocess(fitted="own" if self.standardise == "own" else "common") if self.standardise else Preprocess()

    def new_inputs(self, rows: Any) -> NewInputs:
        kinds = self._read[2]
        frame = self._frame("inputs", rows, kinds)
        return NewInputs(_features(frame, kinds, "inputs"), names_of(frame, [*kinds, *self._targets, self.users]))

    def facts(self) -> dict[str, Any]:
        kinds = {name: "numbers" if values is None else "text" for name, values in self._read[2].items()}
        columns = {f"column {place}": f"{name!r}, {kind}" for place, (name, kind) in enumerate(kinds.items(), start=1)}
        categories = {f"categories of {name!r}": values.tolist() for name, values in self._read[2].items() if values is not None}
        return {"columns": str(len(kinds)), **columns, **categories, "target": ", ".join(map(repr, self._targets))}

    @cached_property
    def _read(self) -> tuple[Targets, Splits, dict[str, np.ndarray | None]]:
        wanted = [*self._targets, *(self.features or [])]
        users = [self.users] if self.users else []
        frames = {part: self._frame(part, given, wanted + users * (part == "train")) for part, given in self._given.items()}
        if self.test_fraction:
            frames["train"], frames["test"] = self._divided(frames["train"])
        others = [name for name in frames["train"].columns if name not in (*self._targets, self.users)]
        columns = others if self.features is None else self.features
        require_names(columns, self.categories, "Table: features")
        values = {part: _target(frame, self._targets, part) for part, frame in frames.items()}
        learnt = read_targets(values, self._task, self._num_classes, self.classes)
        kinds = {name: _categories(frames["train"], name, self.categories.get(name)) for name in columns}
        samples = {}
        for part, frame in frames.items():
            owners = _column(frame, self.users, part) if self.users is not None and part == "train" else None
            samples[part] = Samples(_features(frame, kinds, part), learnt.tensors[part], owners)
        return learnt, Splits(**samples), kinds

    def _frame(self, part: str, given: Any, wanted: Iterable[str]) -> Any:
        """Return the rows of a part after checking that they have the required columns."""
        frame = read_frame(Path(given)) if isinstance(given, str | Path) else given
        require_names(frame.columns, wanted, f"Table: {part}")
        return frame

    def _divided(self, frame: Any) -> tuple[Any, Any]:
        """Return the training rows without the test rows, and the test rows."""
        order = np.random.default_rng([self.partition_seed, 3]).permutation(len(frame))
        count = max(1, round(self.test_fraction * len(frame)))
        return frame.iloc[np.sort(order[count:])], frame.iloc[np.sort(order[:count])]


def read_frame(path: Path) -> Any:
    """The rows of a file as a data frame."""
    import pandas  # which takes half a second

    require_files("Table", [path], "check data.train, data.test and data.val")
    with reading(path):
        if path.suffix == ".parquet":
            require("pyarrow", "Table", "pandas")
            return pandas.read_parquet(path)
        return pandas.read_csv(path, sep="\t" if ".tsv" in path.suffixes else ",")


def _target(frame: Any, names: list[str], part: str) -> tuple[np.ndarray, str]:
    """Return the column to predict, or the table of several, and its name in messages."""
    columns = [_column(frame, name, part) for name in names]
    if len(names) == 1:
        return columns[0], f"Table: column {names[0]!r} of {part}"
    return np.stack(columns, 1), f"Table: columns {', '.join(map(repr, names))} of {part}"


def _column(frame: Any, name: str, part: str) -> np.ndarray:
    """Return a column; refuse missing values."""
    require_names(frame.columns, [name], f"Table: {part}")
    values = frame[name]
    if missing := int(values.isna().sum()):
        row = int(values.isna().to_numpy().argmax())
        raise ValueError(
            f"Table: column {name!r} of {part} has {missing} missing values, the first in row {row}: fill or drop them"
        )
    if values.dtype.kind in "biuf":
        numbers: np.ndarray = values.to_numpy(getattr(values.dtype, "numpy_dtype", values.dtype))
        return numbers
    return np.asarray([str(value) for value in values])


def _categories(frame: Any, name: str, given: list[str] | None) -> np.ndarray | None:
    """Return the different values of a column of text or categories, or those that are given; None if the column holds numbers."""
    if given is not None:
        column = _column(frame, name, "train").astype(str)
        if not (known := np.isin(column, given)).all():
            row = int(known.argmin())
            raise ValueError(
                f"Table: column {name!r} of train holds {str(column[row])!r} in row {row}, and its categories are {', '.join(given)}: "
                "correct that row, or add the category for all clients"
            )
        return np.asarray(given)
    if frame[name].dtype.kind in "biuf":
        return None
    column = _column(frame, name, "train")
    values = np.unique(column)
    if len(values) > MOST_VALUES:
        raise ValueError(
            f"Table: column {name!r} of train holds {len(values):,} different texts, each of which would be a feature: leave it out of "
            "features"
        )
    return values


def _features(frame: Any, kinds: Mapping[str, np.ndarray | None], part: str) -> torch.Tensor:
    """The features of all rows, as the network reads them."""
    features = np.concatenate([_numbers(frame, name, values, part) for name, values in kinds.items()], 1)
    return torch.from_numpy(features.astype(np.float32))


def _numbers(frame: Any, name: str, kinds: np.ndarray | None, part: str) -> np.ndarray:
    """Return a feature as one column of numbers, or as one column for each category."""
    values = _column(frame, name, part)
    is_text, known = values.dtype.kind not in "biuf", None if kinds is None else values.astype(str)[:, None] == kinds
    fits = not is_text if known is None else is_text or known.any()  # whole numbers may be categories, of which some are new
    if not fits:
        raise ValueError(
            f"Table: column {name!r} holds {'numbers' if kinds is None else 'text or categories'} in train, and in {part} values such "
            f"as {values[0]!s}: give both the same type"
        )
    return values.astype(np.float64)[:, None] if known is None else known.astype(np.float64)
