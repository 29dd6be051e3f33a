"""The machine's speed during a run: a fixed piece of work, measured between rounds."""

import math

import pytest

from flcog.core import speed
from flcog.core.speed import COLUMN, Calibration, comparable, speed_of


def test_it_is_measured_at_first_and_then_every_few_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    calibration = Calibration()
    assert calibration.column()[COLUMN] > 0 and calibration.column() == {}
    monkeypatch.setattr(speed, "EVERY", 0.0)
    assert COLUMN in calibration.column()


def test_a_runs_speed_is_the_mean_and_compared_by_its_ratio() -> None:
    assert speed_of([{COLUMN: 1.0}, {}, {COLUMN: 3.0}]) == 2.0 and math.isnan(speed_of([{}]))
    assert comparable(1.0, 1.2) and not comparable(1.3, 1.0)
    assert not comparable(1.0, math.nan) and not comparable(math.nan, 1.0), "an unknown speed is comparable to none"
