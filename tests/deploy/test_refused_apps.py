"""``flcog deploy`` writes no app for a run that could not start."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from deploy.test_node import softmax
from flcog.callbacks import SCAFFOLD
from flcog.deploy.command import deploy
from flcog.deploy.objects import check_run
from flcog.run.observers.checkpoint import Checkpoint

REFUSED = {
    "FedBuff": ("FedBuff", {}, "FedBuff decides by simulated time when clients arrive, and nodes train in real time: remove it"),
    "SecureAggregation": ("SecureAggregation", {}, "SecureAggregation cannot be deployed: .* Remove SecureAggregation"),
    "rare checkpoints": (
        "Checkpoint",
        {"every_n_rounds": 5},
        "a deployment writes a checkpoint after every round; got every_n_rounds=5",
    ),
    "public noise": ("DPFedAvg", {"repeatable": True}, "DPFedAvg: everybody who knows the run's seed could remove this noise"),
    "Centralized": ("Centralized", {}, "Centralized reads the data of all clients before round 1, .* remove it"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_an_app_that_could_not_start_is_not_written(tmp_path: Path, name: str) -> None:
    method, arguments, says = REFUSED[name]
    content: dict[str, Any] = softmax()
    content["trainer"]["callbacks"] = [{"class_path": f"flcog.callbacks.{method}", "init_args": arguments}]
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(content))
    with pytest.raises(ValueError, match=says):
        deploy(["-c", str(tmp_path / "config.yaml"), "--out", str(tmp_path / "app")])
    assert not (tmp_path / "app").exists()


def test_checkpoints_after_every_round_are_accepted() -> None:
    check_run([SCAFFOLD()], [Checkpoint(keep_every_n_rounds=1)])
    with pytest.raises(ValueError, match="got every_n_rounds=1, enabled=False: leave both out"):
        check_run([SCAFFOLD()], [Checkpoint(enabled=False)])
