"""A tracker that fails in any of its calls costs a warning and nothing else."""

import os
import warnings
from pathlib import Path
from typing import Any

import pytest
from harness import TinyData, classifier
from lightning.pytorch.loggers import Logger, MLFlowLogger
from matplotlib.figure import Figure

import flcog
from flcog.callbacks import FedProx
from flcog.method import Callback
from flcog.run import checkpoint

PLACES = ("log_hyperparams", "log_dir", "experiment", "log_metrics", "finalize")


class Faulty(Logger):
    """A tracker that raises at the given places, and keeps the rows and parameters that it received before."""

    def __init__(self, *places: str) -> None:
        super().__init__()
        self.places, self.rows, self.parameters = places, list[dict[str, float]](), dict[str, Any]()

    def _touched(self, place: str) -> None:
        if place in self.places:
            raise RuntimeError(f"no answer at {place}\nand much more")

    name = version = "faulty"

    @property
    def save_dir(self) -> None:
        """Everything is elsewhere."""

    @property
    def log_dir(self) -> None:
        self._touched("log_dir")

    @property
    def experiment(self) -> None:
        self._touched("experiment")

    def log_hyperparams(self, params: dict[str, Any]) -> None:
        self._touched("log_hyperparams")
        self.parameters |= params

    def log_metrics(self, metrics: dict[str, float], step: int | None = None) -> None:
        self._touched("log_metrics")
        self.rows.append({"round": step or 0} | metrics)

    def finalize(self, status: str) -> None:
        self._touched("finalize")


class Silent(MLFlowLogger):
    """A tracker whose server does not answer."""

    def __init__(self) -> None:
        self.asked = list[tuple[str, str]]()

    @property
    def experiment(self) -> Any:
        self.asked.append((os.environ["MLFLOW_HTTP_REQUEST_TIMEOUT"], os.environ["MLFLOW_HTTP_REQUEST_MAX_RETRIES"]))
        raise RuntimeError("no answer")


class Draws(Callback):
    def on_round_end(self, run: Any, round: int, metrics: dict[str, float]) -> None:
        run.trackers.log_figure("drawn", Figure(figsize=(1, 1)), round)


def fit(root: Path, *loggers: Logger, ckpt_path: str | None = None, rounds: int = 2) -> flcog.FederatedTrainer:
    options: dict[str, Any] = {"local_steps": 1, "accelerator": "cpu", "executor": "loop", "callbacks": [FedProx(), Draws()]}
    trainer = flcog.FederatedTrainer(rounds=rounds, logger=list(loggers), default_root_dir=str(root), **options)
    trainer.fit(classifier(), TinyData(), ckpt_path)
    return trainer


def test_a_silent_server_is_asked_once_with_the_users_own_patience(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_TIMEOUT", "3")
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "")  # restored when the test ends
    monkeypatch.delenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES")
    silent = Silent()
    with pytest.warns(UserWarning, match=r"Silent failed \(RuntimeError: no answer\)"):
        assert len(fit(tmp_path, silent).history) == 2
    assert silent.asked == [("3", "1")]


@pytest.mark.parametrize("places", [*((place,) for place in PLACES), PLACES], ids=" ".join)
def test_what_a_tracker_raises_is_one_warning(places: tuple[str, ...], tmp_path: Path) -> None:
    beside = Faulty()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        trainer = fit(tmp_path, Faulty(*places), beside)
    said = [str(warning.message) for warning in caught if "Faulty" in str(warning.message)]
    assert len(said) == 1 and said[0].startswith(f"Faulty failed (RuntimeError: no answer at {places[0]}): the run continues")
    assert [row["round"] for row in trainer.history] == [row["round"] for row in beside.rows] == [1, 2]
    assert trainer.run_dir is not None and checkpoint.read(trainer.run_dir / "checkpoints/last.ckpt")["round"] == 2
    assert beside.parameters["run"]["num_clients"] == 8


def test_a_round_is_saved_before_trackers_hear_of_it(tmp_path: Path) -> None:
    class Kills(Faulty):
        def log_metrics(self, metrics: dict[str, float], step: int | None = None) -> None:
            if step == 2:
                raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fit(tmp_path, Kills())
    resumed = fit(tmp_path, ckpt_path="last", rounds=3)
    assert [row["round"] for row in resumed.history] == [1, 2, 3]
    assert resumed.history[1]["time/round"] != resumed.history[2]["time/round"] and resumed.run_dir is not None
    assert len(list(tmp_path.iterdir())) == 1


def flat(tree: dict[str, Any], above: str = "") -> list[str]:
    """The names of parameters as Lightning passes them to MLflow."""
    names = []
    for name, value in tree.items():
        names += flat(value, f"{above}{name}/") if isinstance(value, dict) else [above + name]
    return names


def test_no_name_is_a_folder_of_another(tmp_path: Path) -> None:
    """MLflow keeps each parameter and each metric in a file of its name."""
    told = Faulty()
    trainer = fit(tmp_path, told, rounds=1)
    for names in (flat(told.parameters), [name for row in trainer.history for name in row]):
        folders = {name.rsplit("/", depth)[0] for name in names for depth in range(1, name.count("/") + 1)}
        assert names and not folders & set(names)
