"""While a run computes, ``trainer.tf32`` sets the precision of float32 products on a GPU, and cuDNN gives the same bits every time."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from fake_device import computing_there
from harness import RecordingTrainer, TinyData, classifier, fit, make_trainer

import flcog


def allowed() -> tuple[bool, bool]:
    return torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32


class Watching(flcog.Method):
    """Records torch's settings while clients train and while the server steps."""

    def __init__(self) -> None:
        self.seen: list[tuple[bool, bool]] = []

    def loss(self, apply: Any, params: Any, batch: Any, task_loss: torch.Tensor, ctx: Any) -> torch.Tensor:
        assert torch.backends.cudnn.deterministic
        self.seen.append(allowed())
        return 0 * task_loss

    def server_step(self, server: Any, params: Any, delta: Any, messages: Any, cohort: Any) -> Any:
        self.seen.append(allowed())
        return delta, server


@pytest.mark.parametrize(("tf32", "inside"), [(None, (False, True)), (True, (True, True)), (False, (False, False))])
def test_all_products_or_none_are_rounded_for_as_long_as_a_run_computes(tf32: bool | None, inside: tuple[bool, bool]) -> None:
    watching = Watching()
    before = allowed()
    trainer = make_trainer(None, watching, tf32=tf32, rounds=1)
    trainer.prepare(classifier(), TinyData())
    trainer.train_round()
    assert set(watching.seen) == {inside}
    assert allowed() == before == (False, True) and not torch.backends.cudnn.deterministic, "torch's own"


@pytest.fixture
def set_by_a_script() -> Iterator[None]:
    torch.backends.cuda.matmul.allow_tf32 = True
    yield
    torch.backends.cuda.matmul.allow_tf32 = False


@pytest.mark.usefixtures("set_by_a_script")
def test_what_a_script_has_set_is_left_and_put_back() -> None:
    for tf32, inside in ((None, (True, True)), (False, (False, False))):
        watching = Watching()
        trainer = make_trainer(None, watching, tf32=tf32, rounds=1)
        trainer.prepare(classifier(), TinyData())
        trainer.train_round()
        assert set(watching.seen) == {inside} and allowed() == (True, True)


def described(trainer: RecordingTrainer) -> str:
    return " ".join(trainer.notes)


def test_where_there_is_none_the_summary_says_so(tmp_path: Path) -> None:
    assert "tf32=True has no effect here: cpu has no TF32" in described(fit(tmp_path, rounds=1, tf32=True))
    assert "tf32" not in described(fit(tmp_path, rounds=1))
    with computing_there():
        trainer = make_trainer(None, tf32=False, precision="32-true")
        trainer.prepare(classifier(), TinyData())
        assert "tf32=False has no effect here: fake has no TF32" in " ".join(trainer.notes)


def test_it_is_a_setting_of_the_experiment(tmp_path: Path) -> None:
    half = fit(tmp_path, rounds=1)
    with pytest.raises(ValueError, match=r"trainer\.tf32 was None, is True"):
        fit(tmp_path, rounds=2, tf32=True, ckpt_path=str(half.run_dir))


@pytest.mark.parametrize("word", ["high", 1])
def test_bad_words(word: Any) -> None:
    with pytest.raises(ValueError, match=f"tf32 must be true, false or null; got {word!r}"):
        make_trainer(None, tf32=word)
