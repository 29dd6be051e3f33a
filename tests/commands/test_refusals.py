"""Each mistake on the command line or in a config gets one line with the given value, the allowed values and a remedy."""

import re
import shlex
import sys
import zipfile
from pathlib import Path

import pytest
from harness import ROOT

from flcog.commands.cli import main
from flcog.commands.predict import read_inputs

QUICKSTART = str(ROOT / "configs" / "quickstart.yaml")
OWN_CLASSES = "import flcog\nimport not_installed\nclass Mine(flcog.Method): pass\n"


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command_line: None) -> None:
    monkeypatch.chdir(tmp_path)


def refusal(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    """The one line that a command prints before it exits with 2."""
    with pytest.raises(SystemExit) as exit:
        main(arguments)
    lines = [line for line in capsys.readouterr().err.splitlines() if line.strip() and not line.startswith("Seed set")]
    assert exit.value.code == 2 and len(lines) == 1 and lines[0].startswith("flcog: error: "), lines
    assert "Union subtypes" not in lines[0] and "<class" not in lines[0]
    return lines[0]


# Options after `fit -c configs/quickstart.yaml`, and the parts that the error line must contain, separated by |.
OPTIONS = {
    # Values of the wrong type.
    "--trainer.rounds abc": "trainer.rounds must be a whole number; got 'abc'",
    "--trainer.callbacks+=FedDyn --trainer.callbacks.FedDyn.form feddisco": "has no option 'form' any more: use the class FedDynInFedDisco",
    "--trainer.rounds 1.5": "must be a whole number; got '1.5'",
    "--trainer.rounds null": "must be a whole number; got null",
    "--trainer.local_steps abc": "must be a whole number or null; got 'abc'",
    "--trainer.clients_per_round abc": "must be a whole number or a number; got 'abc'",
    "--trainer.executor foo": "trainer.executor must be auto, loop, vmap, vmap-patches or lightning; got 'foo'",
    "--trainer.logger abc": "trainer.logger must be|true or false|got 'abc'",
    "--data ArrayData --data.train_inputs mine.npz": "train_inputs takes an array, from Python; got 'mine.npz': give a file as path",
    "--trainer.callbacks SCAFFOLD": "must be a list (each the class path of a Callback)|--trainer.callbacks+=SCAFFOLD adds one",
    "--trainer.callbacks+=": "trainer.callbacks must be a list|got ''",
    "--trainer 3": "trainer must be a mapping of options|got '3'",
    "--data.batch_size abc": "Digits: batch_size must be a whole number; got 'abc'",
    "--data.partition_seed 1.5": "partition_seed must be a whole number; got '1.5'",
    "--model.optimizer.lr nan": "SGD: lr must be a number; got 'nan'",
    "--model.optimizer.lr abc": "SGD: lr must be a number; got 'abc'",
    "--model.optimizer.momentum nan": "SGD: momentum must be a number; got 'nan'",
    "--seed_everything abc": "seed_everything must be true or false or a whole number; got 'abc'",
    "--trainer.callbacks+=FedProx --trainer.callbacks.mu=abc": "FedProx: mu must be a number; got 'abc'",
    # Numbers out of their range.
    "--model.optimizer.lr -1": "Classifier: the optimizer refuses|learning rate: -1.0",
    "--model.optimizer.momentum -1": "momentum value: -1.0",
    "--model.optimizer.weight_decay -1": "weight_decay value: -1.0",
    "--model.lr_schedule flcog.schedules.Exponential --model.lr_schedule.gamma -1": "gamma must lie in (0, 1]; got -1.0",
    "--model.lr_schedule flcog.schedules.Piecewise --model.lr_schedule.values [-1]": "lr_schedule's values must be at least 0|-1",
    "--seed_everything -1": "seed_everything must be at least 0 and less than 4294967296|got -1",
    "--seed_everything 99999999999999999999999": "seed_everything must be at least 0 and less than 4294967296",
    "--data.partition_seed -1": "Digits: partition_seed must lie in [0, 18446744073709551616)|got -1",
    "--data.partition_seed 18446744073709551616": "64 bits; got 18446744073709551616",
    "--trainer.local_steps null --trainer.local_epochs .inf": "local_epochs must be positive and finite; got inf",
    "--trainer.local_steps null --trainer.local_epochs .nan": "local_epochs must be positive and finite; got nan",
    "--trainer.clients_per_round .nan": "clients_per_round must be a count|got nan",
    "--trainer.devices foo": "devices=foo|devices of this machine",
    "--trainer.devices -3": "devices=-3|devices of this machine",
    "--trainer.accelerator tpu": "accelerator=tpu|devices of this machine",
    # Options that do not exist: the suggestion is an option of the same group.
    "--data.num_client 3": "data (Digits) has no option 'num_client'. Did you mean 'num_clients'?",
    "--data lightning.pytorch.demos.boring_classes.BoringDataModule --data.num_clients 3": "belong to LightningData: --data LightningData "
    "--data.module lightning.pytorch.demos.boring_classes.BoringDataModule --data.num_clients 10",
    "--data.foo 3": "data (Digits) has no option 'foo'. It has batch_size, client_test",
    "--data.partitioner.betta 3": "data.partitioner (Dirichlet) has no option 'betta'. Did you mean 'beta'?",
    "--model.optimizer.lrr 3": "model.optimizer (SGD) has no option 'lrr'. Did you mean 'lr'?",
    "--trainer.callbacks+=FedProx --trainer.callbacks.mue=1": "trainer.callbacks (FedProx) has no option 'mue'|'mu'?",
    "--trainer.callbacks.mu=3": "trainer.callbacks (Callback) needs a class_path|init_args",
    "--trainer.ROUNDS 3": "there is no option --trainer.ROUNDS. Did you mean '--trainer.rounds'?",
    "--rounds 3": "Did you mean '--trainer.rounds'?",
    "--num_clients 3": "Did you mean '--data.num_clients'?",
    "--foo": "there is no option --foo. flcog fit --help lists all",
    "-trainer.rounds 3": "begin with two dashes. Did you mean '--trainer.rounds'?",
    "trainer.rounds=3": "begin with two dashes. Did you mean '--trainer.rounds'?",
    "--trainer.rounds 3 4": "'4' belongs to no option: each takes one value",
    "--trainer.rounds": "--trainer.rounds: expected one argument",
    "--trainer.seed 3": "give --seed_everything",
    # Classes.
    "--trainer.callbacks+=Scafold": "there is no class 'Scafold'|as in flcog.callbacks.|Did you mean 'SCAFFOLD'?",
    "--trainer.callbacks+=scaffold": "Did you mean 'SCAFFOLD'?",
    "--trainer.callbacks+=flcog.callbacks.Scafold": "flcog.callbacks has no 'Scafold'. Did you mean 'SCAFFOLD'?",
    "--trainer.callbacks+=flcog.callback.FedProx": "flcog has no 'callback'. Give its name alone: FedProx",
    "--trainer.callbacks+=nowhere.Method": "there is no module 'nowhere' (of nowhere.Method)|nor in the working directory",
    "--trainer.callbacks+=my_module.Mine": "cannot import my_module.Mine, which needs a module 'not_installed'",
    "--trainer.callbacks+=flcog.Classifier": "flcog.Classifier is no Callback, as in flcog.callbacks.",
    "--trainer.callbacks+=flcog.Method": "flcog.Method is a base class|as in flcog.callbacks.",
    "--trainer.callbacks+=flcog.Callback": "flcog.Callback is a base class",
    "--data flcog.FederatedDataModule": "flcog.FederatedDataModule is a base class|as in flcog.datamodules.",
    "--data Digit": "there is no class 'Digit'|as in flcog.datamodules.|Did you mean 'Digits'?",
    "--data null": "needs data: give a config (-c FILE), or class paths by --data",
    "--model flcog.ClientModule": "flcog.ClientModule is a base class|as in flcog.Classifier",
    "--model flcog.callbacks.FedProx": "flcog.callbacks.FedProx is no Module, as in flcog.models.",
    "--model.model flcog.callbacks.FedProx": "Classifier: model must be|flcog.callbacks.FedProx is no Module, as in flcog.models.",
    "--model.model torch.nn.Lineare": "torch.nn has no 'Lineare'. Did you mean 'Linear'?",
    "--model.model torch.nn.Linear": "Linear needs in_features, out_features: give --model.model.in_features and",
    "--model.optimizer torch.optim.SDG": "torch.optim has no 'SDG'. Did you mean 'SGD'?",
    "--model.optimizer flcog.callbacks.FedProx": "flcog.callbacks.FedProx is no Optimizer",
    "--trainer.logger TensorBoardLogger": "TensorBoardLogger needs save_dir: give --trainer.logger.save_dir",
}


@pytest.mark.parametrize("options", OPTIONS)
def test_an_option_is_refused_in_one_line(options: str, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    (tmp_path / "my_module.py").write_text(OWN_CLASSES)
    sys.modules.pop("my_module", None)  # another test may have imported it
    arguments = ["fit", "-c", QUICKSTART, *("--trainer.logger=false",) * ("logger" not in options), *shlex.split(options)]
    line = refusal(arguments, capsys)
    assert all(words in line for words in OPTIONS[options].split("|")), line


BROKEN = {
    "class A(flcog.Method)\n    pass": r"cannot import broken.A: expected ':' \(broken.py, line 2\)",
    "class A(flcog.Methd): pass": r"AttributeError: module 'flcog' has no attribute 'Methd' \(broken.py, line 2\)",
    "class A(flcog.Method):\n    def sever_step(self): pass": r"defines 'sever_step', which is no hook; did you mean 'server_step'\?",
    "class A(flcog.Method): pass\nundefined": r"NameError: name 'undefined' is not defined \(broken.py, line 3\)",
}


@pytest.mark.parametrize("code", BROKEN)
@pytest.mark.parametrize("option", ["--trainer.callbacks+=broken.A", "-c broken.yaml", "--model=broken.A"])
def test_an_error_in_a_users_module_is_named_with_its_place(
    option: str, code: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    (tmp_path / "broken.py").write_text(f"import flcog\n{code}\n")
    (tmp_path / "broken.yaml").write_text("trainer: {callbacks: [{class_path: broken.A}]}")
    line = refusal(["fit", "-c", QUICKSTART, *option.split()], capsys)
    assert "cannot import broken.A: " in line and re.search(BROKEN[code], line), line


HOOKS = """
import flcog, lightning as L
class InClients(L.Callback):
    def on_train_batch_end(self, trainer, module, outputs, batch, batch_idx):
        {}["x"] if batch_idx == 1 else None
class BetweenRounds(L.Callback):
    def on_train_epoch_end(self, trainer, module):
        raise RuntimeError("two\\nlines")
class Ours(flcog.Callback):
    def on_round_end(self, run, round, metrics):
        1 / 0
"""


TRACED = r"\(FLCOG_TRACEBACK=1 shows the traceback\)"


@pytest.mark.parametrize(
    ("callback", "message"),
    [
        (
            "InClients",
            r"KeyError: 'x' \(my_hooks.py, line 5\), in InClients.on_train_batch_end, in client \d, round 1, local step 2 of 2",
        ),
        ("BetweenRounds", r"RuntimeError: two lines \(my_hooks.py, line 8\), in BetweenRounds.on_train_epoch_end, round 1"),
        ("Ours", r"ZeroDivisionError: division by zero \(my_hooks.py, line 11\), in Ours.on_round_end, round 1"),
    ],
)
@pytest.mark.slow
def test_an_error_in_a_hook_is_shown_in_one_line(
    callback: str, message: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    (tmp_path / "my_hooks.py").write_text(HOOKS)
    sys.modules.pop("my_hooks", None)  # another test may have imported it
    options = "--trainer.logger=false --trainer.rounds=1 --trainer.local_steps=2 --trainer.eval_every=0"
    with pytest.raises(SystemExit) as exit:
        main(["fit", "-c", QUICKSTART, *options.split(), f"--trainer.callbacks+=my_hooks.{callback}"])
    lines = capsys.readouterr().err.strip().splitlines()
    assert exit.value.code == 2 and any(re.fullmatch(f"flcog: error: {message} {TRACED}", line) for line in lines), lines
    assert not any("Traceback" in line for line in lines)


COMMANDS = {
    "": "give a command, as in flcog fit|partition, bench|synthesize|; flcog --help",
    "fitt -c Q": "there is no command 'fitt'. Did you mean 'fit'?|validate|bench|compare|shuffling-study",
    "Fit -c Q": "Did you mean 'fit'?",
    "-c Q fit": "the command comes first, its options after it: flcog fit -c FILE",
    "fit": "needs data and model: give a config (-c FILE)",
    "test -c Q --round 3": "there is no option --round. Did you mean '--trainer.rounds'?",
    "partition -c Q --plott x.png": "Did you mean '--plot'?",
    "partition -c Q --plot x.foo": "cannot draw x.foo: a figure's name ends with",
    "bench -c Q --repeats abc": "repeats must be a whole number; got 'abc'",
    "bench -c Q --against pfl,tff": "against: 'tff' is not known; give pfl, flower or batched",
}


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_is_refused_in_one_line(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    line = refusal([QUICKSTART if word == "Q" else word for word in command.split()], capsys)
    assert all(words in line for words in COMMANDS[command].split("|")), line


MINE = "{class_path: flcog.callbacks.FedProx, init_args: {mu: 1}}"
CONFIGS = {
    # Files that are not a config.
    b"trainer: {rounds: 3}\n# caf\xe9\n": "config.yaml is not UTF-8 text (byte 26): save it as UTF-8",
    b"\x91\x02\xff": "is not UTF-8 text",
    b"\0\0": "is no YAML: unacceptable character",
    b"": "holds nothing: a config is a mapping with trainer, model, data",
    b"# only a comment\n": "holds nothing",
    b"- trainer\n": "holds a list",
    b"just words\n": "holds a single value",
    b"trainer: [3\n": "is no YAML: expected|(line 2, column 1)",
    b"a: " + b"[" * 2000: "config.yaml cannot be read: its brackets or lists are nested too deeply",
    b"trainer: !!python/object/apply:os.system [ls]": "could not determine a constructor|config.yaml",
    # Options that are repeated, misspelt or of the wrong form.
    b"trainer:\n  rounds: 3\n  rounds: 4\n": "config.yaml has 'rounds' twice, in lines 2 and 3: keep one",
    b"trainer:\n": "trainer must be a mapping of options; got nothing",
    b"trainer: 3\n": "trainer must be a mapping of options; got 3",
    b"trainr: {rounds: 3}": "there is no option 'trainr.rounds'. Did you mean 'trainer.rounds'?",
    b"trainer: {roundz: 3}": "there is no option 'trainer.roundz'. Did you mean 'trainer.rounds'?",
    b"fit: {trainer: {rounds: 3}}": "there is no option 'fit.trainer.rounds'. Did you mean 'trainer.rounds'?",
    b"data: {init_args: {num_client: 3}}": "data (Digits) has no option 'num_client'. Did you mean 'num_clients'?",
    b"model: {init_arg: {optimizer: 3}}": "model (Classifier) has no option 'init_arg'. Did you mean 'init_args'?",
    b"trainer: {callbacks: %s}" % MINE.encode(): "trainer.callbacks must be a list",
    b"trainer: {callbacks: [FedProx, SCAFOLD]}": "Did you mean 'SCAFFOLD'?",
    b"trainer: {callbacks: [{FedProx: {mu: 1}}]}": "trainer.callbacks (Callback) needs a class_path",
    b"trainer: {callbacks: [{class_path: flcog.callbacks.FedProx, mu: 1}]}": "that class's options under init_args; got 'mu' beside them",
    b"trainer: {callbacks: [%s]}" % MINE.replace("1", "lots").encode(): "FedProx: mu must be a number; got 'lots'",
    b"seed_everything: -3": "seed_everything must be at least 0 and less than 4294967296",
}


@pytest.mark.parametrize("content", CONFIGS, ids=range(len(CONFIGS)))
def test_a_config_is_refused_in_one_line(content: bytes, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "config.yaml").write_bytes(content)
    line = refusal(["fit", "-c", QUICKSTART, "-c", "config.yaml", "--trainer.logger", "false"], capsys)
    assert all(words in line for words in CONFIGS[content].split("|")), line


def test_a_folder_or_a_class_s_file_for_a_config(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "folder").mkdir()
    assert "a config that flcog configs lists: path is not a file" in refusal(["fit", "-c", "folder"], capsys)
    (tmp_path / "model.yaml").write_bytes(b"caf\xe9: 1")
    assert "model: the file is not UTF-8" in refusal(["fit", "-c", QUICKSTART, "--model", "model.yaml"], capsys)


def test_a_text_for_a_checkpoint(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """torch's own message would be 101, the code of the file's first letter."""
    (tmp_path / "notes.ckpt").write_text("e")
    line = refusal(["test", "-c", QUICKSTART, "--ckpt_path", "notes.ckpt"], capsys)
    assert "notes.ckpt is no readable flcog checkpoint" in line and "101" not in line


def test_what_a_config_may_hold(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """An anchor with its alias, and the same key in two mappings, are no duplicates."""
    second = "    - {class_path: SCAFFOLD, init_args: {}}"
    (tmp_path / "config.yaml").write_text(
        f"trainer:\n  rounds: &seven 7\n  local_steps: *seven\n  callbacks:\n    - {MINE}\n{second}\n"
    )
    with pytest.raises(SystemExit) as exit:
        main(["fit", "-c", QUICKSTART, "-c", "config.yaml", "--print_config"])
    assert exit.value.code == 0 and "rounds: 7" in capsys.readouterr().out


@pytest.mark.parametrize("name", ["x" * 300, sys.executable], ids=["long", "binary"])
@pytest.mark.parametrize("command", ["configs", "report", "cite", "predict"])
def test_names_of_no_file_that_can_be_read(command: str, name: str, capsys: pytest.CaptureFixture[str]) -> None:
    refusal([command, name], capsys)


@pytest.mark.parametrize("command", ["export", "predict"])
def test_a_folder_of_no_run(command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert f"{tmp_path} holds no checkpoints: give the directory of a run" in refusal([command, str(tmp_path)], capsys)


def array(shape: str, kind: str) -> bytes:
    """A .npy file whose header declares an array, followed by only eight bytes of data."""
    header = f"{{'descr': '{kind}', 'fortran_order': False, 'shape': {shape}, }}".ljust(117).encode() + b"\n"
    return b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header + bytes(8)


INPUTS = {
    "empty": (b"", "cannot be read as .npy or .npz"),
    "table": (b"a,b\n1,2\n", "cannot be read as .npy or .npz"),
    "petabytes": (array("(1000000000, 1000, 1000)", "|u1"), "cannot be read as .npy or .npz"),
    "text": (array("(1,)", "<U2"), "of type <U2"),
    "objects": (array("(1,)", "|O"), "cannot be read as .npy or .npz"),
    "no samples": (array("(0, 8, 8, 1)", "|u1"), "a sample in each row"),
}


@pytest.mark.parametrize("packed", [False, True], ids=["npy", "npz"])
@pytest.mark.parametrize("form", INPUTS)
def test_inputs_that_are_no_numbers(form: str, packed: bool, tmp_path: Path) -> None:
    content, said = INPUTS[form]
    path = tmp_path / "inputs.npz"
    path.write_bytes(content)
    if packed:
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr("inputs.npy", content)
    with pytest.raises(ValueError, match=re.escape(said)) as caught:
        read_inputs(path)
    assert "allow_pickle" not in str(caught.value).replace("allow_pickle=False", "") and "\n" not in str(caught.value)


def test_a_thousand_processes(capsys: pytest.CaptureFixture[str]) -> None:
    shared = ["--trainer.accelerator", "cpu", "--trainer.devices", "1"]
    line = refusal(["fit", "-c", QUICKSTART, *shared, "--trainer.processes_per_device", "1000"], capsys)
    assert "asks for 1,000 processes on this machine, which has" in line
