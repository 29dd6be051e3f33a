"""Inputs that are made on request: the run announces each read in advance, and reads no batch twice."""

from typing import Any

import numpy as np
import pytest
import torch
from harness import TinyData, classifier, distance, make_trainer, train
from torch import Tensor

from flcog.core.source import Source
from flcog.data import Samples, Splits


class Told(Source):
    """Stored inputs that record the announcements and the reads."""

    ahead = 2

    def __init__(self, inputs: Tensor, whole_batches: bool, seen: list[tuple[str, bytes]]) -> None:
        self.inputs, self.whole_batches, self.seen = inputs, whole_batches, seen

    def __len__(self) -> int:
        return len(self.inputs)

    def expect(self, indices: np.ndarray, keys: np.ndarray | None) -> None:
        self.seen.append(("told", indices.tobytes() + (b"" if keys is None else keys.tobytes())))

    def read(self, indices: np.ndarray, keys: np.ndarray | None) -> Tensor:
        self.seen.append(("asked", indices.tobytes() + (b"" if keys is None else keys.tobytes())))
        return self.inputs[torch.from_numpy(indices)]


class Announced(TinyData):
    """The tiny data, with inputs from such a source."""

    def __init__(self, whole_batches: bool = False, **options: Any) -> None:
        super().__init__(**options)
        self.whole_batches, self.seen = whole_batches, list[tuple[str, bytes]]()

    def load(self) -> Splits:
        splits = super().load()
        told = Told(splits.train.inputs, self.whole_batches, self.seen)
        return Splits(Samples(told, splits.train.targets), splits.test)


@pytest.mark.parametrize("whole_batches", [False, True])
@pytest.mark.parametrize("options", [{"executor": "loop"}, {"executor": "vmap"}, {"executor": "loop", "chunk_size": 3}], ids=str)
def test_they_train_like_stored_inputs(whole_batches: bool, options: dict[str, Any]) -> None:
    ragged: dict[str, Any] = {"local_epochs": 2, "rounds": 2, **options}
    data = Announced(whole_batches, batch_size=5)
    assert distance(train(data=data, **ragged).state, train(data=TinyData(batch_size=5), **ragged).state) <= (
        1e-14 if options["executor"] == "vmap" else 0
    )


@pytest.mark.parametrize("whole_batches", [False, True])
def test_what_is_read_next_is_announced(whole_batches: bool) -> None:
    data = Announced(whole_batches, batch_size=5)
    trainer = make_trainer(None, local_epochs=1)
    trainer.prepare(classifier(), data)
    data.seen.clear()
    trainer.train_round()
    asked = [request for kind, request in data.seen if kind == "asked"]
    steps = sum(work.num_steps for works in trainer.works for work in works)
    assert len(asked) == (steps if whole_batches else 5)  # otherwise one read for each of the five clients
    for position, (kind, request) in enumerate(data.seen):
        if kind == "asked":
            assert ("told", request) in data.seen[:position]
    # Before the first read, a second one is announced.
    assert [kind for kind, _ in data.seen[: data.seen.index(("asked", asked[0]))]].count("told") >= 2


def test_each_client_has_keys_of_its_own() -> None:
    trainer = train(data=Announced(), rounds=2, executor="loop")
    keys = np.concatenate([work.keys for works in trainer.works for work in works])
    assert len(np.unique(keys)) == len(keys)
