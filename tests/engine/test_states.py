"""The states of methods: what a client and the server may keep, which a resumed run must be able to read."""

import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from harness import Clusters, assert_close, fit, train

from flcog import FirstContact, Method, Personal, Upload

BIAS = "model.hidden.0.bias"
both = pytest.mark.parametrize("executor", ["loop", "vmap"])


def making(**hooks: Callable[..., Any]) -> Method:
    """A method with these hooks."""
    made: Method = dataclass(frozen=True)(type("Mine", (Method,), {name: kept(hook) for name, hook in hooks.items()}))()
    return made


def kept(hook: Callable[..., Any]) -> Callable[..., Any]:
    return lambda self, *arguments: hook(*arguments)


def counting(first: Any, **hooks: Any) -> Method:
    """A method for which a client's change of the model counts ``n`` times in its ``n``-th round. ``first`` is from ``init_client``."""

    def finish(delta: Any, params: Any, ctx: Any) -> Upload:
        n = ctx.state["n"] + 1
        return Upload({name: n * value for name, value in delta.items()}, {"n": n})

    return making(init_client=lambda *_: first, finish_client=finish, **hooks)


@both
def test_numbers_in_states_are_tensors_everywhere(executor: str, tmp_path: Path) -> None:
    options: dict[str, Any] = {"executor": executor, "clients_per_round": 3}
    straight = train(counting({"n": torch.tensor(0)}), rounds=3, **options)
    half = fit(tmp_path, counting({"n": 0}), rounds=2, **options)
    checkpoint = str(half.run_dir / "checkpoints/last.ckpt")
    assert_close(fit(tmp_path, counting({"n": 0}), rounds=3, ckpt_path=checkpoint, **options).state, straight.state, 0)
    introduced = counting(FirstContact({"n": 0}, 1.0), weights=lambda weights, messages, cohort: weights)
    assert_close(train(introduced, rounds=3, **options).state, straight.state, 0)


@both
@pytest.mark.parametrize(("hook", "value", "says"), [
    ("draw", None, "None, and must return a dict"),
    ("draw", {"noise": np.zeros(3)}, "a ndarray as draws['noise'], and must return tensors and numbers"),
    ("init_client", {"n": np.zeros(3)}, "a ndarray as state['n'], and must return tensors and numbers"),
    ("init_client", {"mode": "warm"}, "a str as state['mode'], and must return tensors and numbers"),
])  # fmt: skip
def test_a_client_keeps_tensors_and_numbers(executor: str, hook: str, value: Any, says: str) -> None:
    with pytest.raises(ValueError, match=re.escape(f"Mine.{hook} returned {says}")):
        train(making(**{hook: lambda *_: value}), executor=executor, rounds=1)


@both
@pytest.mark.parametrize(("first", "then", "says"), [
    ({"h": torch.tensor(0)}, {"h": torch.tensor(0.5)}, r"a tensor of float32 () as the state of client \d['h'], and init_client"),
    ({"h": torch.zeros(0)}, {"h": torch.zeros(1)}, r"a tensor of float32 (1,) as the state of client \d['h'], and init_client"),
    ({"h": 0.0}, {"h": 0.0, "more": 1.0}, r"{'h', 'more'} as the state of client \d, and init_client returned {'h'}"),
])  # fmt: skip
def test_a_clients_state_keeps_its_form(executor: str, first: Any, then: Any, says: str) -> None:
    mine = making(init_client=lambda *_: first, finish_client=lambda delta, *_: Upload(delta, then))
    pattern = re.escape(f"Mine.finish_client returned {says}").replace(r"\\d", r"\d")
    with pytest.raises(ValueError, match=pattern):
        train(mine, executor=executor, rounds=1)


def test_the_servers_state_keeps_its_form() -> None:
    def mine(first: Any, then: Any) -> Method:
        return making(init_server=lambda params: first, server_step=lambda server, params, delta, *_: (delta, then))

    with pytest.raises(
        ValueError, match=re.escape("Mine.server_step returned {'b'} as the state, and init_server returned {'a'}: keep")
    ):
        train(mine({"a": 0.0}, {"b": 0.0}), rounds=1)
    train(mine({"a": [], "b": 0.0}, {"a": [torch.zeros(3)], "b": torch.zeros(())}), rounds=1)
    for first, then, hook in (({"opt": Path}, {}, "init_server"), ({}, {"opt": Path}, "server_step")):
        with pytest.raises(
            ValueError, match=re.escape(f"Mine.{hook} returned a type in its state['opt'], which no checkpoint can")
        ):
            train(mine(first, then), rounds=1)


def test_a_number_may_become_a_tensor_without_axes(tmp_path: Path) -> None:
    def mine() -> Method:
        return making(
            init_server=lambda params: {"norm": 0.0},
            server_step=lambda s, params, delta, *_: (delta, {"norm": delta[BIAS].norm()}),
        )

    half = fit(tmp_path, mine(), rounds=1)
    resumed = fit(tmp_path, mine(), rounds=2, ckpt_path=str(half.run_dir / "checkpoints/last.ckpt"))
    assert_close(resumed.state, train(mine(), rounds=2).state, 0)


@pytest.mark.parametrize(("result", "says"), [
    (lambda params, ctx: Personal({BIAS: params[BIAS]}), "nothing for model.hidden.0.weight, and must return a tensor for every"),
    (lambda params, ctx: params, "a dict, and must return flcog.Personal(params)"),
    (lambda params, ctx: Personal(params | {BIAS: params[BIAS][None]}), f"{BIAS} with shape [1, 8], and the parameter has [8]"),
])  # fmt: skip
def test_a_personal_model_has_all_parameters(result: Callable[..., Any], says: str) -> None:
    trainer = train(making(personal=result), data=Clusters("opposed", client_test=0.3), rounds=1)
    with pytest.raises(ValueError, match=re.escape(f"Mine.personal returned {says}")):
        trainer.evaluate()
