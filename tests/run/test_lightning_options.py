"""The arguments of lightning.Trainer: each is supported, or refused with its counterpart."""

import dataclasses
import inspect
import re
import runpy
import subprocess
import sys
from datetime import timedelta
from pathlib import Path
from typing import Any

import lightning as L
import pytest
import torch
import yaml
from datamodules.common import one_line
from harness import ROOT, TinyData, classifier, fit, make_trainer, train
from lightning.pytorch.profilers import SimpleProfiler
from torch import Tensor, nn

import flcog
from flcog.commands.cli import main
from flcog.core.lightning_options import COUNTERPARTS

LIGHTNINGS = set(inspect.signature(L.Trainer.__init__).parameters) - {"self"}
OURS = set(inspect.signature(flcog.FederatedTrainer.__init__).parameters)


def test_every_argument_is_supported_or_refused() -> None:
    assert not LIGHTNINGS & OURS & set(COUNTERPARTS)
    assert set(COUNTERPARTS) == LIGHTNINGS - OURS


def test_the_page_lists_every_argument() -> None:
    page = (ROOT / "docs" / "lightning.md").read_text()
    rows = dict(re.findall(r"^\| `Trainer\((\w+)\)` \| (.*) \|$", page, re.MULTILINE))
    assert set(rows) == LIGHTNINGS
    assert {name for name, text in rows.items() if text.startswith("refused: ")} == set(COUNTERPARTS)
    assert all(rows[name] == f"refused: {text}" for name, text in COUNTERPARTS.items())


def test_the_tables_of_the_page_are_those_of_the_installed_version() -> None:
    with_tables = runpy.run_path(str(ROOT / "docs" / "lightning_tables.py"))["with_tables"]
    page = (ROOT / "docs" / "lightning.md").read_text()
    assert with_tables(page) == page, "run: python docs/lightning_tables.py"
    lines = page.splitlines(keepends=True)
    without = "".join(line for line in lines if not line.startswith(("| `Callback.on_fit_end`", "| `Trainer(plugins)`")))
    restored = with_tables(without)
    assert "| `Callback.on_fit_end` | ignored |\n" in restored
    assert f"| `Trainer(plugins)` | refused: {COUNTERPARTS['plugins']} |\n" in restored


@pytest.mark.parametrize("name", COUNTERPARTS)
def test_others_are_refused_in_one_line(name: str) -> None:
    with one_line(ValueError, re.escape(f"trainer.{name} belongs to lightning.Trainer: {COUNTERPARTS[name]}")):
        flcog.FederatedTrainer(**{name: 7})


def test_the_command_line_refuses_them_too(tmp_path: Path, capsys: pytest.CaptureFixture[str], command_line: None) -> None:
    config = tmp_path / "my.yaml"
    config.write_text("trainer: {max_epochs: 3}\n")
    for words in (["-c", "quickstart", "--trainer.max_epochs", "3"], ["-c", "quickstart", "-c", str(config)]):
        with pytest.raises(SystemExit):
            main(["fit", *words])
        assert "trainer.max_epochs belongs to lightning.Trainer: use rounds" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        main(["fit", "-c", "quickstart", "--trainer.clipping_of_gradients", "1"])
    assert "Did you mean" not in capsys.readouterr().err


def test_fast_dev_run(tmp_path: Path) -> None:
    trainer = fit(tmp_path, fast_dev_run=True, eval_every=1, local_epochs=2.0, data=TinyData(eval_batch_size=10))
    assert len(trainer.history) == 1 and trainer.settings.local_steps == 1
    assert not (trainer.run.directory / "checkpoints").exists()
    assert "test/loss" in trainer.history[0]
    with one_line(ValueError, "fast_dev_run tries a program and resumes no run; got ckpt_path=last"):
        make_trainer(tmp_path, fast_dev_run=1).fit(classifier(), TinyData(), ckpt_path="last")


@pytest.mark.parametrize("limit", [1, 0.5, 3, 1.0])
def test_limits_of_evaluations(limit: int | float) -> None:
    """The figures equal an evaluation of only the first rows."""
    whole, part = TinyData(eval_batch_size=10), TinyData(eval_batch_size=10)
    trainer = train(data=part, rounds=1, limit_test_batches=limit)
    reference = train(data=whole, rounds=1)
    test = reference.run.federation.test
    assert test is not None
    rows = min(len(test), 10 * (limit if isinstance(limit, int) else int(limit * -(-len(test) // 10))))
    run = reference.run
    expected = run.evaluator.on_set(run.params, run.buffers, test, torch.arange(rows).numpy())
    assert {f"test/{name}": value for name, value in expected.items()} == trainer.evaluate()


@pytest.mark.parametrize("option", ["limit_val_batches", "limit_test_batches", "overfit_batches"])
def test_a_part_below_one_batch_is_refused(option: str) -> None:
    """The columns of the set would be missing in all rows."""

    class WithVal(TinyData):
        def load(self) -> Any:
            splits = super().load()
            return dataclasses.replace(splits, val=splits.test)

    with one_line(
        ValueError, r"must leave one batch; got 0.5 of 1 with up to 1000 samples of the (val|test) set: give a number of"
    ):
        make_trainer(None, **{option: 0.5}).prepare(classifier(), WithVal())


def test_no_batches_are_no_evaluation() -> None:
    assert train(rounds=1, limit_test_batches=0).evaluate() == {}


@pytest.mark.parametrize("limit", [1, 0.5])
def test_limits_of_predictions(limit: int | float) -> None:
    module, data = classifier(), TinyData(eval_batch_size=10)
    every, some = (make_trainer(None, limit_predict_batches=some).predict(module, data) for some in (1.0, limit))
    assert every.keys() == some.keys() and len(some["target"]) == 10
    assert all(torch.equal(some[name], values[:10]) for name, values in every.items())
    with one_line(ValueError, "limit_predict_batches=0 leaves no sample to predict"):
        make_trainer(None, limit_predict_batches=0).predict(module, data)


@pytest.mark.parametrize("inference_mode", [True, False])
def test_inference_mode(inference_mode: bool) -> None:
    """Without inference mode, a step may use gradients."""
    seen: list[Any] = []

    class Looks(FailsToValidate):
        def test_step(self, batch: Any, batch_idx: int) -> None:
            with torch.enable_grad():
                inputs = batch[0].clone().requires_grad_(not torch.is_inference_mode_enabled())
                seen.append((torch.is_inference_mode_enabled(), self.net(inputs).sum().requires_grad))

    fitted = train(module=Looks(), inference_mode=inference_mode, precision="32-true", rounds=1)  # type: ignore[arg-type]
    fitted.evaluate()
    fitted.train_round()
    assert set(seen) == {(inference_mode, not inference_mode)}


class FailsToValidate(L.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Linear(6, 3)

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        return nn.functional.cross_entropy(self.net(batch[0]), batch[1])

    def test_step(self, batch: Any, batch_idx: int) -> None:
        raise RuntimeError("of the user's")

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), lr=0.1)


def test_a_sanity_check_comes_before_the_first_round(tmp_path: Path) -> None:
    options: dict[str, Any] = {"eval_every": 3, "precision": "32-true", "local_steps": 1}
    trainer = make_trainer(tmp_path, num_sanity_val_steps=1, **options)
    with pytest.raises(RuntimeError, match="of the user's"):
        trainer.fit(FailsToValidate(), TinyData())
    assert trainer.history == []
    checked, plain = (fit(tmp_path, num_sanity_val_steps=steps, **options).history for steps in (1, 0))
    assert [row["train/loss"] for row in checked] == [row["train/loss"] for row in plain]


@pytest.mark.parametrize("algorithm", ["norm", "value"])
@pytest.mark.parametrize("executor", ["loop", "vmap"])
def test_gradients_are_clipped_as_torch_clips_them(algorithm: str, executor: str) -> None:
    module = classifier()
    start = {name: value.detach().clone().double() for name, value in module.named_parameters()}
    options: dict[str, Any] = {"rounds": 1, "clients_per_round": 1, "local_steps": 1, "executor": executor}
    clipped = train(module=module, gradient_clip_val=0.01, gradient_clip_algorithm=algorithm, **options)
    free = train(module=classifier(), **options)
    parameters = [nn.Parameter(value.clone()) for value in start.values()]
    for parameter, (name, value) in zip(parameters, start.items(), strict=True):
        parameter.grad = (value - free.params[name]) / 0.1
    if algorithm == "norm":
        nn.utils.clip_grad_norm_(parameters, 0.01)
    else:
        nn.utils.clip_grad_value_(parameters, 0.01)
    for parameter, (name, value) in zip(parameters, start.items(), strict=True):
        torch.testing.assert_close(clipped.params[name], value - 0.1 * parameter.grad, rtol=0, atol=1e-12)  # type: ignore[operator]


def test_time_is_up(tmp_path: Path) -> None:
    assert 1 <= len(fit(tmp_path, max_time=timedelta(seconds=0.2), rounds=10**4, enable_checkpointing=False).history) < 10**4
    assert len(fit(tmp_path, max_time="00:01:00:00", rounds=2).history) == 2


def test_what_a_run_shows_and_writes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    quiet = fit(tmp_path, enable_progress_bar=False, enable_checkpointing=False, enable_model_summary=False, eval_every=1)
    assert capsys.readouterr().out == "" and not (quiet.run.directory / "checkpoints").exists()
    assert len(quiet.history) == 3


@pytest.mark.parametrize("profiler", ["simple", "advanced", "pytorch", SimpleProfiler()])
def test_profilers(profiler: Any, tmp_path: Path, capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    fit(tmp_path, profiler=profiler, rounds=2, eval_every=1)
    text = caplog.text + capfd.readouterr().out
    assert "round" in text and ("evaluation" in text or profiler == "pytorch")


def test_anomalies_are_named(tmp_path: Path) -> None:
    class Nan(FailsToValidate):
        def training_step(self, batch: Any, batch_idx: int) -> Tensor:
            return (self.net(batch[0]) * 0).sqrt().sum()

    with (
        pytest.raises(RuntimeError, match=r"Function .*Backward.* returned nan values"),
        pytest.warns(UserWarning, match="forward call"),
    ):
        train(module=Nan(), detect_anomaly=True, precision="32-true")  # type: ignore[arg-type]
    assert not torch.is_anomaly_enabled()


def test_deterministic_algorithms() -> None:
    seen: list[bool] = []

    class Looks(FailsToValidate):
        def training_step(self, batch: Any, batch_idx: int) -> Tensor:
            seen.append(torch.are_deterministic_algorithms_enabled())
            return super().training_step(batch, batch_idx)

    train(module=Looks(), deterministic=True, precision="32-true", rounds=1)  # type: ignore[arg-type]
    assert all(seen) and seen and not torch.are_deterministic_algorithms_enabled()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"limit_test_batches": -1}, r"limit_test_batches must be a count .* or a fraction in \[0, 1\]; got -1"),
        ({"limit_val_batches": 1.5}, "limit_val_batches must be a count"),
        ({"gradient_clip_val": 0.0}, r"gradient_clip_val must lie in \(0, inf\]; got 0.0"),
        (
            {"gradient_clip_val": 1.0, "gradient_clip_algorithm": "max"},
            "gradient_clip_algorithm must be norm or value; got 'max'",
        ),
        ({"deterministic": "yes"}, "deterministic must be true, false or warn; got 'yes'"),
        (
            {"profiler": "fast"},
            "profiler must be simple, advanced, pytorch or a profiler of lightning.pytorch.profilers; got 'fast'",
        ),
    ],
)
def test_bad_values(options: dict[str, Any], message: str) -> None:
    with one_line(ValueError, message):
        make_trainer(None, **options)


def test_lightnings_defaults_ask_for_nothing() -> None:
    defaults = {name: each.default for name, each in inspect.signature(L.Trainer.__init__).parameters.items() if name != "self"}
    assert defaults["devices"] == "auto" and defaults["max_steps"] == -1 and defaults["precision"] is None
    trainer = flcog.FederatedTrainer(**defaults | {"devices": 1, "logger": False}, rounds=3, local_epochs=1)
    plain = flcog.FederatedTrainer(rounds=3, local_epochs=1)
    assert trainer.settings == plain.settings and trainer.default_root_dir == plain.default_root_dir
    with one_line(ValueError, "rounds must be a whole number; got None"):
        flcog.FederatedTrainer(rounds=None, local_epochs=1)  # type: ignore[arg-type]


BORING = "lightning.pytorch.demos.boring_classes"


@pytest.mark.slow
def test_a_config_of_lightnings_command_line_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command_line: None) -> None:
    monkeypatch.chdir(tmp_path)
    words = ["fit", "--model", f"{BORING}.BoringModel", "--data", f"{BORING}.BoringDataModule"]
    words += ["--trainer.devices", "1", "--trainer.logger", "false"]
    config = tmp_path / "lightning.yaml"
    command = [sys.executable, "-c", "from lightning.pytorch.cli import LightningCLI; LightningCLI()", *words, "--print_config"]
    config.write_text(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    written = yaml.safe_load(config.read_text())
    assert written["trainer"]["max_epochs"] is None and written["optimizer"] is None
    main(["fit", "-c", str(config), "--trainer.rounds", "2", "--trainer.local_epochs", "1"])
    [run] = (tmp_path / "runs").iterdir()
    assert len((run / "metrics.csv").read_text().splitlines()) == 3


def test_options_that_are_set_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str], command_line: None) -> None:
    config = tmp_path / "my.yaml"
    config.write_text("trainer: {max_epochs: null, max_steps: 5}\nlr_scheduler: null\n")
    with pytest.raises(SystemExit):
        main(["fit", "-c", "quickstart", "-c", str(config)])
    assert "trainer.max_steps belongs to lightning.Trainer: use rounds and local_steps" in capsys.readouterr().err
