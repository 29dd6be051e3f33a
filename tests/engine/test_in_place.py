"""Hooks that change in place what they are given are refused: the change would reach the model, and executors would differ."""

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from harness import TinyData, train

import flcog
from flcog.method import Method, Personalisation

WEIGHT = "model.hidden.0.weight"


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


@pytest.mark.parametrize(("method", "what"), [
    (mine("init_server", shrink, lambda params: {}), f"init_server changed {WEIGHT} of the global model in place: return new"),
    (mine("init_client", lambda params, *_: shrink(params), lambda *_: {}), f"init_client changed {WEIGHT} of the global model"),
    (
        mine("server_step", lambda server, params, *_: shrink(params), lambda server, params, delta, *_: (delta, server)),
        f"server_step changed {WEIGHT} of the global model in place",
    ),
    (mine("evaluate_at", lambda _, params: shrink(params), lambda _, params: params), f"evaluate_at changed {WEIGHT} of the"),
    (
        mine("evaluate_at", lambda server, _: shrink(server), lambda _, params: params, **STATE),
        "evaluate_at changed its state at the server in place",
    ),
    (mine("broadcast", shrink, lambda server: server, **STATE), "broadcast changed its state at the server in place: return new"),
    (
        mine("personal", lambda params, _: shrink(params), lambda params, _: flcog.Personal(params)),
        f"personal changed {WEIGHT} of the global model in place",
    ),
    (
        mine("personal", lambda _, ctx: shrink(ctx.received.params), lambda params, _: flcog.Personal(params)),
        f"personal changed {WEIGHT} of the global model in place",
    ),
])  # fmt: skip
def test_hooks_outside_the_steps_leave_the_model_as_it_is(method: Method, what: str) -> None:
    with pytest.raises(ValueError, match="^" + re.escape(f"Mine.{what}")):
        train(method, rounds=1, local_steps=1, data=TinyData(client_test=0.25)).evaluate()


def test_tensors_of_the_inference_mode_have_no_counters() -> None:
    @dataclass(frozen=True)
    class Mine(Personalisation):
        @torch.inference_mode()
        def evaluate_at(self, server: Any, params: Any) -> Any:
            return {name: 2 * value for name, value in params.items()}

        def personal(self, params: Any, ctx: Any) -> flcog.Personal:
            return flcog.Personal(params)

    figures = train(Mine(), rounds=1, local_steps=1, data=TinyData(client_test=0.25)).evaluate()
    assert 0 < figures["test/personal_accuracy_mean"] < 1


KINDS: list[tuple[str, Callable[..., None], Callable[..., Any], str]] = [
    (
        "loss",
        lambda apply, params, *_: torch.no_grad()(shrink)(params),
        lambda apply, params, batch, task, ctx: 0 * task,
        "params",
    ),
    ("correct_gradient", lambda gradient, params, ctx: shrink(params), lambda gradient, *_: gradient, "params"),
    ("after_step", lambda apply, params, *_: shrink(params), lambda apply, params, before, batch, ctx: (params, {}), "params"),
    (
        "after_step",
        lambda apply, params, before, *_: shrink(before),
        lambda apply, params, before, batch, ctx: (params, {}),
        "before",
    ),
    ("finish_client", lambda delta, params, ctx: shrink(params), lambda delta, *_: flcog.Upload(delta, {}), "params"),
]


@pytest.mark.parametrize("executor", ["loop", "vmap"])
@pytest.mark.parametrize(("hook", "change", "result", "argument"), KINDS)
def test_a_clients_hooks_leave_its_model_as_it_is(
    executor: str, hook: str, change: Callable[..., None], result: Callable[..., Any], argument: str
) -> None:
    with pytest.raises(ValueError, match="^" + re.escape(f"Mine.{hook} changed {argument}['{WEIGHT}'] in place: return new")):
        train(mine(hook, change, result), executor=executor, rounds=1, local_steps=1)
