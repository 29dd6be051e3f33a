"""Files that are not checkpoints of this run are refused before any code in them runs."""

from pathlib import Path
from typing import Any

import pytest
import torch
from harness import NUM_CLASSES, NUM_FEATURES, TinyData, classifier, make_trainer

import flcog
from flcog.run import checkpoint


def test_tampered_checkpoints_are_refused(tmp_path: Path) -> None:
    trainer = make_trainer(tmp_path, rounds=1)
    trainer.fit(classifier(), TinyData())
    assert trainer.run_dir is not None
    good = trainer.run_dir / "checkpoints" / "last.ckpt"
    cut = tmp_path / "cut.ckpt"
    cut.write_bytes(good.read_bytes()[:-200])
    with pytest.raises(ValueError, match="is no readable flcog checkpoint"):
        checkpoint.read(cut)

    class Evil:
        def __reduce__(self) -> Any:
            return (Path(tmp_path / "pwned").touch, ())

    torch.save({"format": 1, "evil": Evil()}, tmp_path / "evil.ckpt")
    with pytest.raises(ValueError, match="is no readable flcog checkpoint"):
        checkpoint.read(tmp_path / "evil.ckpt")
    assert not (tmp_path / "pwned").exists()
    torch.save({"weights": torch.zeros(1)}, tmp_path / "other.ckpt")
    with pytest.raises(ValueError, match="no flcog checkpoint of format"):
        checkpoint.read(tmp_path / "other.ckpt")
    with pytest.raises(ValueError, match="no checkpoint at"):
        checkpoint.read(tmp_path / "nowhere.ckpt")
    wider = flcog.Classifier(flcog.models.MLP(NUM_FEATURES, (9,), NUM_CLASSES))
    with pytest.raises(ValueError, match=r"holds another model: .* is \(8, 6\) there, \(9, 6\) here"):
        make_trainer(tmp_path, rounds=2).fit(wider, TinyData(), ckpt_path=str(good))
    with pytest.raises(ValueError, match="seed was 0, is 1"):
        make_trainer(tmp_path, rounds=2, seed=1).fit(classifier(), TinyData(), ckpt_path=str(good))
