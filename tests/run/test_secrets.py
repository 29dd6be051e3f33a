"""A secret that a user gives to a method, a model or the data reaches no file that others may see, and no terminal."""

from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from harness import TinyData
from torch import nn

import flcog
from flcog.commands.cli import main
from flcog.method import Method

SECRET = "hf_s3cretValue"


@dataclass(frozen=True)
class Reports(Method):
    """A method that would report the run to a service.

    Args:
        api_token: its key.
    """

    api_token: str = ""


class SecretNetwork(nn.Linear):
    """A network that would be loaded with a key."""

    def __init__(self, access_token: str = "") -> None:
        super().__init__(6, 3)
        self.access_token = access_token


class SecretData(TinyData):
    """Data that would be loaded with a key."""

    def __init__(self, hf_token: str = "") -> None:
        super().__init__()
        self.hf_token = hf_token


@pytest.mark.usefixtures("command_line")
@pytest.mark.slow
def test_secrets_stay_in_the_users_own_configuration(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = tmp_path / "secret.yaml"
    config.write_text(f"""
trainer:
  rounds: 2
  local_steps: 1
  logger: false
  accelerator: cpu
  default_root_dir: {tmp_path}/runs
  callbacks: [{{class_path: {__name__}.Reports, init_args: {{api_token: {SECRET}}}}}]
model:
  class_path: flcog.Classifier
  init_args:
    model: {{class_path: {__name__}.SecretNetwork, init_args: {{access_token: {SECRET}}}}}
data: {{class_path: {__name__}.SecretData, init_args: {{hf_token: {SECRET}}}}}
""")
    main(["fit", "-c", str(config)])
    (run,) = (tmp_path / "runs").iterdir()
    main(["report", str(run)])
    texts = capsys.readouterr()
    assert SECRET not in texts.out + texts.err
    holding = [path.name for path in run.rglob("*") if path.is_file() and SECRET.encode() in path.read_bytes()]
    assert holding == ["config.yaml"], "from which the run goes on"
    assert (run / "config.yaml").stat().st_mode & 0o077 == 0, "and which nobody else can read"
    main(["fit", "-c", str(run / "config.yaml"), "--trainer.rounds", "3", "--ckpt_path", str(run)])
    assert torch.load(run / "checkpoints/last.ckpt")["round"] == 3
    assert (run / "config-1.yaml").stat().st_mode & 0o077 == 0, "the copy of the former configuration"


def test_a_method_shows_no_secret() -> None:
    assert SECRET not in repr(flcog.FederatedTrainer(local_steps=1, callbacks=[Reports(api_token=SECRET)], logger=False))
