"""The range checks that every method, model and data set shares."""

import re
from collections.abc import Callable
from types import SimpleNamespace

import pytest

from flcog.callbacks import EarlyStopping, GeneratedImages, GenerationTime
from flcog.core.checks import all_at_least, at_least, one_of, positive_and_finite, within
from flcog.datamodules import Quadratics
from flcog.schedules import Cosine

OWNER = SimpleNamespace(name="Method", low=-1.0, word="some")
NAN = float("nan")


@pytest.mark.parametrize(("interval", "inside", "outside"), [
    ("[0, 1)", (0, 0.999), (-1e-9, 1, NAN)),
    ("(0, 1]", (1e-9, 1), (0, 1.001, NAN)),
    ("(0, inf)", (1e-9, 1e300), (0, float("inf"), NAN)),
])  # fmt: skip
def test_intervals_are_read_as_they_are_written(interval: str, inside: tuple[float, ...], outside: tuple[float, ...]) -> None:
    for value in inside:
        within(None, interval, share=value)
    for value in outside:
        with pytest.raises(ValueError) as error:
            within(OWNER, interval, share=value)
        assert str(error.value) == f"Method: share must lie in {interval}; got {value}"


@pytest.mark.parametrize(
    ("check", "message"),
    [
        (lambda: at_least(OWNER, 0, "low"), "Method: low must be at least 0; got -1.0"),
        (lambda: at_least(None, 1, count=NAN, hint="count from 1"), "count must be at least 1; got nan: count from 1"),
        (lambda: all_at_least(None, 0, steps=()), "steps must be one or more numbers of at least 0; got ()"),
        (lambda: one_of(OWNER, ("this", "that"), "word"), "Method: word must be this or that; got 'some'"),
        (lambda: positive_and_finite(None, beta=float("inf")), "beta must be positive and finite; got inf"),
        (lambda: EarlyStopping(patience=0), "EarlyStopping: patience must be at least 1; got 0"),
        (lambda: GeneratedImages(steps=()), "GeneratedImages: steps must be one or more numbers of at least 0; got ()"),
        (lambda: GenerationTime(repeats=0), "GenerationTime: repeats must be at least 1; got 0"),
        (lambda: Quadratics(sigma=NAN), "Quadratics: sigma must be at least 0; got nan"),
        (lambda: Cosine(rounds=5, floor=NAN), "Cosine: floor must lie in [0, 1]; got nan"),
    ],
)
def test_refusals_name_owner_setting_range_and_value(check: Callable[[], object], message: str) -> None:
    with pytest.raises(ValueError) as error:
        check()
    assert str(error.value) == message


def test_null_stands_for_a_default() -> None:
    at_least(None, 1, count=None)
    all_at_least(None, 1, widths=None)
    within(None, "(0, 1)", share=None)


def test_a_value_of_another_type_does_not_pass() -> None:
    """Python's own error about the comparison would name no argument."""
    for check in (lambda **value: at_least(OWNER, 0, **value), lambda **value: within(OWNER, "[0, 1]", **value)):
        for value, got in (("a", "'a'"), ([1], "[1]")):
            with pytest.raises(ValueError, match=rf"^Method: share must .*; got {re.escape(got)}$"):
                check(share=value)
