"""An argument out of range gives a message of one line, with the class, the argument, the allowed values and the given value."""

import math
from collections.abc import Callable
from dataclasses import fields, replace
from typing import Any

import pytest
from harness import train

from contracts.registry import CASES, FIRST
from flcog.callbacks import FedProx

pytestmark = pytest.mark.filterwarnings("error")


@pytest.mark.parametrize("name", FIRST.values())
def test_every_range_of_a_method_holds(name: str) -> None:
    method = CASES[name].method
    for field in fields(method):
        if "allowed" in field.metadata:
            with pytest.raises(ValueError, match=rf"^{type(method).__name__}: {field.name} must .*; got -inf\b.*$"):
                replace(method, **{field.name: -math.inf})


BAD_LISTS: list[tuple[Callable[[], Any], str]] = [
    (lambda: FedProx(mu=math.nan), "FedProx: mu must be at least 0; got nan"),
    (lambda: train(FedProx(), FedProx(mu=1.0)), "FedProx is listed 2 times in callbacks: keep one of them"),
]


@pytest.mark.parametrize(("make", "message"), BAD_LISTS, ids=[message.split(";")[0] for _, message in BAD_LISTS])
def test_bad_inputs_are_named_in_one_line(make: Callable[[], Any], message: str) -> None:
    with pytest.raises(ValueError) as error:
        make()
    assert str(error.value) == message
