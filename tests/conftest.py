"""What every test gets: one thread, a fixed seed, the default precision, and nothing left behind in the repository."""

import atexit
import functools
import gc
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
LEAVINGS = ("runs", "wandb", "checkpoints", "lightning_logs", "data", "metrics.csv")
"""What a run writes to the working directory if nobody tells it where."""


@pytest.fixture(autouse=True, scope="session")
def _packages_are_asked_once() -> Iterator[None]:
    """Every Fabric reads the metadata of all installed packages, which may offer callbacks: a third of what a tiny run takes."""
    from lightning.fabric import fabric

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fabric, "_load_external_callbacks", functools.cache(fabric._load_external_callbacks))
        yield


@pytest.fixture(autouse=True, scope="session")
def _git_is_asked_once() -> Iterator[None]:
    """Every run with a directory asks for the commit of its working directory and of flcog, by four programs."""
    from flcog.run import directory

    commit_of = functools.cache(directory.git_commit)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(directory, "git_commit", lambda: commit_of(Path.cwd()))
        patch.setattr(directory, "clone_commit", functools.cache(directory.clone_commit))
        yield


@pytest.fixture(autouse=True, scope="session")
def _nothing_waits_for_the_disk() -> Iterator[None]:
    """No test cuts the power. Tests of the order of writing replace ``os.fsync`` themselves."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda descriptor: None)
        yield


@pytest.fixture(autouse=True, scope="session")
def _seeds_are_for_devices_that_exist() -> Iterator[None]:
    """Without a GPU, ``torch.manual_seed`` notes the whole stack of calls for the time when there is one."""
    import torch

    with pytest.MonkeyPatch.context() as patch:
        if not torch.cuda.is_available():
            patch.setattr(torch.cuda, "manual_seed_all", lambda seed: None)
        yield


@pytest.fixture(autouse=True)
def _same_start() -> Iterator[None]:
    import torch

    torch.manual_seed(0)
    precision = torch.get_default_dtype()
    yield
    torch.set_default_dtype(precision)
    torch.set_num_threads(1)


@pytest.fixture
def command_line(monkeypatch: pytest.MonkeyPatch) -> None:
    """For tests that call ``flcog.commands.cli.main``."""
    monkeypatch.setattr("sys.argv", ["flcog"])  # LightningCLI warns of arguments given twice
    monkeypatch.setattr("sys.path", sys.path.copy())  # the working directory is added
    for name in ("PL_GLOBAL_SEED", "PL_SEED_WORKERS"):
        monkeypatch.setenv(name, "0")  # seed_everything leaves them set


@pytest.fixture(autouse=True)
def _nothing_left_behind() -> Iterator[None]:
    before, environment = {name for name in LEAVINGS if (ROOT / name).exists()}, set(os.environ)
    yield
    left = {name for name in LEAVINGS if (ROOT / name).exists()} - before
    assert not left, f"the test left {sorted(left)} in {ROOT}: give it tmp_path"
    leaked = {name for name in set(os.environ) - environment if not name.startswith(("PYTEST_", "KMP_", "TORCH", "_TORCH"))}
    assert not leaked, f"the test left {sorted(leaked)} in the environment: use monkeypatch.setenv"


def pytest_configure(config: pytest.Config) -> None:
    if getattr(config.option, "numprocesses", None) and not hasattr(config, "workerinput"):
        return  # pytest-xdist's controller runs no test, and its workers start only after this
    import fake_device
    import torch
    from harness import heed_signals

    torch.set_num_threads(1)
    heed_signals()
    if fake_device.IS_POSSIBLE:
        fake_device.register()


@pytest.hookimpl(trylast=True)
def pytest_collection_finish() -> None:
    """Exclude the imported modules from garbage collections, which would take a tenth of the time of all tests."""
    gc.collect()
    gc.freeze()
    atexit.register(gc.unfreeze)  # libraries report objects that are left at the end
