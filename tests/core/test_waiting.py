"""The share of a run's time in which it waits for a core."""

from pathlib import Path

import pytest

from flcog.core.waiting import WAITING, CoreWaiting, share_of_waiting


def thread(folder: Path, name: str, computed: int, waited: int) -> None:
    (folder / name).mkdir(exist_ok=True)
    (folder / name / "schedstat").write_text(f"{computed} {waited} 7\n")


def test_it_is_measured_over_all_threads(tmp_path: Path) -> None:
    thread(tmp_path, "1", 100, 50)
    waiting = CoreWaiting(tmp_path)
    assert waiting.column() == {}, "nothing was computed"
    thread(tmp_path, "1", 300, 150)
    thread(tmp_path, "2", 100, 0)  # a thread that started later
    assert waiting.column() == {WAITING: 0.25}
    assert CoreWaiting(tmp_path / "none").column() == {}


def test_longer_rounds_weigh_more() -> None:
    rows = [{"time/round": 1.0, WAITING: 0.0}, {"time/round": 3.0, WAITING: 0.4}, {"time/round": 9.0}]
    assert share_of_waiting(rows) == pytest.approx(0.3) and share_of_waiting([{}]) == 0
