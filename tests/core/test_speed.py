"""The machine's speed during a run: a fixed piece of work, measured between rounds."""

import math
from pathlib import Path

import pytest

from flcog.core.speed import CALIBRATION, EVERY, WAITING, Calibration, CoreWaiting, comparable, share_of_waiting, speed_of


def test_it_is_measured_at_first_and_then_every_few_seconds() -> None:
    calibration = Calibration()
    assert calibration.column()[CALIBRATION] > 0 and calibration.column() == {}
    calibration._last -= EVERY
    assert CALIBRATION in calibration.column()


def test_a_runs_speed_is_the_mean_and_compared_by_its_ratio() -> None:
    assert speed_of([{CALIBRATION: 1.0}, {}, {CALIBRATION: 3.0}]) == 2.0 and math.isnan(speed_of([{}]))
    assert comparable(1.0, 1.2) and not comparable(1.3, 1.0)
    assert not comparable(1.0, math.nan) and not comparable(math.nan, 1.0), "an unknown speed is comparable to none"


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
