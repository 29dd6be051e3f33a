"""Trackers: where they write, which values they receive, and that they ask the user nothing."""

import csv
import json
import os
import struct
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import wandb
import yaml
from harness import TESTS, TinyData, classifier
from lightning.pytorch.loggers import CSVLogger, WandbLogger
from matplotlib.figure import Figure
from wandb.proto import wandb_internal_pb2

import flcog
from flcog.callbacks import FedProx
from flcog.method import Callback
from flcog.run import checkpoint, trackers


@pytest.fixture(scope="module", autouse=True)
def _service() -> Iterator[None]:
    """Starts W&B's service, which W&B announces in the environment, once for all tests, and stops it after them."""
    wandb.setup()
    yield
    wandb.teardown()


@pytest.fixture(autouse=True)
def _nobody(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A user without a login, in an empty directory."""
    for name in [name for name in os.environ if name.startswith("WANDB_") and name != "WANDB_SERVICE"]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("NETRC", str(tmp_path / "no-netrc"))
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")


def fit(logger: Any = True, ckpt_path: str | None = None, *callbacks: Callback, rounds: int = 2) -> flcog.FederatedTrainer:
    """A run in the working directory's ``runs``."""
    options: dict[str, Any] = {"local_steps": 1, "accelerator": "cpu", "executor": "loop", "callbacks": list(callbacks)}
    trainer = flcog.FederatedTrainer(rounds=rounds, logger=logger, **options)
    trainer.fit(classifier(), TinyData(), ckpt_path)
    return trainer


def wandb_files(trainer: flcog.FederatedTrainer) -> list[Path]:
    """The runs that W&B wrote for a fit, oldest first."""
    assert trainer.run_dir is not None
    return sorted(trainer.run_dir.absolute().glob("wandb/offline-run-*/run-*.wandb"), key=lambda path: path.stat().st_mtime_ns)


def records(path: Path, kind: str) -> list[Any]:
    """The records of one kind that W&B wrote for its server. W&B's process writes them, and may end later than the run."""
    for _ in range(200):
        found = list(all_records(path))
        if found and found[-1].WhichOneof("record_type") == "exit":
            return [getattr(record, kind) for record in found if record.WhichOneof("record_type") == kind]
        time.sleep(0.1)
    raise AssertionError(f"{path} never ended")


def all_records(path: Path) -> Iterator[Any]:
    """The records of a LevelDB log, whose blocks of 32 KiB contain whole records or parts of records."""
    data, position, whole = path.read_bytes(), 7, b""
    while position + 7 <= len(data):
        if 32768 - position % 32768 < 7:
            position += 32768 - position % 32768
            continue
        _, length, kind = struct.unpack("<IHB", data[position : position + 7])
        if position + 7 + length > len(data):
            return  # still being written
        whole += data[position + 7 : position + 7 + length]
        position += 7 + length
        if kind in (1, 4):  # a whole record, or the last part of one
            record = wandb_internal_pb2.Record()
            record.ParseFromString(whole)
            whole = b""
            yield record


def history(path: Path) -> list[dict[str, Any]]:
    """The rounds' rows."""
    records_ = records(path, "history")
    return [{"/".join(item.nested_key) or item.key: json.loads(item.value_json) for item in row.item} for row in records_]


def without_times(row: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in row.items() if not name.startswith(("time/", "_"))}


# The default ----------------------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_newcomer_is_asked_nothing_and_finds_only_the_run(tmp_path: Path) -> None:
    """Without a login, standard input and files at home, the run is tracked offline, and all its files are in one directory."""
    script = "import flcog, harness; trainer = flcog.FederatedTrainer(rounds=2, local_steps=1, accelerator='cpu')\n"
    script += "trainer.fit(harness.classifier(), harness.TinyData())"
    home = tmp_path / "home"
    home.mkdir()
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("WANDB", "NETRC"))}
    environment |= {"HOME": str(home), "PYTHONPATH": str(TESTS), "OMP_NUM_THREADS": "1"}
    result = subprocess.run(
        [sys.executable, "-c", script], env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=300
    )
    assert result.returncode == 0, result.stderr
    assert "wandb:" not in result.stdout + result.stderr, "W&B says nothing of its own"
    assert "tracker     W&B, offline" in result.stdout
    assert os.listdir() == ["runs"]
    (run,) = Path("runs").iterdir()
    assert {path.name for path in run.iterdir()} >= {"checkpoints", "clients.csv", "figures", "metrics.csv", "run.yaml", "wandb"}
    (command,) = [line.strip() for line in result.stdout.splitlines() if line.startswith("  wandb sync")]
    assert list(Path().glob(f"{command.removeprefix('wandb sync ')}/run-*.wandb"))
    assert not [path for path in home.iterdir() if path.name not in (".cache", ".config")], "only W&B's own logs"


@pytest.mark.slow
def test_wandb_is_told_the_rows_by_round_and_what_the_run_is() -> None:
    trainer = fit(True, None, FedProx(mu=0.25))
    (file,) = wandb_files(trainer)
    rows = [{"epoch": row["round"] - 1, "trainer/global_step": row["round"]} | without_times(row) for row in trainer.history]
    assert [without_times(row) | {"round": row["trainer/global_step"]} for row in history(file)] == rows
    updates = [update for record in records(file, "config") for update in record.update]
    assert "FedProx(" in json.loads(next(update.value_json for update in updates if update.key == "run"))["methods"][0]


@pytest.mark.slow
def test_a_fit_leaves_the_process_as_it_was() -> None:
    before = dict(os.environ)
    first, second = fit(), fit()
    assert dict(os.environ) == before and wandb.run is None
    assert len({path.name for trainer in (first, second) for path in wandb_files(trainer)}) == 2

    class Fails(Callback):
        def on_round_start(self, run: Any, round: int, cohort: list[int]) -> None:
            raise RuntimeError("no")

    with pytest.raises(RuntimeError, match="no"):
        fit(True, None, Fails())
    assert wandb.run is None and dict(os.environ) == before


@pytest.mark.slow
def test_a_resumed_run_goes_on_in_the_same_wandb_run() -> None:
    trainer = fit(rounds=2)
    assert trainer.run_dir is not None
    identity = checkpoint.read(trainer.run_dir / "checkpoints/last.ckpt")["tracker_run"]
    assert wandb_files(trainer)[0].name == f"run-{identity}.wandb"
    resumed = fit(True, "last", rounds=3)
    assert resumed.run_dir is not None and resumed.run_dir.samefile(trainer.run_dir)
    assert [path.name for path in wandb_files(resumed)] == [f"run-{identity}.wandb"] * 2
    assert [row["trainer/global_step"] for row in history(wandb_files(resumed)[-1])] == [3]


@pytest.mark.slow
def test_wandbs_own_switches_are_respected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WANDB_MODE", "disabled")
    trainer = fit(rounds=1)
    assert trainer.loggers == [] and not wandb_files(trainer)
    fit(WandbLogger(), rounds=1)  # disabled by W&B itself
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_PROJECT", "mine")
    (file,) = wandb_files(fit(rounds=1))
    assert records(file, "run")[0].project == "mine" and os.environ["WANDB_MODE"] == "offline"


@pytest.mark.slow
def test_a_server_that_does_not_answer_costs_no_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(trackers.QUIET, "init_timeout", 1.0)
    with monkeypatch.context() as login, pytest.warns(UserWarning, match="tracking offline instead"):
        login.setenv("WANDB_API_KEY", "0" * 40)
        login.setenv("WANDB_BASE_URL", "http://127.0.0.1:9")
        trainer = fit()
    assert [row["trainer/global_step"] for row in history(wandb_files(trainer)[-1])] == [1, 2]
    # W&B remembers the key for as long as its service lives.
    wandb.teardown()
    wandb.setup()


def test_a_tracker_that_cannot_be_opened_costs_no_round() -> None:
    beside = CSVLogger("logs")
    with pytest.warns(UserWarning, match=r"W&B failed \(.*no_such_argument.*metrics.csv has every round"):
        trainer = fit([WandbLogger(offline=True, no_such_argument=1), beside])
    assert [row["round"] for row in trainer.history] == [1, 2] and trainer.loggers == [beside]
    assert (trainer.run_dir / "checkpoints" / "last.ckpt").is_file() and not wandb_files(trainer)


# Loggers that the user names ------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_named_loggers_write_into_the_runs_directory() -> None:
    logger = [CSVLogger("logs", name="csv"), WandbLogger(project="mine", offline=True, prefix="fl")]
    trainer = fit(logger)
    assert trainer.run_dir is not None and os.listdir() == ["runs"]
    folder = trainer.run_dir / "logs/csv/version_0"
    header, *rows = (folder / "metrics.csv").read_text().splitlines()
    assert [row.split(",")[header.split(",").index("step")] for row in rows] == ["1", "2"]
    assert yaml.safe_load((folder / "hparams.yaml").read_text())["run"]["model"] == "MLP"
    (file,) = wandb_files(trainer)
    assert [row["fl-epoch"] for row in history(file)] == [0, 1]


def test_an_absolute_path_is_the_users_wish(tmp_path: Path) -> None:
    trainer = fit(CSVLogger(tmp_path / "elsewhere", name="csv"))
    header, *rows = csv.reader((tmp_path / "elsewhere/csv/version_0/metrics.csv").read_text().splitlines())
    assert [(row[header.index("epoch")], row[header.index("step")]) for row in rows] == [("0", "1"), ("1", "2")]
    assert "epoch" not in trainer.history[0]
    assert trainer.run_dir is not None and not (trainer.run_dir / "csv").exists()


@pytest.mark.slow
def test_one_logger_serves_several_fits() -> None:
    logger = [CSVLogger("logs", name="csv"), WandbLogger(offline=True)]
    runs = [fit(logger, rounds=1) for _ in range(2)]
    for trainer in runs:
        assert trainer.run_dir is not None
        assert (trainer.run_dir / "logs/csv/version_0/metrics.csv").is_file()
        assert len(wandb_files(trainer)) == 1
    assert wandb_files(runs[0])[0].name != wandb_files(runs[1])[0].name


@pytest.mark.slow
def test_a_wandb_run_that_the_user_opened_stays_open(tmp_path: Path) -> None:
    run = wandb.init(mode="offline", dir=tmp_path, settings=wandb.Settings(silent=True))
    try:
        trainer = fit()
        assert wandb.run is run and trainer.run.trackers.run_id == run.id and not wandb_files(trainer)
        fit(WandbLogger())
        assert wandb.run is run
    finally:
        run.finish()
    (file,) = tmp_path.glob("wandb/offline-run-*/*.wandb")
    assert [row["trainer/global_step"] for row in history(file)] == [1, 2, 1, 2]


@pytest.mark.slow
def test_pictures_go_to_wandb_and_to_the_run() -> None:
    class Draws(Callback):
        def on_round_end(self, run: Any, round: int, metrics: dict[str, float]) -> None:
            run.trackers.log_figure("data/partition", Figure(figsize=(1, 1)), round)

    trainer = fit([WandbLogger(offline=True), CSVLogger("logs")], None, Draws(), rounds=1)
    assert trainer.run_dir is not None
    pictures = {path.name for path in (trainer.run_dir / "figures").iterdir()}
    assert pictures == {"partition-000000.png", "data-partition-000001.png"}, "the run's own chart, and the observer's"
    assert len(list(trainer.run_dir.glob("wandb/offline-run-*/files/media/images/**/*.png"))) == 1, "the observer's alone"


# The record in the run's directory ------------------------------------------------------------------------------------------------


def test_a_run_says_what_it_was() -> None:
    trainer = flcog.FederatedTrainer(
        rounds=1, local_steps=1, logger=CSVLogger("logs"), callbacks=[FedProx(mu=0.25)], accelerator="cpu"
    )
    trainer.config = {"trainer": {"rounds": 1}}
    trainer.fit(classifier(), TinyData())
    assert trainer.run_dir is not None
    assert yaml.safe_load((trainer.run_dir / "config.yaml").read_text()) == trainer.config
    run = yaml.safe_load((trainer.run_dir / "run.yaml").read_text())
    assert "mu=0.25" in run["methods"][0] and run["partition"]["hash"] == trainer.run.federation.split.hash
    assert run["packages"]["flcog"] == flcog.__version__ and run["packages"].keys() >= {"torch", "lightning", "wandb"}
    assert run["git_commit"] is None and run["command"] and run["seed"] == 0
    assert (run["executor"], run["threads"], run["processes"]) == ("vmap", 1, 1) and run["clients_at_once"] >= 1
    hparams = yaml.safe_load((trainer.run_dir / "logs/lightning_logs/version_0/hparams.yaml").read_text())
    assert hparams["config"] == trainer.config
    assert {**run, "command": None, "partition": None} == {**hparams["run"], "command": None, "partition": None}
