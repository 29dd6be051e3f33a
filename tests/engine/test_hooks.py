"""The order of the calls of hooks, and methods that are refused."""

import re
import textwrap
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from harness import TinyData, classifier, make_trainer

import flcog
from flcog.method import HOOKS, OBSERVER_HOOKS, Callback, Method

NOT_RECORDED = {"personal", "on_exception"}  # personal needs held-out data of the clients, and on_exception needs a failure


def recording(seen: list[str]) -> list[Callback]:
    """A method and an observer that record the called hooks. The method keeps some state, so that each client is initialised only once."""

    def hook(name: str) -> Any:
        def fire(self: Any, *args: Any, **kwargs: Any) -> Any:
            seen.append(name)
            if name == "init_client":
                return {"kept": torch.zeros(1)}
            return torch.zeros(()) if name == "loss" else getattr(Method, name)(self, *args, **kwargs)

        return fire

    recorder = dataclass(frozen=True)(
        type("Recorder", (Method,), {name: hook(name) for name in HOOKS if name not in NOT_RECORDED})
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
        elif word in {*HOOKS, *OBSERVER_HOOKS} - NOT_RECORDED:
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
    assert set(expected) == {*HOOKS, *OBSERVER_HOOKS} - NOT_RECORDED
    assert seen == expected


def test_a_misspelt_hook_is_refused() -> None:
    with pytest.raises(TypeError, match="'correct_gradients', which is no hook; did you mean 'correct_gradient'"):

        class Typo(Method):
            def correct_gradients(self, gradient: Any) -> Any:
                return gradient


def test_methods_that_cannot_be_folded_are_refused() -> None:
    @dataclass(frozen=True)
    class One(Method):
        def personal(self, params: Any, ctx: Any) -> Any:
            return params

    @dataclass(frozen=True)
    class Two(One):
        pass

    options: dict[str, Any] = {"rounds": 1, "local_steps": 1, "logger": False}
    with pytest.raises(ValueError, match="One is listed 2 times"):
        flcog.FederatedTrainer(callbacks=[One(), One()], **options)
    with pytest.raises(ValueError, match="One and Two both define 'personal'"):
        flcog.FederatedTrainer(callbacks=[One(), Two()], **options)
