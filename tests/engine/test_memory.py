"""Memory that runs out is answered once by fewer clients at a time, and a run says what it took."""

import re
from pathlib import Path
from typing import Any

import pytest
import torch
from harness import assert_close, fit, train

from engine.test_compile import recorded
from flcog.callbacks import SCAFFOLD
from flcog.core.allocations import peak_memory
from flcog.engine.executors import compiled
from flcog.engine.executors.fastest import Choice
from flcog.engine.executors.vmap import VmapExecutor


def let_memory_run_out(patch: pytest.MonkeyPatch, most: int) -> None:
    chunk = VmapExecutor._chunk

    def limited(self: Any, assignment: Any, works: Any) -> Any:
        if len(works) > most:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return chunk(self, assignment, works)

    patch.setattr(VmapExecutor, "_chunk", limited)


def test_where_memory_runs_out_half_as_many_clients_go_on(monkeypatch: pytest.MonkeyPatch) -> None:
    small = train(SCAFFOLD(), executor="vmap", chunk_size=2)
    let_memory_run_out(monkeypatch, 3)
    with pytest.warns(UserWarning, match="5 clients at a time do not fit into memory, 2 are tried") as caught:
        halved = train(SCAFFOLD(), executor="vmap", chunk_size=5)
    assert len(caught) == 1 and halved.executor.name == "vmap" and halved.executor.clients_at_once == 2
    assert_close(halved.params, small.params, 0)


def test_once(monkeypatch: pytest.MonkeyPatch) -> None:
    let_memory_run_out(monkeypatch, 1)
    with pytest.warns(UserWarning) as caught:
        trainer = train(executor="vmap", chunk_size=5)
    told = [str(warning.message) for warning in caught]
    assert len(told) == 2 and "2 are tried" in told[0] and "falls back to loop" in told[1] and "out of memory" in told[1]
    assert trainer.executor.name == "loop"


def test_compiled_steps_have_no_room_for_more_either(monkeypatch: pytest.MonkeyPatch) -> None:
    """Chunks are padded to the number of clients for which the program was made."""
    monkeypatch.setattr(compiled, "compiled", recorded)
    options: dict[str, Any] = {"executor": "vmap", "compile": True, "clients_per_round": 4}
    small = train(SCAFFOLD(), chunk_size=2, **options)
    begun = VmapExecutor._begun

    def limited(self: Any, assignment: Any, works: Any) -> Any:
        if len(works) > 2:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return begun(self, assignment, works)

    monkeypatch.setattr(VmapExecutor, "_begun", limited)
    with pytest.warns(UserWarning, match="4 clients at a time do not fit into memory, 2 are tried") as caught:
        halved = train(SCAFFOLD(), chunk_size=4, **options)
    assert len(caught) == 1
    assert (halved.executor.name, halved.executor.compiled, halved.executor.clients_at_once) == ("vmap", True, 2)
    assert_close(halved.params, small.params, 0)


def test_the_fastest_is_chosen_with_as_many_clients_as_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("flcog.engine.executors.choice._choices", lambda job: [Choice("vmap", 5), Choice("vmap", 2)])
    let_memory_run_out(monkeypatch, 3)
    with pytest.warns(UserWarning, match="5 clients at a time do not fit") as caught:
        trainer = train(executor="fastest")
    assert sum("do not fit" in str(warning.message) for warning in caught) == 1
    assert trainer.executor.choice == Choice("vmap", 2)  # type: ignore[attr-defined]
    assert "vmap, 2 clients at a time: " in trainer.notes[-1] and "5 clients" not in trainer.notes[-1]


def test_the_summary_says_what_memory_it_took(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = peak_memory(torch.device("cpu"))
    fit(tmp_path, rounds=1)
    told = re.search(r"memory +([\d.]+) (MiB|GiB) at its peak, of this process", capsys.readouterr().out)
    status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    assert told is not None and before is not None
    size = {"MiB": 2**20, "GiB": 2**30}[told[2]]
    assert before <= (float(told[1]) + 0.1) * size and (float(told[1]) - 0.1) * size <= int(status["VmHWM"].split()[0]) * 2**10
