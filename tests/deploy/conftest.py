"""Tests of deployments in this process."""

import pytest


@pytest.fixture
def quickly(monkeypatch: pytest.MonkeyPatch) -> None:
    """Messages that were refused are sent again after a moment."""
    clients = pytest.importorskip("flcog.deploy.clients")
    monkeypatch.setattr(clients, "RETRY_SECONDS", 0.01)
    for name in ("PL_GLOBAL_SEED", "PL_SEED_WORKERS"):
        monkeypatch.setenv(name, "0")  # seed_everything sets them; monkeypatch restores them
