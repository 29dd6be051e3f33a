"""Networks and losses that draw from the global random streams of torch, NumPy or Python give the same numbers in every run."""

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from faithful.modules import Plain
from harness import NUM_CLASSES, NUM_FEATURES, TinyData, assert_close, classifier, fit, make_trainer, train
from torch import Tensor, nn

import flcog
from flcog.core.global_streams import moved, seed_streams, streams
from flcog.settings import can_compile

pytestmark = pytest.mark.filterwarnings("error")

DRAWS: dict[str, Callable[[], float]] = {
    "torch": lambda: float(torch.rand(())),
    "NumPy": lambda: float(np.random.rand()),  # noqa: NPY002 -- the legacy generator is the global one
    "Python": random.random,
}

each_library = pytest.mark.parametrize("library", DRAWS)


class Noisy(nn.Module):
    """A linear layer whose inputs are scaled by a random factor in training."""

    drawn: ClassVar[list[float]] = []
    """The factors of all steps since the last network was made. The network itself keeps nothing between steps."""

    def __init__(self, library: str) -> None:
        super().__init__()
        self.layer, self.draw = nn.Linear(NUM_FEATURES, NUM_CLASSES), DRAWS[library]
        self.drawn.clear()

    def forward(self, x: Tensor) -> Tensor:
        if not self.training:
            return self.layer(x)
        self.drawn.append(self.draw())
        return self.layer(x * self.drawn[-1])


def noisy(library: str) -> flcog.Classifier:
    return classifier(network=lambda: Noisy(library))


def disturb(seed: int) -> None:
    """Move all global streams to another place."""
    seed_streams(seed)


@each_library
def test_each_client_has_draws_of_its_own_in_every_run(library: str) -> None:
    runs = []
    for seed in (1, 2):
        disturb(seed)
        module = noisy(library)
        trainer = train(module=module, rounds=2)
        runs.append((trainer.state, module.model.drawn[-40:]))
    assert_close(runs[0][0], runs[1][0], 0)
    drawn = runs[0][1]
    assert drawn == runs[1][1] and len(drawn) == len(set(drawn)) == 2 * 5 * 4, "two rounds, five clients, four steps"


@each_library
@pytest.mark.slow
def test_a_resumed_run_draws_the_same_numbers(library: str, tmp_path: Path) -> None:
    disturb(1)
    whole = fit(tmp_path / "whole", module=noisy(library), rounds=4)
    half = fit(tmp_path / "half", module=noisy(library), rounds=2)
    disturb(2)
    resumed = fit(tmp_path / "half", module=noisy(library), rounds=4, ckpt_path=str(half.run_dir))
    assert_close(resumed.state, whole.state, 0)


@pytest.mark.parametrize("library", ["NumPy", "Python"])
def test_numbers_that_a_batched_program_would_share_make_clients_train_one_at_a_time(library: str) -> None:
    reason = f"the model draws from {library}'s global stream"
    with pytest.warns(UserWarning, match=f"executor=vmap falls back to loop: {reason}$"):
        forced = train(module=noisy(library), executor="vmap")
    assert_close(forced.state, train(module=noisy(library)).state, 0)
    if can_compile():
        with pytest.warns(UserWarning, match=f"trainer.compile=True is left out.*: {reason}"):
            make_trainer(None, compile=True).prepare(noisy(library), TinyData())


@each_library
def test_threads_would_share_the_stream(library: str) -> None:
    trainer, module = make_trainer(None, chunk_size=2), noisy(library)
    before = streams()
    trainer.prepare(module, TinyData())
    assert f"1 client at a time (the model draws from {library}'s global stream" in trainer.notes[0]
    assert moved(before) == [], "finding out moves nothing"


def test_a_training_step_that_draws_from_numpy() -> None:
    class Scales(Plain):
        def training_step(self, batch: Any, batch_idx: int) -> Any:
            return super().training_step((batch[0] * DRAWS["NumPy"](), batch[1]), batch_idx)

    with pytest.warns(UserWarning, match="falls back to loop: Scales.training_step draws from NumPy's global stream$"):
        train(module=Scales(), executor="vmap", rounds=1)
