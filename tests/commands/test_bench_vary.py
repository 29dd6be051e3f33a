"""``flcog bench --vary``: one configuration's rounds, computed in several ways and timed in turn."""

import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from harness import TinyData, classifier, make_trainer

from flcog.callbacks import FedProx
from flcog.commands.bench import variations
from flcog.commands.bench.command import bench
from flcog.commands.bench.results import print_table, settled
from flcog.commands.bench.variations import Contestant
from flcog.commands.cli import main

ROOT = Path(__file__).parents[2]


def table(text: str) -> list[list[str]]:
    return [[cell.strip() for cell in line.split("|")[1:-1]] for line in text.splitlines() if line.startswith("|")]


@pytest.mark.slow
def test_every_combination_is_timed_in_turn(capsys: pytest.CaptureFixture[str]) -> None:
    trainer = make_trainer(None, FedProx(mu=0.1), precision="32-true")
    vary = {"executor": ["loop", "vmap"], "chunk_size": [1, 2], "tf32": [None, False]}
    bench(trainer, classifier(), TinyData(), repeats=2, seconds=0, vary=vary)
    printed = capsys.readouterr().out
    header, _, *rows, bare = table(printed)
    assert header == ["executor", "chunk_size", "tf32", "ran as", "a round", "of bare", "of the first", "first round"]
    clients = {"1": "1 client at a time", "2": "2 clients at a time"}
    for executor in ("loop", "vmap"):
        for chunk_size in ("1", "2"):
            for tf32 in ("null", "false"):
                assert [executor, chunk_size, tf32, f"{executor}, {clients[chunk_size]}"] in [row[:4] for row in rows]
    assert len(rows) == 8 and bare[0] == "bare" and "2 rounds in turn" in printed
    assert "FedProx: in flcog's rounds alone" in printed


def test_all_ratios_are_to_be_known() -> None:
    steady, shaky = [1.0, 1.0, 1.0, 1.0], [1.0, 2.0, 1.0, 3.0]
    assert settled(list(zip(steady, steady, [2.0] * 4, strict=True)), 2)
    assert not settled(list(zip(steady, shaky, [2.0] * 4, strict=True)), 2)
    assert not settled(list(zip(shaky, steady, [2.0] * 4, strict=True)), 2)


def test_ratios_and_memory_are_each_ones_own(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """The memory of a round is its peak beyond the memory that was allocated before it, also by other variations."""
    held, peaks = 3 * 2**30, iter([4 * 2**30, 5 * 2**30, 3.5 * 2**30])
    monkeypatch.setattr(torch.cuda, "reset_peak_memory_stats", lambda device: None)
    monkeypatch.setattr(torch.cuda, "memory_allocated", lambda device: held)
    monkeypatch.setattr(torch.cuda, "max_memory_allocated", lambda device: next(peaks))
    monkeypatch.setattr(variations, "synchronise", lambda trainer: None)
    processes = SimpleNamespace(device=torch.device("cuda"), count=1)
    executor = SimpleNamespace(name="vmap", clients_at_once=1, compiled="graphs")
    engine = SimpleNamespace(clients=SimpleNamespace(executor=executor), processes=processes)
    trainer = SimpleNamespace(
        run=SimpleNamespace(processes=processes, engine=engine), train_round=lambda: None, methods=[], settings=None
    )
    one, other = (Contestant(trainer, {"chunk_size": size}) for size in (1, 2))
    for contestant in (one, one, other):
        contestant.round()
    print_table([one, other], ["bare", "pfl"], [[1.0, 2.0, 4.0, 8.0]] * 2)
    header, _, *rows = table(capsys.readouterr().out)
    assert header == ["chunk_size", "ran as", "a round", "of bare", "of pfl", "of the first", "first round", "memory"]
    assert [(*row[2:6], row[7]) for row in rows[:2]] == [
        ("1.00 s", "0.250 +- 0.000", "0.125 +- 0.000", "1.000 +- 0.000", "2.0 GiB"),
        ("2.00 s", "0.500 +- 0.000", "0.250 +- 0.000", "2.000 +- 0.000", "512.0 MiB"),
    ]
    assert rows[0][1] == "vmap, 1 client at a time, CUDA graphs"
    assert [row[:3] for row in rows[2:]] == [["bare", "", "4.00 s"], ["pfl", "", "8.00 s"]] and {len(row) for row in rows} == {8}


def test_methods_are_timed_against_none(capsys: pytest.CaptureFixture[str]) -> None:
    clip = {"class_path": "flcog.callbacks.ClipUpdate", "init_args": {"norm": 0.5}}
    trainer = make_trainer(None, FedProx(mu=0.1))
    bench(trainer, classifier(), TinyData(), repeats=1, seconds=0, vary={"callbacks": ["none", "Quantize", clip]})
    _, _, *rows = table(capsys.readouterr().out)
    assert [row[0] for row in rows] == ["none", "Quantize", "ClipUpdate(norm=0.5)", "bare"] and rows[0][4] == "1.000"
    contestants = variations.variations(trainer, {"callbacks": ["none", "Quantize", clip]})
    assert [[m.name for m in each.trainer.methods] for each in contestants] == [
        ["FedProx"],
        ["FedProx", "Quantize"],
        ["FedProx", "ClipUpdate"],
    ]


@pytest.mark.usefixtures("command_line")
@pytest.mark.slow
def test_from_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = tmp_path / "vary.yaml"
    config.write_text("vary:\n  executor: [loop, vmap]\n")
    few = ["--trainer.local_steps", "1", "--trainer.clients_per_round", "2", "--repeats", "1", "--seconds", "0"]
    main(["bench", "-c", str(ROOT / "configs" / "quickstart.yaml"), "-c", str(config), "--vary.compile", "[false]", *few])
    out = capsys.readouterr().out
    assert re.search(r"^start: the first round can begin \d+\.\d s after the command", out, re.MULTILINE)
    header, _, *rows = table(out)
    assert header[:2] == ["executor", "compile"] and [row[:2] for row in rows] == [
        ["loop", "false"],
        ["vmap", "false"],
        ["bare", ""],
    ]


@pytest.mark.parametrize(
    ("vary", "message"),
    [
        ({"rounds": [1, 2]}, "vary: rounds cannot be varied; give only options that do not change a round's result: executor, chunk_size"),
        ({"executor": "loop"}, r"vary\.executor is a list of values, as in --vary\.executor '\[loop, vmap, vmap-patches\]'; got 'loop'"),
        ({"precision": []}, r"vary\.precision is a list of values"),
        ({"executor": ["loop", "threads"]}, "executor must be auto, loop, .*; got 'threads'"),
        ({"chunk_size": [1.5]}, "chunk_size must be a whole number; got 1.5"),
        ({"chunk_size": ["a"]}, "chunk_size must be a whole number; got 'a'"),
        ({"chunk_size": [True]}, "chunk_size must be a whole number; got True"),
        ({}, "vary has nothing to vary"),
        ({"callbacks": "TopK"}, r"vary\.callbacks is a list of values, as in --vary\.callbacks '\[none, NAME\]'"),
        ({"callbacks": ["none", "Quantise"]}, "vary.callbacks lists none, names of methods, .*; got 'Quantise': "),
        ({"callbacks": [{"class_path": "flcog.callbacks.TopK", "init_args": {"fraction": 2.0}}]}, "TopK: fraction must lie in"),
    ],
)  # fmt: skip
def test_bad_words(vary: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message) as caught:
        bench(make_trainer(None), classifier(), TinyData(), vary=vary)
    assert len(str(caught.value).splitlines()) == 1


def test_a_time_that_never_ends() -> None:
    with pytest.raises(ValueError, match="seconds must be at least 0; got nan"):
        bench(make_trainer(None), classifier(), TinyData(), seconds=float("nan"))


def test_ctrl_c_prints_what_was_measured(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    rounds, calls = Contestant.round, iter(range(100))

    def interrupted(self: Any) -> float:
        if next(calls) == 2:  # after the first round and one timed round
            raise KeyboardInterrupt
        return rounds(self)

    monkeypatch.setattr(Contestant, "round", interrupted)
    with pytest.raises(KeyboardInterrupt):
        bench(make_trainer(None), classifier(), TinyData(), repeats=5, seconds=0)
    printed = capsys.readouterr()
    assert " s a round, ratio " in printed.out
    assert "first round of flcog: " in printed.err and "round 1 took flcog " in printed.err
