"""Classes in a config that refuse their arguments: a refusal is printed in one line, and a fault in the class keeps its traceback."""

import sys
from pathlib import Path

import pytest

from flcog.commands.cli import main

QUICKSTART = str(Path(__file__).parents[2] / "configs" / "quickstart.yaml")
OWN = """
import flcog
from flcog.datamodules import Digits

class Mine(Digits):
    def __init__(self, what: str = "", num_clients: int = 4) -> None:
        super().__init__(num_clients=num_clients)
        if what == "refuses":
            raise ValueError(f"what must not be this; got {what}")
        if what == "opens":
            open("no_such_file.csv")
        if what == "misspells":
            self.no_such_attribute
        if what == "converts":
            int(what)

class Late(Digits):
    def load(self):
        raise ValueError("no samples here")
"""


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command_line: None) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delitem(sys.modules, "own_data", raising=False)
    Path("own_data.py").write_text(OWN)


def fit(*options: str) -> None:
    main(["fit", "-c", QUICKSTART, "--trainer.rounds", "1", "--trainer.logger", "false", *options])


REFUSALS = {
    # The user's own classes.
    "--data own_data.Mine --data.what refuses": "what must not be this; got refuses (own_data.py, line 9)",
    "--data own_data.Mine --data.what opens": "[Errno 2] No such file or directory: 'no_such_file.csv' (own_data.py, line 11)",
    "--data own_data.Late": "no samples here (own_data.py, line 19), in Late.load",
    # Classes of other packages, with any kind of error.
    "--model.model torch.nn.Conv2d --model.model.in_channels 3 --model.model.out_channels 4 --model.model.kernel_size 3 "
    "--model.model.groups 2": "Conv2d cannot be made: in_channels must be divisible by groups",
    "--model.model torch.nn.Linear --model.model.in_features -1 --model.model.out_features 2": "Linear cannot be made: Trying to "
    "create tensor with negative dimension -1: [2, -1]",
}


@pytest.mark.parametrize("options", REFUSALS)
def test_a_refusal_is_one_line(options: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as exit:
        fit(*options.split())
    lines = [line for line in capsys.readouterr().err.splitlines() if not line.startswith("Seed set")]
    assert exit.value.code == 2 and lines == [f"flcog: error: {REFUSALS[options]}"]


@pytest.mark.parametrize("what", ["misspells", "converts"])
def test_a_fault_keeps_its_traceback(what: str) -> None:
    with pytest.raises((ValueError, AttributeError)):
        fit("--data", "own_data.Mine", "--data.what", what)
