"""The order of the calls of hooks, what they may return, and methods that are refused."""

import re
import textwrap
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from harness import TinyData, classifier, make_trainer, making, train

import flcog
from flcog import Exchange, Federation
from flcog.method import (
    HOOKS,
    OBSERVER_HOOKS,
    Callback,
    DataExchange,
    Method,
    Params,
    Upload,
    Workload,
)

RECORDED = [*HOOKS, "prepare_data", "plan", *(name for name in OBSERVER_HOOKS if name != "on_exception")]
"""All but ``personal``, which needs held-out data of the clients, and ``on_exception``, which needs a failure."""


class Base(Workload, DataExchange):
    def prepare_data(self, federation: Federation, rng: torch.Generator, workspace: Any) -> Exchange:
        return Exchange(federation)


def recording(seen: list[str]) -> list[Callback]:
    """A method and an observer that record the called hooks. The method keeps some state, so that each client is initialised only once."""

    def hook(name: str) -> Any:
        def fire(self: Any, *args: Any, **kwargs: Any) -> Any:
            seen.append(name)
            if name == "init_client":
                return {"kept": torch.zeros(1)}
            return torch.zeros(()) if name == "loss" else getattr(Base, name)(self, *args, **kwargs)

        return fire

    recorder = dataclass(frozen=True)(
        type("Recorder", (Base,), {name: hook(name) for name in RECORDED if name not in OBSERVER_HOOKS})
    )
    observer = type("Observer", (Callback,), {})
    for name in OBSERVER_HOOKS:
        setattr(observer, name, lambda self, *args, name=name: seen.append(name))
    return [recorder(), observer()]


Script = list["str | tuple[str, Script]"]


def documented_script(docstring: str) -> Script:
    """Parse the pseudocode into hooks and loops. A star marks a hook that is called once in a client's life."""
    lines = [line for line in textwrap.dedent(docstring.split("::", 1)[1].split("Args:")[0]).splitlines() if line.strip()]
    stack: list[tuple[int, Script]] = [(-1, [])]
    for line in lines:
        indent, text = len(line) - len(line.lstrip()), line.strip()
        while stack[-1][0] >= indent:
            stack.pop()
        word = re.split(r"\W", text, maxsplit=1)[0]
        if text.startswith("for each"):
            body: Script = []
            stack[-1][1].append((text, body))
            stack.append((indent, body))
        elif word in RECORDED:
            stack[-1][1].append(f"{word}*" if "once in its life" in text else word)
    return stack[0][1]


def play(script: Script, counts: dict[str, int], first_round: bool = True) -> list[str]:
    """The hooks that the pseudocode calls, with its loops unrolled."""
    fired: list[str] = []
    for entry in script:
        if isinstance(entry, tuple):
            repeats = next(count for key, count in counts.items() if entry[0].startswith(f"for each {key}"))
            for i in range(repeats):
                fired += play(entry[1], counts, i == 0 if entry[0].startswith("for each round") else first_round)
        elif first_round or not entry.endswith("*"):
            fired.append(entry.rstrip("*"))
    return fired


def test_fit_fires_what_its_docstring_says(tmp_path: Path) -> None:
    seen: list[str] = []
    trainer = make_trainer(tmp_path, *recording(seen), rounds=2, clients_per_round=2, local_steps=3, eval_every=1)
    trainer.fit(classifier(), TinyData(order=(0, 1)))
    script = documented_script(flcog.FederatedTrainer.fit.__doc__ or "")
    expected = play(script, {"round": 2, "client": 2, "local step": 3})
    assert set(expected) == set(RECORDED)
    assert seen == expected


def test_a_misspelt_hook_is_refused() -> None:
    with pytest.raises(
        TypeError, match=r"'smooth', which is no hook\. Hooks are: .*, evaluate_at; .* Helpers start with an underscore\."
    ):

        class Unknown(Method):
            def smooth(self, gradient: Any) -> Any:
                return gradient

    with pytest.raises(TypeError, match=r"'correct_gradients', which is no hook\. Did you mean 'correct_gradient'"):

        class Typo(Method):
            def correct_gradients(self, gradient: Any) -> Any:
                return gradient


WEIGHT, BIAS = "model.hidden.0.weight", "model.hidden.0.bias"


def thin(values: Params) -> Params:
    """Values that torch would broadcast to the shapes of the parameters."""
    return {name: value.sum(0) for name, value in values.items()}


THIN = f"returned [6] for {WEIGHT}, and must return [8, 6]"
WRONG: list[tuple[str, Callable[..., Any], str]] = [
    ("correct_gradient", lambda gradient, *_: thin(gradient), THIN),
    ("correct_gradient", lambda gradient, *_: {WEIGHT: gradient[WEIGHT]}, f"returned nothing for {BIAS}, and must return [8]"),
    ("wrap_gradient", lambda gradient, ctx: lambda *at: gradient(*at)._replace(values=thin(at[0])), THIN),
    ("after_step", lambda apply, params, before, batch, ctx: (thin(params), ctx.state), THIN),
    ("after_step", lambda apply, params, *_: params, "returned a dict, and must return a tuple of the parameters and its state"),
    ("start", lambda apply, params, ctx: params, "returned a dict, and must return a tuple of the parameters and its inputs"),
    (
        "server_step",
        lambda server, params, delta, *_: delta,
        "returned a dict, and must return a tuple of the change and its state",
    ),
    ("finish_client", lambda delta, *_: delta, "returned a dict, and must return an Upload"),
    ("loss", lambda *_: None, "returned nothing, and must return a tensor"),
    ("loss", lambda *_: torch.zeros(8, 2), "returned the shape [8, 2], and must return one number, such as a mean"),
    ("correct_gradient", lambda *_: None, "returned nothing, and must return a dict of the parameters"),
]


@pytest.mark.filterwarnings("error")  # vmap must not fall back to the loop first
@pytest.mark.parametrize("executor", ["loop", "vmap"])
@pytest.mark.parametrize(("hook", "result", "message"), WRONG)
def test_a_wrong_result_names_the_method_and_the_hook(executor: str, hook: str, result: Callable[..., Any], message: str) -> None:
    with pytest.raises(ValueError, match=f"Mine.{hook}.*{re.escape(message)}"):
        train(making(**{hook: result}), executor=executor, rounds=1, local_steps=1)


STATES: list[tuple[str, Callable[..., Any], str]] = [
    (
        "after_step",
        lambda apply, params, before, batch, ctx: (params, {"own": torch.zeros(6)}),
        "['own'], which had the shape [8, 6]",
    ),
    (
        "after_step",
        lambda apply, params, before, batch, ctx: (params, {}),
        "returned nothing for the state, which had the keys ['own']",
    ),
    (
        "finish_client",
        lambda delta, params, ctx: Upload(delta, ctx.state | {"onw": 1.0}),
        "the keys ['onw', 'own'] for the state",
    ),
]


@pytest.mark.parametrize("executor", ["loop", "vmap"])
@pytest.mark.parametrize(("hook", "result", "message"), STATES)
def test_a_state_keeps_its_keys_and_shapes(executor: str, hook: str, result: Callable[..., Any], message: str) -> None:
    first = {"init_client": lambda params, buffers, client: {"own": torch.zeros(8, 6)}}
    with pytest.raises(ValueError, match=f"^Mine.{hook} .*{re.escape(message)}"):
        train(making(**first, **{hook: result}), executor=executor, rounds=1, local_steps=1)


def shrunk(values: Params, result: Any) -> Any:
    """``result``, after the values were halved in place."""
    with torch.no_grad():
        for value in values.values():
            value.mul_(0.5)
    return result


IN_PLACE: list[tuple[str, Callable[..., Any]]] = [
    ("server_step", lambda server, params, delta, *_: shrunk(params, (delta, server))),
    ("loss", lambda apply, params, batch, task, ctx: shrunk(params, 0 * task)),
    ("correct_gradient", lambda gradient, params, ctx: shrunk(params, gradient)),
    ("after_step", lambda apply, params, *_: shrunk(params, (params, {}))),
    ("after_step", lambda apply, params, before, *_: shrunk(before, (params, {}))),
    ("finish_client", lambda delta, params, ctx: shrunk(params, Upload(delta, {}))),
]


@pytest.mark.parametrize("executor", ["loop", "vmap"])
@pytest.mark.parametrize(("hook", "result"), IN_PLACE)
def test_a_change_in_place_is_refused(executor: str, hook: str, result: Callable[..., Any]) -> None:
    """It would reach the model, and executors would differ."""
    with pytest.raises(ValueError, match=f"^Mine.{hook} changed a tensor that it was given in place"):
        train(making(**{hook: result}), executor=executor, rounds=1, local_steps=1)


def test_an_error_in_a_hook_names_it() -> None:
    with pytest.raises(AttributeError) as error:
        train(making(loss=lambda apply, *_: apply.losses), executor="loop", rounds=1, local_steps=1)
    assert "in Mine.loss" in error.value.__notes__


def test_evaluated_parameters_have_the_shapes_of_the_model() -> None:
    with pytest.raises(ValueError, match=re.escape(f"Mine.evaluate_at {THIN}")):
        train(making(evaluate_at=lambda server, params: thin(params)), rounds=1).evaluate()


@pytest.mark.parametrize("executor", ["loop", "vmap"])
def test_a_client_may_send_fewer_parameters(executor: str) -> None:
    """The server moves what clients send as it does without the method, and nothing else."""
    mine = making(finish_client=lambda delta, params, ctx: Upload({WEIGHT: delta[WEIGHT]}, ctx.state))
    plain, part = (train(*methods, executor=executor, rounds=1).params for methods in ((), (mine,)))
    changed = [name for name, value in classifier().named_parameters() if not torch.equal(part[name], value.double())]
    assert changed == [WEIGHT] and torch.equal(part[WEIGHT], plain[WEIGHT])
