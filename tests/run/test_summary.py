"""The summary that a run prints at its beginning and its end."""

import re
import shlex
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from harness import TinyData, classifier, fit

from flcog.callbacks import SCAFFOLD, FedProx, FineTune
from flcog.core.text import human
from flcog.data import Splits
from flcog.run import checkpoint
from flcog.run.description import describe_method as describe
from flcog.run.observers.progress import ProgressBar
from flcog.run.observers.summary import Summary


class WithValidation(TinyData):
    """The test set's first ten samples are the validation set."""

    def load(self) -> Splits:
        splits = super().load()
        assert splits.test is not None
        rows = torch.arange(len(splits.test))
        held = [type(splits.test)(splits.test.gather(part), splits.test.targets[part]) for part in (rows[:10], rows[10:])]
        return Splits(splits.train, test=held[1], val=held[0])


def summary_of(printed: str) -> dict[str, str]:
    """The topics of a printed summary, with their texts unwrapped."""
    topics: dict[str, str] = {}
    topic = ""
    for line in printed.splitlines():
        if match := re.match(r"  (\S.*?)(?:  +(.*))?$", line):
            topic = match[1]
            topics[topic] = match[2] or ""
        elif line.startswith("    ") and topic:
            topics[topic] += " " + line.strip()
    return topics


def test_the_summary_says_what_the_run_is_and_what_came_out(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trainer = fit(tmp_path, SCAFFOLD(), FedProx(mu=0.25, start_round=1), eval_every=1, rounds=6)
    printed = capsys.readouterr().out
    before, after = printed.split("round 1/6", 1)
    setting, results = summary_of(before), summary_of(after)
    num_parameters = sum(p.numel() for p in trainer.run.params.values())
    assert setting["task"] == "classification, 3 classes"
    assert setting["model"] == f"MLP, {num_parameters} parameters"
    assert setting["data"] == "TinyData, 80 samples, 30 test samples"
    assert setting["clients"] == f"8 (partition {trainer.run.federation.partition.hash}), 5 a round"
    assert setting["local work"] == "4 local steps, batches of 4"
    assert setting["methods"] == f"{describe(SCAFFOLD())} FedProx(start_round=1, mu=0.25)"
    assert setting["executor"] == "loop, 1 client at a time"
    assert setting["run"] == results["run"] == str(trainer.run_dir)

    accuracies = [row["test/accuracy"] for row in trainer.history]
    assert results["rounds"] == "6 of 6"
    best = f"best {max(accuracies):.4f} (round {1 + accuracies.index(max(accuracies))})"
    assert results["test/accuracy"] == (
        f"{best}, picked on the test set, which flatters; last {accuracies[-1]:.4f}, "
        f"mean of the last 5 evaluations {np.mean(accuracies[-5:]):.4f}"
    )
    up, down = (sum(row[f"comm/{way}_bytes"] for row in trainer.history) for way in ("up", "down"))
    plain = 6 * 5 * 8 * num_parameters  # rounds, clients, bytes of a float64
    assert results["sent"] == f"{human(up)} up ({up / plain:.2f} x FedAvg's), {human(down)} down ({down / plain:.2f} x FedAvg's)"
    assert 1.9 < up / plain < 2.1
    assert re.fullmatch(r".* m?s a round \(median\), 0:\d\d in all with evaluation", results["took"])
    assert (
        max(
            len(line)
            for line in printed.splitlines()
            if not line.startswith(("  trainer.", "round ")) and str(tmp_path) not in line
        )
        <= 80
    )


def test_the_summary_is_silent_about_what_does_not_apply(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    fit(tmp_path, rounds=2, local_epochs=1.0)
    printed = capsys.readouterr().out
    assert "none: plain FedAvg" in printed and "1 local epoch, batches of 4" in printed
    assert "FedAvg's" not in printed and "accuracy" not in printed and "Go on" not in printed
    fit(tmp_path, Summary(enabled=False), ProgressBar(enabled=False))
    assert capsys.readouterr().out == ""


def test_a_validation_set_chooses_the_round_whose_test_score_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trainer = fit(tmp_path, data=WithValidation(), module=classifier(partial(torch.optim.SGD, lr=0.7)), eval_every=1, rounds=6)
    chosen = max(trainer.history, key=lambda row: row["val/accuracy"])
    printed = " ".join(capsys.readouterr().out.split())
    assert f"{chosen['test/accuracy']:.4f} where val/accuracy was best (round {chosen['round']}); last" in printed
    best = max(trainer.history, key=lambda row: row["test/accuracy"])
    assert f"{best['test/accuracy']:.4f} (round {best['round']}) is the best on the test set itself, which flatters" in printed
    assert trainer.run_dir is not None
    assert checkpoint.read(trainer.run_dir / "checkpoints/best.ckpt")["round"] == chosen["round"]


def test_what_clients_hold_out_for_validation_chooses_too(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The held-out samples of all clients form one validation set, and clients need to send only sums."""
    data = TinyData(client_val=0.3)
    trainer = fit(tmp_path, data=data, module=classifier(partial(torch.optim.SGD, lr=0.7)), eval_every=1, rounds=6)
    part = data.federation.client_val
    assert part is not None
    own = torch.from_numpy(part.indices)
    inputs, targets = data.federation.load(data.federation.train, own, torch.device("cpu"))
    trainer.model.eval()
    with torch.no_grad():
        outputs = trainer.model(inputs.double())
    last = trainer.history[-1]
    assert last["val/accuracy"] == pytest.approx(float((outputs.argmax(1) == targets).double().mean()))
    assert last["val/loss"] == pytest.approx(float(torch.nn.functional.cross_entropy(outputs.float(), targets)), rel=1e-5)
    chosen = max(trainer.history, key=lambda row: row["val/accuracy"])
    assert f"where val/accuracy was best (round {chosen['round']})" in " ".join(capsys.readouterr().out.split())
    assert checkpoint.read(trainer.run.directory / "checkpoints/best.ckpt")["round"] == chosen["round"]


CONFIG = """
trainer: {{rounds: 3, local_steps: 1, clients_per_round: 2, logger: false, default_root_dir: {root}, accelerator: cpu}}
model:
  class_path: flcog.Classifier
  init_args:
    model: {{class_path: flcog.models.MLP, init_args: {{in_features: 64, hidden: [8], num_classes: 10}}}}
data: {{class_path: flcog.datamodules.Digits, init_args: {{image_size: 8}}}}
"""


STOPPING = """
trainer:
  callbacks+: [{class_path: flcog.callbacks.EarlyStopping, init_args: {stopping_threshold: 0.0}}]
"""


@pytest.mark.usefixtures("command_line")
@pytest.mark.slow
def test_the_commands_that_a_run_suggests_work(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from flcog.commands.cli import main

    monkeypatch.delenv("UV_RUN_RECURSION_DEPTH", raising=False)
    (tmp_path / "config.yaml").write_text(CONFIG.format(root=tmp_path / "runs"))
    (tmp_path / "stopping.yaml").write_text(STOPPING)
    monkeypatch.chdir(tmp_path)
    main(["fit", "-c", "config.yaml", "-c", "stopping.yaml"])
    printed = capsys.readouterr().out
    commands = dict(re.findall(r"^(.*):\n  (flcog .*)$", printed, re.MULTILINE))
    go_on = "Go on with it, once the options that ended it allow more rounds"
    test_it = "Test its best model (round 1, by test/accuracy)"
    assert commands.keys() == {test_it, go_on}
    (value,) = re.findall(r"best (0\.\d{4}) \(round 1\)", printed)
    main(shlex.split(commands[test_it])[1:])
    printed = capsys.readouterr().out
    assert f"{float(value):.3g}" in printed and printed.count("test/accuracy") == 1
    main([*shlex.split(commands[go_on])[1:], "--trainer.callbacks", "null"])
    assert "3 of 3" in capsys.readouterr().out
    monkeypatch.setenv("UV_RUN_RECURSION_DEPTH", "1")
    main(["fit", "-c", "config.yaml", "--trainer.rounds", "1"])
    assert "\n  uv run flcog test " in capsys.readouterr().out


def test_clients_with_own_models_are_judged_by_these(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trainer = fit(tmp_path, FineTune(), data=TinyData(client_test=0.3, client_val=0.2), rounds=3, eval_every=1)
    printed = capsys.readouterr().out
    rows, scores = trainer.history, summary_of(printed)
    best = max(rows, key=lambda row: row["val/personal_accuracy_mean"])
    mean, worst, spread = (f"{best[f'test/personal_accuracy_{of}']:.4f}" for of in ("mean", "worst_decile", "std"))
    shown = f"{mean} (worst tenth {worst}, deviation {spread})"
    assert shown in printed.split("round 1/3")[1] and f"test personal accuracy {shown}" in printed
    assert scores["test/personal_accuracy_mean"].startswith(
        f"{shown} where val/personal_accuracy_mean was best (round {best['round']:.0f}); last "
    )
    assert scores["test/accuracy"] == f"last {rows[-1]['test/accuracy']:.4f}, by the global model"
    saved = checkpoint.peek(trainer.run.directory / "checkpoints" / "best.ckpt")["observers"]["Checkpoint"]
    assert (saved["metric"], saved["round"]) == ("val/personal_accuracy_mean", best["round"])
