"""The command line as its users type it."""

import csv
import re
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch
import yaml
from harness import ROOT, needs_newest_messages

import flcog
from flcog.commands.cli import main

QUICKSTART = str(ROOT / "configs" / "quickstart.yaml")
METHODS = ROOT / "configs" / "methods"
SMALL = ["--trainer.rounds", "2", "--trainer.local_steps", "1", "--data.num_clients", "4", "--trainer.logger", "false"]


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command_line: None) -> None:
    monkeypatch.chdir(tmp_path)


def run(*arguments: str) -> int:
    """Run a command and return its exit status."""
    try:
        main(list(arguments))
    except SystemExit as exit:
        return int(exit.code or 0)
    return 0


def the_run() -> Path:
    return sorted(Path("runs").iterdir())[-1]


def test_files_and_options_compose(capsys: pytest.CaptureFixture[str]) -> None:
    fedprox, feddisco = str(METHODS / "fedprox.yaml"), str(METHODS / "feddisco.yaml")
    assert run("fit", "-c", QUICKSTART, "-c", fedprox, "-c", feddisco, *SMALL) == 0
    config = yaml.safe_load((the_run() / "config.yaml").read_text())
    assert [entry["class_path"].split(".")[-1] for entry in config["trainer"]["callbacks"]] == ["FedProx", "FedDisco"]
    assert config["trainer"]["rounds"] == 2 and config["data"]["init_args"]["num_clients"] == 4
    rows = list(csv.DictReader((the_run() / "metrics.csv").open()))
    columns = {"round", "test/accuracy", "test/loss", "train/loss", "comm/up_bytes", "comm/down_bytes", "time/round"}
    assert [row["round"] for row in rows] == ["1", "2"] and columns <= rows[0].keys()
    setting = yaml.safe_load((the_run() / "run.yaml").read_text())
    assert (
        setting["methods"][0].startswith("FedProx(") and setting["packages"]["torch"] and len(setting["partition"]["hash"]) == 8
    )
    printed = capsys.readouterr().out
    assert "FedProx" in printed and "best" in printed and str(the_run()) in printed
    assert sorted(path.name for path in Path.cwd().iterdir()) == ["runs"]


@pytest.mark.slow
def test_test_and_validate_read_a_checkpoint(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("fit", "-c", QUICKSTART, *SMALL) == 0
    last = list(csv.DictReader((the_run() / "metrics.csv").open()))[-1]
    capsys.readouterr()
    # A run's own config is enough to test it.
    assert run("test", "-c", str(the_run() / "config.yaml"), "--ckpt_path", "last") == 0
    printed = dict(line.split() for line in capsys.readouterr().out.splitlines() if line.startswith("test/"))
    assert float(printed["test/accuracy"]) == pytest.approx(float(last["test/accuracy"]), rel=1e-5)
    assert run("validate", "-c", QUICKSTART, *SMALL, "--data.client_val", "0", "--ckpt_path", "last") == 2
    assert "no val set" in capsys.readouterr().err
    assert run("validate", "-c", QUICKSTART, *SMALL, "--ckpt_path", "last") == 0
    printed = dict(line.split() for line in capsys.readouterr().out.splitlines() if line.startswith("val/"))
    assert "val/client_accuracy_mean" in printed
    assert float(printed["val/accuracy"]) == pytest.approx(float(last["val/accuracy"]), rel=1e-5)


def test_resume_by_name_and_by_path(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("fit", "-c", QUICKSTART, *SMALL) == 0
    assert run("fit", "-c", QUICKSTART, *SMALL, "--trainer.rounds", "3", "--ckpt_path", "last") == 0
    assert run("fit", "-c", QUICKSTART, *SMALL, "--trainer.rounds", "4", "--ckpt_path", str(the_run())) == 0
    assert len(list(csv.DictReader((the_run() / "metrics.csv").open()))) == 4 and len(list(Path("runs").iterdir())) == 1
    capsys.readouterr()
    assert run("fit", "-c", QUICKSTART, *SMALL, "--trainer.rounds", "3", "--ckpt_path", "last") == 0
    printed = " ".join(capsys.readouterr().out.split())
    assert "4 rounds are done, and trainer.rounds is 3: there are no rounds left to train" in printed
    assert "rounds 4 of 4" in printed


@pytest.mark.slow
def test_a_run_is_predicted_with_exported_and_loaded(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("fit", "-c", QUICKSTART, *SMALL) == 0
    last, folder = list(csv.DictReader((the_run() / "metrics.csv").open()))[-1], str(the_run())
    with warnings.catch_warnings():
        warnings.filterwarnings("error", "LightningCLI's args parameter")
        assert run("predict", folder, "--checkpoint", "last") == 0
    rows = list(csv.DictReader((the_run() / "predictions.csv").open()))
    right = sum(row["prediction"] == row["target"] for row in rows)
    assert len(rows) == 355 and right / 355 == pytest.approx(float(last["test/accuracy"]), rel=1e-5)
    assert sum(float(rows[0][f"probability_{digit}"]) for digit in range(10)) == pytest.approx(1, abs=1e-5)
    assert run("report", folder, "--confusion") == 0
    page = (the_run() / "report.html").read_text()
    assert "<h2>Each client</h2>" in page and "<h2>Confusion</h2>" in page
    np.save("some.npy", np.zeros((4, 28, 28), np.uint8))
    assert run("predict", folder, "--inputs", "some.npy", "--output", "some.npz") == 0
    with np.load("some.npz") as arrays:
        assert arrays["probability"].shape == (4, 10) and "target" not in arrays
    assert run("export", folder, "--checkpoint", "last") == 0
    network = flcog.models.SimpleCNN(in_channels=1, num_classes=10)
    network.load_state_dict(torch.load(the_run() / "model.pt", weights_only=True))
    # No arguments are needed: the checkpoint records how the command line made the model.
    loaded = flcog.Classifier.load_from_checkpoint(the_run() / "checkpoints/last.ckpt")
    assert all(torch.equal(value, loaded.state_dict()[f"model.{name}"]) for name, value in network.state_dict().items())
    capsys.readouterr()
    for words, message in {
        ("predict", folder, "--inputs", "none.npy"): "predict found no none.npy",
        ("predict", folder, "--output", "p.json"): "predictions are written as .csv or .npz; got p.json",
        ("predict", folder, "--checkpoint", "third"): "no checkpoint at third: give a file that a run wrote under checkpoints/",
        ("export", "nowhere"): "nowhere holds no config.yaml: give the directory of a run",
        ("export", folder, "--format", "h5"): "flcog export: argument --format: invalid choice: 'h5'",
    }.items():
        assert run(*words) == 2
        error = capsys.readouterr().err
        assert message in error and len(error.splitlines()) == 1


@pytest.mark.slow
def test_a_run_on_a_lightning_data_module_is_predicted() -> None:
    boring = "lightning.pytorch.demos.boring_classes"
    words = [
        "--data",
        f"{boring}.BoringDataModule",
        "--trainer.rounds",
        "1",
        "--trainer.local_steps",
        "1",
        "--trainer.logger",
        "false",
    ]
    assert run("fit", "--model", f"{boring}.BoringModel", *words) == 0
    assert run("predict", str(the_run()), "--checkpoint", "last") == 0
    assert len((the_run() / "predictions.csv").read_text().splitlines()) == 65


@pytest.mark.slow
def test_a_run_of_another_machine_is_looked_at_here() -> None:
    """The other machine has GPUs."""
    assert run("fit", "-c", QUICKSTART, *SMALL, "--trainer.rounds", "1") == 0
    config, folder = the_run() / "config.yaml", str(the_run())
    config.write_text(config.read_text().replace("accelerator: auto", "accelerator: cuda").replace("devices: 1", "devices: 4"))
    assert run("predict", folder) == run("export", folder) == 0


@pytest.mark.slow
def test_partition_shows_and_saves(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("partition", "-c", QUICKSTART, "--plot", "clients.png", "--save", "split.npz") == 0
    assert "10" in capsys.readouterr().out and Path("clients.png").stat().st_size > 5000 and Path("split.npz").exists()


@needs_newest_messages
def test_partition_needs_data_alone(capsys: pytest.CaptureFixture[str]) -> None:
    """It shows which client is which user. A command that trains still needs a model."""
    Path("rows.csv").write_text("a,ward,y\n" + "".join(f"{row},ward {row % 3},{row % 2}\n" for row in range(12)))
    data = ("--data", "Table", "--data.train", "rows.csv", "--data.target", "y", "--data.users", "ward")
    assert run("partition", *data, "--data.num_clients", "7") == 0
    printed = capsys.readouterr().out
    assert re.search(r"^ *0 ward 0 +4 .*\n *1 ward 1 +4 .*\n *2 ward 2 +4 ", printed, re.MULTILINE)
    assert "num_clients=7 has no effect: Natural makes 3 clients" in printed
    assert run("check", *data) == 2 and ".model: give a config by -c FILE" in capsys.readouterr().err


@needs_newest_messages
def test_print_config_and_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("fit", "-c", QUICKSTART, "--trainer.rounds", "7", "--print_config") == 0
    assert yaml.safe_load(capsys.readouterr().out)["trainer"]["rounds"] == 7
    assert run("fit", "--help") == 0
    printed = capsys.readouterr().out
    assert (
        printed.startswith("usage: flcog fit ")
        and "--trainer.clients_per_round" in printed
        and "the clients of a round" in printed
    )
    assert run("--help") == 0
    printed = capsys.readouterr().out
    assert all(verb in printed for verb in ("fit", "validate", "test", "partition", "bench"))
    assert run("--version") == 0
    assert capsys.readouterr().out == f"flcog {flcog.__version__}\n"


def test_null_on_a_command_line_is_none(capsys: pytest.CaptureFixture[str]) -> None:
    """This also holds for nested options: an argument of a model inside the model, or of a method's data."""
    study, leash = str(METHODS.parent / "studies" / "fedwalk.yaml"), str(METHODS / "fedwalk-imagenet.yaml")
    options = ["--model.model.weights", "null", "--trainer.callbacks.leash.mean=null", "--trainer.callbacks.leash.std", "null"]
    assert run("fit", "-c", study, "-c", leash, *options, "--print_config") == 0
    config = yaml.safe_load(capsys.readouterr().out)
    assert config["model"]["init_args"]["model"]["init_args"]["weights"] is None
    data = config["trainer"]["callbacks"][-1]["init_args"]["leash"]["init_args"]
    assert data["mean"] is None and data["std"] is None


def test_every_method_file_names_its_command() -> None:
    for path in METHODS.glob("*.yaml"):
        assert re.match(rf"# flcog fit -c \S+\.yaml (-c \S+\.yaml )*-c configs/methods/{path.name}( .*)?\n", path.read_text()), (
            path
        )


@pytest.mark.slow
@pytest.mark.parametrize("path", sorted(METHODS.glob("*.yaml")), ids=lambda path: path.stem)
def test_every_method_file_parses(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("fit", "-c", QUICKSTART, "-c", str(path), "--print_config") == 0
    assert yaml.safe_load(capsys.readouterr().out)["trainer"]["callbacks"]
