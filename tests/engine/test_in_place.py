"""Hooks that change in place what they are given are refused: the change would reach the model, and executors would differ."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from harness import train

import flcog
from flcog.method import Method


def shrink(values: Any) -> None:
    for value in values.values():
        value.mul_(0.5)


def mine(hook: str, change: Callable[..., None], result: Callable[..., Any]) -> Method:
    """A method whose hook calls ``change`` and then returns ``result``, both of its arguments."""

    def call(self: Any, *arguments: Any) -> Any:
        change(*arguments)
        return result(*arguments)

    made: Method = dataclass(frozen=True)(type("Mine", (Method,), {hook: call}))()
    return made


KINDS: list[tuple[str, Callable[..., None], Callable[..., Any]]] = [
    ("server_step", lambda server, params, *_: shrink(params), lambda server, params, delta, *_: (delta, server)),
    ("loss", lambda apply, params, *_: torch.no_grad()(shrink)(params), lambda apply, params, batch, task, ctx: 0 * task),
    ("correct_gradient", lambda gradient, params, ctx: shrink(params), lambda gradient, *_: gradient),
    ("after_step", lambda apply, params, *_: shrink(params), lambda apply, params, before, batch, ctx: (params, {})),
    ("after_step", lambda apply, params, before, *_: shrink(before), lambda apply, params, before, batch, ctx: (params, {})),
    ("finish_client", lambda delta, params, ctx: shrink(params), lambda delta, *_: flcog.Upload(delta, {})),
]


@pytest.mark.parametrize("executor", ["loop", "vmap"])
@pytest.mark.parametrize(("hook", "change", "result"), KINDS)
def test_hooks_leave_the_model_as_it_is(
    executor: str, hook: str, change: Callable[..., None], result: Callable[..., Any]
) -> None:
    with pytest.raises(ValueError, match=f"^Mine.{hook} changed a tensor that it was given in place"):
        train(mine(hook, change, result), executor=executor, rounds=1, local_steps=1)
