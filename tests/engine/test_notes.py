"""Choices made on the user's behalf, which the summary shows."""

from functools import partial
from pathlib import Path
from typing import Any

import lightning as L
import pytest
import torch
from harness import NUM_CLASSES, NUM_FEATURES, TinyData, classifier, fit, make_trainer

from flcog.datamodules import LeastSquares, Quadratics
from flcog.method import Callback, Method, Note


class Unmeasured(L.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(NUM_FEATURES, NUM_CLASSES)

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        return torch.nn.functional.cross_entropy(self.layer(batch[0]), batch[1])

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), 0.1)


def test_what_a_user_should_know_is_noted() -> None:
    from flcog.callbacks import Ditto

    def notes(*methods: Method, module: Any = None, **data: Any) -> str:
        trainer = make_trainer(None, *methods)
        trainer.prepare(module or classifier(), TinyData(**data))
        return "\n".join(trainer.notes)

    assert "Ditto are tested only with data.client_test" in notes(Ditto())
    assert "Ditto: only data.client_val" in notes(Ditto(), client_test=0.2)
    assert "Ditto" not in notes(Ditto(), client_test=0.2, client_val=0.2)


class Measured(Unmeasured):
    def validation_step(self, batch: Any, batch_idx: int) -> None:
        self.log("val_loss", self.training_step(batch, batch_idx))


class Logs(L.Callback):
    def on_test_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        pl_module.log("test_size", 1.0)


@pytest.mark.parametrize(
    ("module", "callbacks", "has_figures"), [(Unmeasured, [], False), (Unmeasured, [Logs()], True), (Measured, [], True)]
)
def test_sets_without_figures_are_noted_and_no_test_is_suggested(
    module: type[L.LightningModule],
    callbacks: list[Any],
    has_figures: bool,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    trainer = make_trainer(tmp_path, *callbacks, eval_every=1, rounds=1)
    trainer.fit(module(), TinyData())
    noted = "warning: nothing measures the test set: Unmeasured has neither validation_step nor test_step" in trainer.notes
    assert ("Test its " in capsys.readouterr().out, noted) == (has_figures, not has_figures)
    trainer = make_trainer(None, *callbacks, eval_every=0)
    trainer.prepare(module(), TinyData())
    assert not any("measures" in note for note in trainer.notes)


def test_observers_receive_each_note_once(tmp_path: Path) -> None:
    """Earlier notes arrive before ``on_fit_start``, and the notes of a round at its end."""
    seen: list[Any] = []

    class Listening(Callback):
        def on_note(self, run: Any, note: Note) -> None:
            seen.append(note)

        def on_fit_start(self, run: Any) -> None:
            seen.append("start")

        def on_round_start(self, run: Any, round: int, cohort: list[int]) -> None:
            run.engine.notes.add(Note("warning", f"in round {round}"))

        def on_round_end(self, run: Any, round: int, metrics: dict[str, float]) -> None:
            seen.append(round)

    fit(tmp_path, Listening(), rounds=2)
    assert seen == [
        Note("executor", "loop, 1 client at a time"),
        "start",
        Note("warning", "in round 1"),
        1,
        Note("warning", "in round 2"),
        2,
    ]


@pytest.mark.parametrize(("rate", "grows"), [(0.001, False), (2.5, True)])
def test_a_loss_that_grows_without_end_is_noted_once(rate: float, grows: bool, tmp_path: Path) -> None:
    """Gradient descent on a quadratic of curvature c multiplies the distance to its minimum by 1 - rate * c in each step."""
    module = LeastSquares(torch.nn.Linear(1, 3, bias=False), partial(torch.optim.SGD, lr=rate))
    seen = list[str]()

    class Watcher(Callback):
        def on_note(self, run: Any, note: Note) -> None:
            seen.extend([note.text] if note.topic == "warning" else [])

    fit(tmp_path, Watcher(), module=module, data=Quadratics(dimension=3), rounds=8, local_steps=1)
    assert ["loss grows" in text for text in seen].count(True) == grows
