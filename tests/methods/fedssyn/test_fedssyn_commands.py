"""Fedssyn's command: ``flcog synthesize``."""

import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from harness import ROOT

import flcog
from flcog.callbacks.fedssyn.synthesis_cache import export_images
from flcog.commands.cli import main
from flcog.datamodules import Digits

QUICKSTART = str(ROOT / "configs" / "quickstart.yaml")


@pytest.mark.usefixtures("command_line")
@pytest.mark.slow
def test_what_people_delete_is_not_sent(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: Any) -> None:
    monkeypatch.chdir(tmp_path)
    config = tmp_path / "fedssyn.yaml"
    callback = {"class_path": "flcog.callbacks.Fedssyn", "init_args": {"num_images": 5, "generator": {
        "class_path": "flcog.callbacks.BetaVAE", "init_args": {"latent": 2, "hidden": 8, "channels": 4, "epochs": 1}}}}  # fmt: skip
    config.write_text(yaml.safe_dump({"trainer": {"callbacks+": [callback], "rounds": 1, "local_steps": 1, "logger": False}}))
    arguments = ["-c", QUICKSTART, "-c", str(config), "--data.num_clients", "3"]

    def run(verb: str, *arguments: str) -> str:
        sys.argv[:] = ["flcog", verb, *arguments]
        main()
        return capsys.readouterr().out

    printed = run("synthesize", *arguments)
    (folder,) = Path("runs/synthetic").iterdir()
    assert f"15 of 15 synthetic images are in {folder / 'images'}" in printed and "flcog fit -c" in printed
    images = sorted(folder.glob("images/client-*/*/*.png"))
    assert len(images) == 15 and not list(Path("runs").glob("*/checkpoints"))
    for path in images[3:8]:
        path.unlink()
    assert export_images(folder, Digits(num_clients=3).federation)[1:] == (10, 15)  # deleted images are not written again
    assert "Fedssyn: clients train on" in run("fit", *arguments)
    (directory,) = [path for path in Path("runs").iterdir() if path.name != "synthetic"]
    assert (directory / "synthetic.csv").is_file() and (directory / "figures" / "synthetic-images-000000.png").is_file()
    # Ten images of 28x28 bytes, each with a label of 8 bytes.
    assert f"{10 * (28 * 28 + 8)}" in str(flcog.run.checkpoint.read(directory / "checkpoints" / "last.ckpt")["ledger"])
