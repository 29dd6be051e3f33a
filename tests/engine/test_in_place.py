"""Hooks that change in place what they are given are refused: the change would reach the model, and executors would differ."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from harness import TinyData, train

import flcog
from flcog.method import Method, Personalisation


def shrink(values: Any) -> None:
    for value in values.values():
        value.mul_(0.5)


def mine(hook: str, change: Callable[..., None], result: Callable[..., Any], **others: Callable[..., Any]) -> Method:
    """A method whose hook calls ``change`` and then returns ``result``, both of its arguments."""

    def call(self: Any, *arguments: Any) -> Any:
        change(*arguments)
        return result(*arguments)

    made: Method = dataclass(frozen=True)(
        type("Mine", (Personalisation,) if hook == "personal" else (Method,), {**others, hook: call})
    )()
    return made


STATE = {"init_server": lambda self, params: {"k": torch.ones(())}}


@pytest.mark.parametrize("method", [
    mine("init_server", shrink, lambda params: {}),
    mine("init_client", lambda params, *_: shrink(params), lambda *_: {}),
    mine("server_step", lambda server, params, *_: shrink(params), lambda server, params, delta, *_: (delta, server)),
    mine("evaluate_at", lambda _, params: shrink(params), lambda _, params: params),
    mine("evaluate_at", lambda server, _: shrink(server), lambda _, params: params, **STATE),
    mine("broadcast", shrink, lambda server: server, **STATE),
    mine("personal", lambda _, ctx: shrink(ctx.received.params), lambda params, _: flcog.Personal(params)),
])  # fmt: skip
def test_hooks_outside_the_steps_leave_the_model_as_it_is(method: Method) -> None:
    with pytest.raises(ValueError, match=r"^Mine\.\w+ changed a tensor that it was given in place: return new tensors"):
        train(method, rounds=1, local_steps=1, data=TinyData(client_test=0.25)).evaluate()


KINDS: list[tuple[str, Callable[..., None], Callable[..., Any]]] = [
    ("loss", lambda apply, params, *_: torch.no_grad()(shrink)(params), lambda apply, params, batch, task, ctx: 0 * task),
    ("correct_gradient", lambda gradient, params, ctx: shrink(params), lambda gradient, *_: gradient),
    ("after_step", lambda apply, params, *_: shrink(params), lambda apply, params, before, batch, ctx: (params, {})),
    ("after_step", lambda apply, params, before, *_: shrink(before), lambda apply, params, before, batch, ctx: (params, {})),
    ("finish_client", lambda delta, params, ctx: shrink(params), lambda delta, *_: flcog.Upload(delta, {})),
]


@pytest.mark.parametrize("executor", ["loop", "vmap"])
@pytest.mark.parametrize(("hook", "change", "result"), KINDS)
def test_a_clients_hooks_leave_its_model_as_it_is(
    executor: str, hook: str, change: Callable[..., None], result: Callable[..., Any]
) -> None:
    with pytest.raises(ValueError, match=f"^Mine.{hook} changed a tensor that it was given in place"):
        train(mine(hook, change, result), executor=executor, rounds=1, local_steps=1)
