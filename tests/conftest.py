"""Settings of every test: one thread, a fixed seed, the default precision, and no files left behind in the repository."""

import atexit
import functools
import gc
import importlib.metadata
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent


@pytest.fixture(autouse=True, scope="session")
def _packages_are_asked_once() -> Iterator[None]:
    """Search the installed packages for callbacks and versions once. Every run would do so, in a third of the time of a tiny one."""
    from lightning.fabric.utilities import registry

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(registry, "entry_points", functools.cache(registry.entry_points))
        patch.setattr(importlib.metadata, "version", functools.cache(importlib.metadata.version))
        yield


@pytest.fixture(autouse=True, scope="session")
def _git_is_asked_once() -> Iterator[None]:
    """Read the commits of the working directory and of flcog once. Every run with a directory would start four programs for them."""
    from flcog.run import directory

    commit_of = functools.cache(directory.git_commit)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(directory, "git_commit", lambda folder=None: commit_of(folder or Path.cwd()))
        patch.setattr(directory, "clone_commit", functools.cache(directory.clone_commit))
        yield


@pytest.fixture(autouse=True, scope="session")
def _nothing_waits_for_the_disk() -> Iterator[None]:
    """Skip ``os.fsync``, because no test cuts the power. Tests of the order of writes replace it themselves."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda descriptor: None)
        yield


@pytest.fixture(autouse=True, scope="session")
def _seeds_are_for_devices_that_exist() -> Iterator[None]:
    """Without a GPU, do not seed GPUs: ``torch.manual_seed`` would record the whole call stack each time, for a GPU that starts later."""
    import torch

    with pytest.MonkeyPatch.context() as patch:
        if not torch.cuda.is_available():
            patch.setattr(torch.cuda, "manual_seed_all", lambda seed: None)
        yield


@pytest.fixture(autouse=True, scope="session")
def _lightning_makes_leaves_without_a_warning() -> Iterator[None]:
    """Lightning 2.6 asks newer torch for a class by its old name. flcog ignores the warning, and tests of warnings must not see it."""
    from lightning.pytorch.utilities import _pytree
    from torch.utils import _pytree as torchs

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_pytree, "LeafSpec", getattr(torchs, "treespec_leaf", torchs.LeafSpec))
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
    """Prepare ``sys.argv``, ``sys.path`` and the environment for tests that call ``flcog.commands.cli.main``."""
    monkeypatch.setattr("sys.argv", ["flcog"])  # LightningCLI warns if sys.argv has arguments too
    monkeypatch.setattr("sys.path", sys.path.copy())  # main adds the working directory
    for name in ("PL_GLOBAL_SEED", "PL_SEED_WORKERS"):
        monkeypatch.setenv(name, "0")  # seed_everything sets them


def _in_the_repository() -> set[str]:
    """The files and folders at the repository's root, but not those of tools, such as ``.coverage``."""
    return {name for name in os.listdir(ROOT) if not name.startswith(".") and name != "__pycache__"}


@pytest.fixture(autouse=True)
def _nothing_left_behind() -> Iterator[None]:
    before, environment = _in_the_repository(), set(os.environ)
    yield
    left = _in_the_repository() - before
    assert not left, f"the test left {sorted(left)} in {ROOT}: give it tmp_path"
    leaked = {name for name in set(os.environ) - environment if not name.startswith(("PYTEST_", "KMP_", "TORCH", "_TORCH"))}
    assert not leaked, f"the test left {sorted(leaked)} in the environment: use monkeypatch.setenv"


def pytest_configure(config: pytest.Config) -> None:
    if getattr(config.option, "numprocesses", None) and not hasattr(config, "workerinput"):
        return  # pytest-xdist's controller runs no tests, and the imports below would delay its workers
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
    atexit.register(gc.unfreeze)  # some libraries report objects that still exist at exit
