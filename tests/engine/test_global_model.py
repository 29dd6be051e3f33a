"""After a fit, the user's module contains the global model."""

from pathlib import Path

import pytest
import torch
from harness import TinyData, classifier, make_trainer


def test_the_users_module_ends_as_the_global_model(tmp_path: Path) -> None:
    trainer, module = make_trainer(tmp_path), classifier()
    trainer.fit(module, TinyData())
    for name, value in module.named_parameters():
        assert torch.equal(value, trainer.run.params[name])
    again = make_trainer(tmp_path).test(module, TinyData())
    assert again["test/loss"] == pytest.approx(
        trainer.run.evaluator.on_set(trainer.run.params, {}, TinyData().load().test)["loss"]
    )
