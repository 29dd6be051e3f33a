"""A mistake in the configuration gets one line, and an error in the user's code a traceback of that code, with client, round and step."""

import re
import shlex
import sys
import traceback
from collections.abc import Iterator
from pathlib import Path
from types import FunctionType
from typing import Any

import lightning as L
import pytest
import torch
from harness import ROOT, few_quickly, needs_newest_messages
from lightning.pytorch.demos.boring_classes import BoringDataModule, BoringModel
from torch.utils.data import Dataset

import flcog
from flcog.commands.cli import main
from flcog.commands.errors import refusal, shown_errors
from flcog.datamodules.new_inputs import read_arrays
from flcog.wire.envelope import changes_of

QUICKSTART = str(ROOT / "configs" / "quickstart.yaml")


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command_line: None) -> Iterator[None]:
    monkeypatch.chdir(tmp_path)
    yield
    sys.excepthook = sys.__excepthook__  # an error that is shown replaces it


def refused(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    """The one line that a command prints before it exits with 2."""
    with pytest.raises(SystemExit) as exit:
        main(arguments)
    lines = [line for line in capsys.readouterr().err.splitlines() if line.strip() and not line.startswith("Seed set")]
    assert exit.value.code == 2 and len(lines) == 1 and lines[0].startswith("flcog: error: "), lines
    assert "Union" not in lines[0] and "<class" not in lines[0]
    return lines[0]


# Options after `fit -c configs/quickstart.yaml`, and the parts that the error line must contain, separated by |.
OPTIONS = {
    # A value of a wrong type, or out of its range.
    "--trainer.clients_per_round abc": "trainer.clients_per_round: |int|float; got abc",
    "--trainer.executor foo": "trainer.executor: |'auto', 'loop', 'vmap'|foo",
    "--data.partitioner.beta abc": "data.partitioner.beta: |float|abc",
    "--trainer.callbacks+=FedProx --trainer.callbacks.mu=-1": "FedProx: mu must be at least 0; got -1.0",
    # An option that does not exist.
    "--num_clients 3": "Did you mean 'data.num_clients'?",
    "--trainer.num_clients 3": "Did you mean 'data.num_clients'?",
    "methods/fedprox": "unrecognized arguments: methods/fedprox. A config follows its option: -c methods/fedprox",
    "--model.lr 0.1": "Option 'lr' is not accepted. Did you mean the model's 'optimizer.lr'?",
    "--model.optimzer.lr 0.1": "arguments: --optimzer.lr=0.1. Did you mean the model's 'optimizer.lr'?",
    "--trainer.callbacks+=FedAvg": "A run without methods is FedAvg.",
    "--trainer.callbacks+=Ditto --trainer.callbacks.Ditto.lamda 1": "Ditto has the options lambda_prox, lr, momentum",
    "--data.partitioner.alpha 1": "'alpha' is not accepted. Dirichlet has the options beta",
    "--model.optimizer.lrr 3": "model.optimizer: |'lrr'|Did you mean 'lr'?",
    # A class that does not exist, or that is no subclass.
    "--trainer.callbacks+=Scafold": "trainer.callbacks: there is no class Scafold. Did you mean 'SCAFFOLD'?",
    "--model.optimizer sgd": "model.optimizer: there is no class sgd. Did you mean 'SGD'?",
    "--model.model SimpleCN": "there is no class SimpleCN. Did you mean 'SimpleCNN'?",
    "--model.lr_schedule linear": "there is no class linear: a class is named by its path, such as package.module.Class",
    "--trainer.logger wandb": "trainer.logger: there is no class wandb. Did you mean 'WandbLogger'?",
    "--model.model torch.nn.Lineare": "module 'torch.nn' has no attribute 'Lineare'. Did you mean 'Linear'?",
    "--trainer.callbacks+=nowhere.Method": "No module named 'nowhere'|--import-from FOLDER",
    "--model flcog.callbacks.FedProx": "subclass of Module|flcog.callbacks.FedProx",
    "--model.model torch.nn.Linear": "in_features",
    # Files, and two of the same.
    "-c quikstart": "there is no file quikstart. Did you mean 'quickstart'?",
    "--trainer.callbacks+=FedProx --trainer.callbacks+=FedProx": "FedProx is listed 2 times",
    "--trainer.devices foo": "devices=foo|devices of this machine",
    "--ckpt_path nowhere.ckpt": "no checkpoint at nowhere.ckpt",
}


@needs_newest_messages
@pytest.mark.parametrize("options", OPTIONS)
def test_an_option_is_refused_in_one_line(options: str, capsys: pytest.CaptureFixture[str]) -> None:
    line = refused(["fit", "-c", QUICKSTART, "--trainer.logger=false", *shlex.split(options)], capsys)
    assert all(words in line for words in OPTIONS[options].split("|")) and line.count("Did you mean") <= 1, line


COMMANDS = {
    "fitt -c Q": "there is no command 'fitt'. Did you mean 'fit'?|validate|bench|compare",
    "fit": "model|give a config by -c FILE",
    "partition -c Q --plott x.png": "Did you mean 'plot'?",
    "export folder": "folder holds no config.yaml: give the directory of a run",
    "test -c Q --ckpt_path notes.ckpt": "notes.ckpt is no readable flcog checkpoint",
}


@needs_newest_messages
@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_is_refused_in_one_line(command: str, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "notes.ckpt").write_text("e")
    line = refused([QUICKSTART if word == "Q" else word for word in command.split()], capsys)
    assert all(words in line for words in COMMANDS[command].split("|")), line


CONFIGS = {
    b"trainer: {rounds: 3}\n# caf\xe9\n": "config.yaml is not UTF-8 text (byte 26): save it as UTF-8",
    b"": "Unexpected config",
    b"trainer: 3": "config.yaml: trainer must be a mapping of options; got 3",
    b"trainer:\n  rounds: 3\n   local_steps: 2\n": "config.yaml is no YAML: mapping values are not allowed here (line 3, column 15)",
    b"trainer:\n  rounds: 3\n  rounds: 4\n": "config.yaml has 'rounds' twice, in lines 2 and 3: keep one",
    b"trainer: {roundz: 3}": "Did you mean 'trainer.rounds'?",
    b"data: {init_args: {num_client: 3}}": "Did you mean 'num_clients'?",
    b"trainer: {callbacks: [{class_path: FedProx, mu: 1}]}": "give a class by its class_path, and its options under init_args",
}


@pytest.mark.parametrize("content", CONFIGS, ids=range(len(CONFIGS)))
def test_a_config_is_refused_in_one_line(content: bytes, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "config.yaml").write_bytes(content)
    line = refused(["fit", "-c", QUICKSTART, "-c", "config.yaml"], capsys)
    assert CONFIGS[content] in line, line


# Errors in the user's code --------------------------------------------------------------------------------------------------------


def shown(error: BaseException, capsys: pytest.CaptureFixture[str]) -> str:
    """What Python prints of an error that ends it."""
    capsys.readouterr()
    with pytest.raises(type(error)) as caught, shown_errors():
        raise error
    sys.excepthook(type(error), caught.value, caught.value.__traceback__)
    return capsys.readouterr().err


MODULES = {
    "import flcog\nclass A(flcog.Method)\n    pass": ("SyntaxError: expected ':'", 'own_code.py", line 2'),
    "import flcog\nclass A(flcog.Methd): pass": (
        "AttributeError: module 'flcog' has no attribute 'Methd'",
        'own_code.py", line 2',
    ),
    "import flcog, not_installed": ("ModuleNotFoundError: No module named 'not_installed'", 'own_code.py", line 1'),
    "import flcog\nclass A(flcog.Method):\n    def sever_step(self): pass": (
        "defines 'sever_step', which is no hook. Did you mean 'server_step'?",
        'own_code.py", line 2',
    ),
    "import flcog\nclass A(flcog.Callback):\n    def __init__(self):\n        int('x')": (
        "ValueError: invalid literal",
        "line 4, in __init__",
    ),
}


@needs_newest_messages
@pytest.mark.parametrize("code", MODULES, ids=range(len(MODULES)))
def test_an_error_in_a_users_module(code: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "own_code.py").write_text(code)
    sys.modules.pop("own_code", None)  # another test may have imported it
    with pytest.raises(Exception) as caught:
        main(["fit", "-c", QUICKSTART, "--trainer.logger=false", "--trainer.callbacks+=own_code.A"])
    lines = shown(caught.value, capsys)
    assert all(words in lines for words in MODULES[code]), lines
    assert "jsonargparse" not in lines and "flcog/commands" not in lines


class Model(BoringModel):
    pass


class Data(BoringDataModule):
    pass


class Watcher(L.Callback):
    pass


def broken(base: type, hook: str) -> Any:
    """An instance of a subclass of ``base`` whose hook looks up a missing key."""

    def fail(self: Any, *arguments: Any, **options: Any) -> None:
        {}["x"]

    method = FunctionType(fail.__code__.replace(co_name=hook, co_qualname=hook), globals())
    return type(base.__name__, (base,), {hook: method, "__module__": __name__})()


def fails(tmp_path: Path, part: Any, **options: Any) -> Exception:
    """The exception of a run with this module, data, callback or method."""
    model = part if isinstance(part, L.LightningModule) else BoringModel()
    data = part if isinstance(part, L.LightningDataModule | Dataset) else BoringDataModule()
    trainer = flcog.FederatedTrainer(
        rounds=1,
        local_steps=2,
        logger=False,
        accelerator="cpu",
        default_root_dir=str(tmp_path),
        enable_progress_bar=False,
        enable_model_summary=False,
        callbacks=[part] if isinstance(part, L.Callback | flcog.Callback) else None,
        **options,
    )
    with pytest.raises(Exception) as caught:
        trainer.fit(model, data)
    return caught.value


IN_A_CLIENT = r"in client \d, round 1, local step 1 of 2"
HOOKS: dict[tuple[type, str], str] = {
    **dict.fromkeys(((Model, "training_step"), (Model, "optimizer_step"), (Model, "forward")), IN_A_CLIENT),
    **dict.fromkeys(((Data, "on_after_batch_transfer"), (Watcher, "on_train_batch_end")), IN_A_CLIENT),
    **dict.fromkeys(((Model, "configure_optimizers"), (Model, "setup"), (Data, "setup"), (Data, "train_dataloader")), ""),
    **dict.fromkeys(((Model, "on_train_epoch_end"), (Model, "validation_step"), (Watcher, "on_train_epoch_end")), "in round 1"),
}


@pytest.mark.parametrize(("base", "hook"), few_quickly(HOOKS, 5), ids=lambda part: getattr(part, "__name__", part))
def test_the_users_code_is_shown_with_client_and_round(
    base: type, hook: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = shown(fails(tmp_path, broken(base, hook)), capsys)
    assert 'test_errors.py", line' in lines and f"in {hook}\n" in lines and "\nKeyError: 'x'\n" in lines
    assert re.search(HOOKS[base, hook], lines) and "/flcog/" not in lines and "/lightning/" not in lines, lines


class ReadsRound(flcog.Method):
    def loss(self, apply: Any, params: Any, batch: Any, task_loss: Any, ctx: Any) -> Any:
        return ctx.round * task_loss


def test_a_field_that_a_context_lacks(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The error belongs to the hook that reads the field."""
    lines = shown(fails(tmp_path, ReadsRound(), executor="loop"), capsys)
    assert (
        "AttributeError: 'Context' object has no attribute 'round'" in lines
        and re.search(IN_A_CLIENT, lines)
        and "return ctx.round * task_loss" in lines
    )


def test_a_fault_of_flcog_keeps_its_traceback(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(KeyError) as caught:
        changes_of({"x": torch.zeros(1)}, {})
    assert refusal(caught.value) is None and "/flcog/wire/envelope.py" in shown(caught.value, capsys)


def test_a_variable_asks_for_the_whole_traceback(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FLCOG_TRACEBACK", "1")
    error = fails(tmp_path, broken(Model, "training_step"))
    with pytest.raises(KeyError), shown_errors():
        raise error
    assert sys.excepthook is sys.__excepthook__ and "/flcog/" in "".join(traceback.format_exception(error))
    with pytest.raises(ValueError, match="beta must be positive"):
        main(["fit", "-c", QUICKSTART, "--data.partitioner.beta=0"])


# Inputs of flcog predict ----------------------------------------------------------------------------------------------------------


def test_inputs_that_are_no_numbers(tmp_path: Path) -> None:
    (tmp_path / "rows.npy").write_text("a,b\n1,2\n")
    with pytest.raises(ValueError, match=r"rows\.npy cannot be read, write it by numpy\.save"):
        read_arrays(tmp_path / "rows.npy")
