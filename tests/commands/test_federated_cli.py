"""FederatedCLI in a user's own script, with the script's classes, LightningCLI's hooks, defaults and links."""

import re
import sys
from pathlib import Path
from typing import Any

import lightning as L
import pytest
import torch
import yaml
from lightning.pytorch.cli import LightningArgumentParser, SaveConfigCallback
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, TensorDataset

import flcog
from flcog.callbacks import FedProx

pytestmark = pytest.mark.usefixtures("command_line")


class Lit(L.LightningModule):
    def __init__(self, width: int = 3, lr: float = 0.1) -> None:
        super().__init__()
        self.layer, self.lr = nn.Linear(width, 2), lr

    def training_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> Tensor:
        return nn.functional.cross_entropy(self.layer(batch[0]), batch[1])

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), self.lr)


class Rows(L.LightningDataModule):
    def __init__(self, width: int = 3, count: int = 40) -> None:
        super().__init__()
        self.rows = rows(width, count)

    def train_dataloader(self) -> DataLoader[Any]:
        return DataLoader(self.rows, batch_size=4)


def rows(width: int = 3, count: int = 40) -> TensorDataset:
    inputs = torch.randn(count, width, generator=torch.Generator().manual_seed(0))
    return TensorDataset(inputs, (inputs[:, 0] > 0).long())


class ListSet(Dataset[Any]):
    """A map-style data set whose constructor takes plain options."""

    def __init__(self, count: int = 40) -> None:
        self.rows = rows(count=count)

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> Any:
        return self.rows[index]


class Wrapper(Lit):
    """A model that passes keyword arguments to another package."""

    takes_keywords = "further"

    def __init__(self, width: int = 3, further: dict[str, Any] | None = None, **keywords: Any) -> None:
        super().__init__(width)
        self.given = {**(further or {}), **keywords}


def options(root: Path, *more: str) -> list[str]:
    short = {"rounds": 1, "local_steps": 1, "logger": "false", "default_root_dir": root, "eval_every": 0}
    return [word for name, value in short.items() for word in (f"--trainer.{name}", str(value))] + list(more)


@pytest.mark.slow
def test_a_script_with_its_own_classes(tmp_path: Path) -> None:
    """The script has defaults, a link, a callback at a fixed place and LightningCLI's hooks."""
    called: list[str] = []

    class CLI(flcog.FederatedCLI):
        def add_arguments_to_parser(self, parser: LightningArgumentParser) -> None:
            parser.link_arguments("data.width", "model.width")
            parser.add_lightning_class_args(FedProx, "prox")  # type: ignore[arg-type]

        def before_fit(self) -> None:
            called.append("before")

        def after_fit(self) -> None:
            called.append("after")

    words = ["fit", *options(tmp_path), "--data.width", "5", "--prox.mu", "0.5", "--model.lr", "0.25"]
    cli = CLI(Lit, Rows, trainer_defaults={"clients_per_round": 0.5, "callbacks": flcog.callbacks.SCAFFOLD()}, args=words)
    assert called == ["before", "after"]
    assert isinstance(cli.model, Lit) and cli.model.layer.in_features == 5 and cli.model.lr == 0.25
    assert [repr(method).split("(")[0] for method in cli.trainer.methods] == ["FedProx", "SCAFFOLD"]
    assert cli.trainer.methods[0].mu == 0.5  # type: ignore[attr-defined]
    assert cli.trainer.settings.clients_per_round == 0.5 and len(cli.trainer.history) == 1
    run: Any = cli.trainer.run_dir
    assert yaml.safe_load((run / "config.yaml").read_text())["model"] == {"width": 5, "lr": 0.25}
    assert Lit.load_from_checkpoint(run / "checkpoints" / "last.ckpt").lr == 0.25


def test_epochs_are_rounds(tmp_path: Path) -> None:
    """In a script's defaults, on the command line, and in a config that LightningCLI has written; the last of them counts."""
    (tmp_path / "config.yaml").write_text(
        "trainer: {max_epochs: 4, check_val_every_n_epoch: 2, max_time: null}\noptimizer: null\n"
    )
    given = {"": 3, f"--config={tmp_path}/config.yaml": 4, "--trainer.max_epochs=5": 5}
    for word, rounds in given.items():
        cli = flcog.FederatedCLI(Lit, Rows, trainer_defaults={"max_epochs": 3}, args=[word] if word else [], run=False)
        assert cli.trainer.settings.rounds == rounds


def test_validate_asks_for_no_local_work(tmp_path: Path) -> None:
    class Validated(Lit):
        def validation_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> None:
            self.log("val_loss", self.training_step(batch, batch_idx))

    class WithVal(Rows):
        def val_dataloader(self) -> DataLoader[Any]:
            return DataLoader(self.rows, batch_size=4)

    words = ["validate", "--trainer.logger=false", "--trainer.accelerator=cpu", f"--trainer.default_root_dir={tmp_path}"]
    assert "val_loss" in flcog.FederatedCLI(Validated, WithVal, args=words).trainer.callback_metrics


def test_classes_of_the_users_choice(tmp_path: Path) -> None:
    """Plain Lightning classes and data sets are given by their class paths, without a verb."""
    words = [*options(tmp_path), "--model", f"{__name__}.Lit", "--data", f"{__name__}.ListSet", "--data.count", "20"]
    cli = flcog.FederatedCLI(args=words, run=False)
    assert isinstance(cli.datamodule, ListSet) and cli.trainer.history == []
    cli.trainer.fit(cli.model, cli.datamodule)
    assert cli.trainer.run.federation.num_clients == 10 and len(cli.datamodule) == 20


@pytest.mark.slow
def test_the_command_takes_lightnings_data_modules_and_data_sets(tmp_path: Path) -> None:
    from flcog.commands.cli import main

    for data in ("Rows", "ListSet"):
        words = options(tmp_path / data, "--model", f"{__name__}.Lit", "--data", f"{__name__}.{data}")
        main(["fit", *words])
        assert list((tmp_path / data).rglob("metrics.csv"))
    nested = ["--data", "TorchDataset", "--data.train", f"{__name__}.ListSet", "--data.num_clients", "3"]
    main(["fit", *options(tmp_path / "nested", "--model", f"{__name__}.Lit", *nested)])


def test_a_callback_of_lightnings_by_its_path(tmp_path: Path) -> None:
    """A name alone means flcog's class."""
    path = ["--trainer.callbacks+=lightning.pytorch.callbacks.EarlyStopping", "--trainer.callbacks.monitor", "train/loss"]
    words = [*options(tmp_path), *path, "--trainer.callbacks+=EarlyStopping"]
    cli = flcog.FederatedCLI(Lit, Rows, args=words, run=False)
    by_path, named = (each for each in cli.config_init["trainer"]["callbacks"])
    assert isinstance(named, flcog.callbacks.EarlyStopping) and isinstance(by_path, L.pytorch.callbacks.EarlyStopping)


def test_keywords_of_another_package_stand_beside_a_models_own(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    init = {"width": 3, "further": {"drop": 0.1}, "img_size": [8, 8]}
    (tmp_path / "model.yaml").write_text(yaml.safe_dump({"model": {"class_path": f"{__name__}.Wrapper", "init_args": init}}))
    words = [*options(tmp_path), "--config", str(tmp_path / "model.yaml"), "--data", f"{__name__}.ListSet"]
    cli = flcog.FederatedCLI(args=[*words, "--model.depth", "2"], run=False)
    assert cli.model.given == {"drop": 0.1, "img_size": [8, 8], "depth": 2}  # type: ignore[union-attr]
    with pytest.raises(SystemExit):
        flcog.FederatedCLI(args=[*words, "--model.widht", "4"], run=False)
    assert "Did you mean 'width'?" in capsys.readouterr().err


def test_an_optimizer_from_the_command_line(tmp_path: Path) -> None:
    words = ["fit", *options(tmp_path), "--optimizer", "Adam", "--optimizer.lr", "0.5"]
    with pytest.warns(UserWarning, match="will be overridden"):
        cli = flcog.FederatedCLI(Lit, Rows, args=words)
    assert isinstance(cli.trainer.run.engine.optimizer, torch.optim.Adam)  # type: ignore[attr-defined]


def test_a_seed_that_is_drawn_is_the_trainers(tmp_path: Path) -> None:
    cli = flcog.FederatedCLI(Lit, Rows, seed_everything_default=True, args=options(tmp_path), run=False)
    assert cli.trainer.settings.seed == cli.config["seed_everything"] != True  # noqa: E712 - the option's own value


def test_a_script_that_calls_the_verbs_itself(tmp_path: Path) -> None:
    sys.argv[:] = ["main.py"]
    cli = flcog.FederatedCLI(Lit, Rows, args=options(tmp_path), run=False)
    cli.trainer.fit(cli.model, cli.datamodule)
    advice = cli.trainer.run.next_command("test", cli.trainer.run.directory)
    assert re.fullmatch(r"trainer.test\(model, datamodule, ckpt_path='.*'\)", advice)


def test_a_config_saver_of_the_users(tmp_path: Path) -> None:
    class Saver(SaveConfigCallback):
        def save_config(self, trainer: Any, pl_module: Any, stage: str) -> None:
            (tmp_path / "saved.yaml").write_text(self.parser.dump(self.config))

    flcog.FederatedCLI(Lit, Rows, save_config_callback=Saver, args=["fit", *options(tmp_path)])
    assert yaml.safe_load((tmp_path / "saved.yaml").read_text())["model"]["width"] == 3


@pytest.mark.slow
def test_a_config_file_of_the_users_name(tmp_path: Path) -> None:
    """``save_config_kwargs`` applies. A resumed run replaces the file and, without ``overwrite``, keeps a copy of the earlier one."""
    (tmp_path / "data.yaml").write_text("width: 3\n")
    for overwrite in (False, True):
        root, kept = tmp_path / str(overwrite), ["own-1.yaml"] * (not overwrite)
        kwargs = {"config_filename": "own.yaml", "multifile": True, "overwrite": overwrite}
        words = ["fit", *options(root), "--data", str(tmp_path / "data.yaml"), "--ckpt_path", "auto", "--trainer.rounds"]
        flcog.FederatedCLI(Lit, Rows, save_config_kwargs=kwargs, args=[*words, "1"])
        cli = flcog.FederatedCLI(Lit, Rows, save_config_kwargs=kwargs, args=[*words, "2"])
        run: Any = cli.trainer.run_dir
        saved = yaml.safe_load((run / "own.yaml").read_text())
        assert saved["trainer"]["rounds"] == 2 and saved["data"] == "data.yaml" and (run / "data.yaml").is_file()
        assert sorted(path.name for path in run.glob("own*")) == [*kept, "own.yaml"]
        flcog.FederatedCLI(Lit, Rows, args=["fit", "--config", str(run / "own.yaml")])
