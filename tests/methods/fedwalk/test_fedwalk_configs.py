"""The leash classes and learning rates of the paper, and the configs and tables that use them."""

import hashlib
import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from harness import ROOT, trainer_options

from flcog.callbacks.fedwalk.fedwalk import FedWalk
from flcog.callbacks.fedwalk.leash_pretraining import LeashPretraining
from flcog.commands.cli import main
from flcog.commands.compare.table import read_table
from flcog.datamodules import ImageFolders
from flcog.datamodules import leash_classes as classes
from flcog.schedules import Piecewise
from methods.fedwalk.leash_table import CIFAR10_TOP4

pytestmark = pytest.mark.filterwarnings("error")


CONFIGS = ROOT / "configs" / "methods"


PRINTED = {
    "cifar10_lh": "ea68b36de9bdadc3ac982410893096d8927b4f7ece5fd8eb43bce13d184576d1",
    "cifar10_mh": "d544d796997289e12f3f879690ecbb96200acbffc7e563e356dc6829cc1fba28",
    "cifar10_hh": "3cb2aa934554eecef722cd67be470b810bbb9717a7e2a450749fc09f5418d614",
    "cifar100_lh": "8952ec53b34f8678b3f21afb41d8f450b98a6cf8e1fcd444d688143dc4d185f1",
}
"""SHA-256 digests of the lists as the paper prints them, joined by commas."""


def test_the_papers_classes() -> None:
    for name, digest in PRINTED.items():
        ids = list(classes.LEASHES[name])  # type: ignore[index]
        if name == "cifar10_hh":
            assert ids[-1] == "n06785654"
            ids[-1] = "n0685654"  # as printed: a digit is missing
        assert hashlib.sha256(",".join(ids).encode()).hexdigest() == digest, name
    assert {name: len(set(ids)) for name, ids in classes.LEASHES.items()} == {
        "cifar10_lh": 20,
        "cifar10_mh": 20,
        "cifar10_hh": 20,
        "cifar100_lh": 40,
        "cifar10_tiny_imagenet": 20,
    }
    assert all(len(name) == 9 and name[0] == "n" and name[1:].isdigit() for ids in classes.LEASHES.values() for name in ids)
    assert set(classes.LEASHES["cifar10_lh"]) == {name for row in CIFAR10_TOP4.values() for name in row[:2]}
    assert classes.LEASHES["cifar10_mh"][:10] == classes.LEASHES["cifar10_lh"][:10]


@pytest.fixture
def configured(command_line: None) -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Lightning calls jsonargparse by a deprecated name.
        yield


RATES = Piecewise([1e-2, 1e-3, 1e-4, 1e-5], [34, 67, 100])
"""The paper's learning rates, eta = gamma. The paper starts the last one in round 100; the earlier boundaries are ours."""


LEASHED_ROWS = {
    ("fedwalk-leashes", "FedWalk LH"): ("cifar10_lh", Piecewise([0.0, 0.5, 1.0], [34, 67])),
    ("fedwalk-leashes", "FedWalk MH"): ("cifar10_mh", Piecewise([-1.0, -0.5, 0.0], [34, 67])),
    ("fedwalk-leashes", "FedWalk HH"): ("cifar10_hh", Piecewise([-1.3, -1.1], [50])),
    ("fedwalk-leashes", "pre-training LH"): ("cifar10_lh", RATES),
    ("fedwalk-leashes", "pre-training MH"): ("cifar10_mh", RATES),
    ("fedwalk-leashes", "pre-training HH"): ("cifar10_hh", RATES),
    ("fedwalk-cifar100", "FedWalk"): ("cifar100_lh", Piecewise([0.0, 0.5, 1.0], [34, 67])),
    ("fedwalk-cifar100", "FedNova + FedWalk"): ("cifar100_lh", Piecewise([0.0, 0.5, 1.0], [34, 67])),
    ("fedwalk-short", "FedWalk"): ("cifar10_tiny_imagenet", Piecewise([0.0, 0.5, 1.0], [67, 134])),
    ("fedwalk-short", "pre-training"): ("cifar10_tiny_imagenet", 0.05),
}
"""For each row of our tables: the leash's classes, and tau or, for pre-training, the learning rate.

The values of tau are the paper's (section 5.1); the rounds at which they change are ours.
"""


@pytest.mark.usefixtures("configured")
@pytest.mark.parametrize(("table", "row"), LEASHED_ROWS)
def test_tables_make_their_leashes(table: str, row: str) -> None:
    arm = read_table(CONFIGS.parent / "tables" / f"{table}.yaml").rows[row]
    arguments = [f"--{name}={value}" for name, value in arm.arguments.items()]
    options = trainer_options(*(f"--config={path}" for path in arm.configs), *arguments)
    method, (names, schedule) = options.callbacks[-1], LEASHED_ROWS[table, row]
    assert isinstance(method.leash, ImageFolders) and method.leash.batch_size == 64
    assert method.leash.class_names == classes.LEASHES[names]
    if isinstance(method, FedWalk):
        assert "FedWalk" in row and method.tau == schedule and method.lr is None and method.num_steps == 1
    else:
        assert (method.num_steps, method.lr) == (300 if table == "fedwalk-leashes" else 200, schedule)
        assert isinstance(method, LeashPretraining) and "pre-training" in row


def test_the_study_has_the_papers_rates() -> None:
    model = yaml.safe_load((CONFIGS.parent / "studies" / "fedwalk.yaml").read_text())["model"]["init_args"]
    assert model["optimizer"]["init_args"] == {"lr": 0.01, "momentum": 0.0, "weight_decay": 0.0}
    schedule = model["lr_schedule"]["init_args"]
    assert [0.01 * value for value in schedule["values"]] == pytest.approx(RATES.values)
    assert schedule["boundaries"] == RATES.boundaries


@pytest.mark.usefixtures("configured")
def test_a_command_line_takes_another_leash() -> None:
    config = [f"--config={CONFIGS / 'fedwalk-pretraining-imagenet.yaml'}", "--trainer.callbacks.leash.classes"]
    for name, expected in (("cifar10_hh", classes.LEASHES["cifar10_hh"]), ("[cat, dog]", ("cat", "dog"))):
        (method,) = trainer_options(*config, name).callbacks
        assert method.leash.class_names == expected


@pytest.mark.usefixtures("configured")
@pytest.mark.parametrize("name", ["fedwalk", "fedwalk-pretraining"])
@pytest.mark.slow
def test_configs_run_with_the_quickstart(name: str, tmp_path: Path) -> None:
    options = {"rounds": 1, "local_steps": 1, "logger": "false", "default_root_dir": tmp_path}
    arguments = ["fit", "-c", str(CONFIGS.parent / "quickstart.yaml"), "-c", str(CONFIGS / f"{name}.yaml")]
    main([*arguments, "--seed_everything=5", *(f"--trainer.{key}={value}" for key, value in options.items())])
    (table,) = tmp_path.rglob("metrics.csv")
    assert ("fedwalk/llr" in table.read_text()) == (name == "fedwalk")
