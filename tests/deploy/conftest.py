"""Tests of deployments in this process."""

import pytest


@pytest.fixture(autouse=True)
def _from_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("PL_GLOBAL_SEED", "PL_SEED_WORKERS"):
        monkeypatch.setenv(name, "0")  # seed_everything sets them; monkeypatch restores them


@pytest.fixture
def quickly(monkeypatch: pytest.MonkeyPatch) -> None:
    """Messages that were refused are sent again after a moment."""
    monkeypatch.setattr(pytest.importorskip("flcog.deploy.clients"), "RETRY_SECONDS", 0.01)
