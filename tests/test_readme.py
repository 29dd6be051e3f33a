"""The examples and commands in the README and in the pages under docs/ work as they are shown."""

import contextlib
import copy
import functools
import inspect
import io
import itertools
import re
import shlex
import sys
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing import Pipe
from pathlib import Path
from threading import Thread
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from harness import ROOT

import flcog
import flcog.datamodules
from flcog.commands import shipped_configs
from flcog.commands.cli import main
from flcog.commands.methods import first_paragraph
from flcog.core.text import markdown
from flcog.datamodules import Digits
from flcog.server.round import advance
from flcog.wire.envelope import Envelope, map_fields

README = (ROOT / "README.md").read_text()
PAGES = {path.stem: path.read_text() for path in (ROOT / "docs").glob("*.md")}


def blocks(text: str) -> list[str]:
    return re.findall(r"```python\n(.*?)```", text, re.S)


def execute(block: str) -> dict[str, Any]:
    namespace: dict[str, Any] = {"__name__": "readme"}
    exec(compile(block, "README.md", "exec"), namespace)
    return namespace


def test_the_python_example(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("WANDB_MODE", "disabled")
    for name in ("PL_GLOBAL_SEED", "PL_SEED_WORKERS"):
        monkeypatch.setenv(name, "0")  # seed_everything sets them
    history = execute(blocks(README)[0].replace("local_steps=20", "local_steps=2"))["trainer"].history
    assert [row["round"] for row in history] == [1, 2, 3, 4, 5] and "test/accuracy" in history[-1]


METHODS = {
    re.findall(r"class (\w+)\((?:flcog\.|Personalisation|DataExchange|Cutoff)", block)[-1]: block
    for text in (README, *(PAGES[name] for name in ("your-method", "robustness", "selection", "simulated-time")))
    for block in blocks(text)
    if "@dataclass(frozen=True)" in block
}
"""The examples that define methods, by the methods' names."""


@pytest.mark.parametrize("name", METHODS)
def test_a_method_of_ones_own(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "readme", type(sys)("readme"))  # dataclasses look up their module
    method = execute(METHODS[name])[name]

    def params(executor: Any, *callbacks: Any) -> Any:
        trainer = flcog.FederatedTrainer(
            rounds=2, local_steps=2, executor=executor, callbacks=list(callbacks), logger=False, default_root_dir=str(tmp_path)
        )
        torch.manual_seed(0)
        trainer.prepare(flcog.Classifier(flcog.models.MLP(784, (8,), 10)), Digits(num_clients=4))
        trainer.train_round()
        trainer.train_round()
        return trainer.run.params["model.head.weight"]

    alone, vmapped, without = params("loop", method()), params("vmap", method()), params("loop")
    assert (alone - vmapped).abs().max() < 1e-6
    assert (alone - without).abs().max() > 1e-6 or name in ("NotTwice", "ShareMean"), "these two change no number of this run"


@pytest.mark.parametrize(
    "block",
    [blocks(README)[2], *blocks(PAGES["your-data"]), *blocks(PAGES["scaling"])[2:]],
    ids=lambda block: block.splitlines()[2],
)
@pytest.mark.slow
def test_data_of_ones_own(block: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("WANDB_MODE", "disabled")
    trainer = execute(block)["trainer"]
    assert len(trainer.history) == trainer.settings.rounds and trainer.run.federation.num_clients > 1


def test_clients_in_other_processes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The two programs of docs/scaling.md train the same as one process. The hosts' program runs in a thread instead of a process."""
    monkeypatch.chdir(tmp_path)
    hosts, server = blocks(PAGES["scaling"])[:2]
    model, data, (connection, other) = flcog.Classifier(flcog.models.SoftmaxRegression(784, 10)), Digits(num_clients=4), Pipe()

    def trainer() -> flcog.FederatedTrainer:
        return flcog.FederatedTrainer(rounds=2, local_steps=2, logger=False, enable_checkpointing=False)

    def serve() -> None:
        with suppress(EOFError):
            execute(hosts)["serve"](other, trainer(), copy.deepcopy(model), data.only(range(4)))

    thread = Thread(target=serve, daemon=True)
    thread.start()
    apart, together = trainer(), trainer()
    exec(server, {"trainer": apart, "model": copy.deepcopy(model), "data": data, "connections": [connection]})
    connection.close()
    thread.join()
    together.fit(model, Digits(num_clients=4))
    assert [row["train/loss"] for row in apart.history] == [row["train/loss"] for row in together.history]


def test_contributing_shows_a_round_and_a_stage_as_they_are() -> None:
    round, _, stage = blocks((ROOT / "CONTRIBUTING.md").read_text())
    code = inspect.getsource(advance)
    calls = re.findall(r"\w+\([^()]+", round)
    assert len(calls) == 5 and [code.index(call) for call in calls] == sorted(code.index(call) for call in calls)
    names = {"dataclass": dataclass, "Stage": flcog.Stage, "Envelope": Envelope, "Context": flcog.Context, "Slot": flcog.Slot}
    exec(stage, names | {"map_fields": map_fields, "__name__": "readme"}, halves := {})
    envelope = Envelope({"weight": torch.ones(2)}, {}, {}, {}, {})
    assert halves["Halve"]().send(envelope, SimpleNamespace(state={}))[0].delta["weight"].tolist() == [0.5, 0.5]


def test_every_command_names_files_that_exist() -> None:
    for text in (README, *PAGES.values(), *(path.read_text() for path in (ROOT / "configs").rglob("*.yaml"))):
        for path in re.findall(r"configs/[\w/-]+\.yaml", text):
            assert (ROOT / path).is_file(), path


def between(page: str, name: str) -> str:
    return PAGES[page].split(f"<!-- {name} -->\n")[1].split(f"\n<!-- /{name} -->")[0]


@pytest.mark.slow
def test_the_table_of_methods_is_current(capsys: pytest.CaptureFixture[str]) -> None:
    main(["methods", "--markdown"])
    assert between("methods", "methods") == capsys.readouterr().out.strip(), (
        "run `flcog methods --markdown` and paste what it prints"
    )


def test_the_table_of_data_is_current() -> None:
    exported = [getattr(flcog.datamodules, name) for name in flcog.datamodules.__all__]
    modules = [cls for cls in exported if isinstance(cls, type) and issubclass(cls, flcog.FederatedDataModule)]
    # If the task depends on the files, it is a property, and the class alone does not know it.
    rows = [(f"`{cls.__name__}`", cls.task if isinstance(cls.task, str) else "any", first_paragraph(cls)) for cls in modules]
    assert between("data-sets", "data") == markdown(["data module", "task", "what it reads"], rows)


def test_links_lead_somewhere() -> None:
    pages = {ROOT / "README.md": README, **{ROOT / "docs" / f"{name}.md": text for name, text in PAGES.items()}}
    for path, text in pages.items():
        for target in re.findall(r"\]\((?!http)([^)#]+)", text):
            assert (path.parent / target).exists(), f"{path.name}: {target}"


SHOWN = [
    (path.name, line.partition("#")[0].strip())
    for path in [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
    for line in re.findall(r"(?:^    (?:.* )?|`)(flcog [a-z][^`\n]*)", re.sub(r"\\\n *", "", path.read_text()), re.MULTILINE)
]
NOT_SHIPPED = re.compile(r"[A-Z_.]+|(runs|lightning_logs)/.*|crowd\.yaml")
"""Placeholders for a config of the reader."""


@functools.cache
def options_of(*command: str) -> set[str]:
    """The options that a command's help lists."""
    with contextlib.redirect_stdout(io.StringIO()) as printed, suppress(SystemExit):
        main([*command, "--help"])
    lines = re.findall(r"^ +(-.*?)(?:  |$)", printed.getvalue(), re.MULTILINE)
    return {option for line in lines for option in re.findall(r"(?<!\S)-(?:-[a-z_][\w.-]*|\w\b)", line)}


@pytest.mark.parametrize(("page", "line"), SHOWN, ids=str)
def test_a_command_that_a_page_shows_exists(page: str, line: str, command_line: None) -> None:
    """The command, its options and the shipped configs that it names exist."""
    words = shlex.split(re.split(r" -- |;|\||\.\.\.", line)[0])[1:]
    known = options_of(*itertools.takewhile(lambda word: not word.startswith("-"), words))
    for option, value in itertools.pairwise([*words, ""]):
        if option == "-c" and value and not NOT_SHIPPED.fullmatch(value):
            assert shipped_configs.shipped(value), f"there is no config {value}"
        if option.startswith("--"):
            names = option.partition("=")[0].rstrip("+").split(".")
            # The options of a class extend the option for its class path: --data.num_clients extends --data.
            assert any(".".join(names[:length]) in known for length in range(1, len(names) + 1)), f"there is no option {option}"
