"""If memory runs out, a run tries fewer clients at a time, once. The summary shows the memory that a run used."""

import re
import weakref
from pathlib import Path
from typing import Any

import pytest
import torch
from fake_device import computing_there
from harness import TinyData, assert_close, classifier, fit, make_trainer, needs_compiler, train
from torch import Tensor, nn

import flcog
from engine.test_compile import as_recorded
from engine.test_patches import Pictures
from flcog.callbacks import SCAFFOLD
from flcog.core.processes import Processes
from flcog.execute import choice, memory
from flcog.execute.job import Job
from flcog.execute.memory import activation_bytes
from flcog.execute.one_client import OneClient
from flcog.execute.stacked_clients import StackedClients
from flcog.method import MemoryNote, Notes
from flcog.run import hosting
from flcog.run.observers.summary import peak_memory
from flcog.run.session import Session


def let_memory_run_out(patch: pytest.MonkeyPatch, most: int) -> None:
    chunk = StackedClients.train_chunk

    def limited(self: Any, assignment: Any, works: Any) -> Any:
        if len(works) > most:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return chunk(self, assignment, works)

    patch.setattr(StackedClients, "train_chunk", limited)


def test_where_memory_runs_out_half_as_many_clients_go_on(monkeypatch: pytest.MonkeyPatch) -> None:
    small = train(SCAFFOLD(), executor="vmap", chunk_size=2)
    let_memory_run_out(monkeypatch, 3)
    with pytest.warns(UserWarning, match="5 clients at a time do not fit into memory, 2 are tried") as caught:
        halved = train(SCAFFOLD(), executor="vmap", chunk_size=5)
    assert len(caught) == 1 and halved.executor.name == "vmap" and halved.executor.clients_at_once == 2
    assert_close(halved.params, small.params, 0)


@needs_compiler
@pytest.mark.slow
def test_compiled_steps_have_no_room_for_more_either(monkeypatch: pytest.MonkeyPatch) -> None:
    """Smaller chunks would take as much memory, because a program pads chunks to its number of clients."""
    monkeypatch.setattr(torch, "compile", as_recorded)
    options: dict[str, Any] = {"executor": "vmap", "compile": True, "clients_per_round": 4}
    small = train(SCAFFOLD(), chunk_size=2, **options)
    begun = StackedClients.begin

    def limited(self: Any, assignment: Any, works: Any) -> Any:
        if len(works) > 2:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return begun(self, assignment, works)

    monkeypatch.setattr(StackedClients, "begin", limited)
    with pytest.warns(UserWarning, match="4 clients at a time do not fit into memory, 2 are tried") as caught:
        halved = train(SCAFFOLD(), chunk_size=4, **options)
    assert len(caught) == 1
    assert (halved.executor.name, halved.executor.compiled, halved.executor.clients_at_once) == ("vmap", True, 2)
    assert_close(halved.params, small.params, 0)


def test_the_loop_that_takes_over_has_the_memory_of_what_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    held: list[weakref.ref[Tensor]] = []
    client = OneClient._begin

    def fails(self: Any, assignment: Any, works: Any) -> Any:
        chunk = torch.zeros(len(works))
        held.append(weakref.ref(chunk))
        raise RuntimeError(f"no batching rule for {len(chunk)}")

    def looked(*arguments: Any) -> Any:
        assert held[0]() is None
        return client(*arguments)

    trainer = make_trainer(None, executor="vmap")
    trainer.prepare(classifier(), TinyData())
    monkeypatch.setattr(StackedClients, "train_chunk", fails)
    monkeypatch.setattr(OneClient, "_begin", looked)
    with pytest.warns(UserWarning, match="falls back to loop: .*no batching rule"):
        trainer.train_round()


def test_the_summary_says_what_memory_it_took(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = peak_memory(torch.device("cpu"))
    fit(tmp_path, rounds=1)
    told = re.search(r"memory +([\d.]+) (MiB|GiB) at its peak, of this process", capsys.readouterr().out)
    status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    assert told is not None and before is not None
    size = {"MiB": 2**20, "GiB": 2**30}[told[2]]
    assert before <= (float(told[1]) + 0.1) * size and (float(told[1]) - 0.1) * size <= int(status["VmHWM"].split()[0]) * 2**10


class Wide(nn.Module):
    """A network with few parameters, which stores 3,000 activations for each sample."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(6, 3)

    def forward(self, inputs: Tensor) -> Tensor:
        return self.layer(inputs).repeat(1, 1000).tanh().view(-1, 1000, 3).mean(1)


def test_activations_count_on_an_accelerator(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(memory.CHUNK_BYTES, False, 10 * 4 * 12_000)  # the activations of ten batches of four samples
    with computing_there():
        trainer = make_trainer(None, executor="vmap", precision="32-true")
        trainer.prepare(classifier(network=Wide), TinyData(4))
    assert trainer.executor.clients_at_once == 9, "ten, without what else a client takes"


@pytest.mark.parametrize("patches", [False, True])
def test_what_autograd_keeps_is_counted(patches: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Autograd keeps the input of a convolution, or its patches of nine pixels, and the output of a ReLU."""
    jobs: list[Job] = []
    monkeypatch.setattr(hosting, "ChosenExecutor", lambda job, *rest: jobs.append(job) or choice.ChosenExecutor(job, *rest))
    network = nn.Sequential(nn.Conv2d(1, 2, 3, padding=1), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(2, 3))
    make_trainer(None, precision="32-true", clients_per_round=1.0).prepare(flcog.Classifier(network), Pictures(4, batch_size=5))
    pixels, filters, rows = 28 * 28, 2, 5
    counted = activation_bytes(jobs[0], patches) / (4 * rows)
    assert counted == pytest.approx((9 if patches else 1) * pixels + filters * pixels, rel=0.02)


GIB = 2**30


@pytest.fixture(autouse=True)
def nothing_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("memory_reserved", "memory_allocated"):
        monkeypatch.setattr(torch.cuda, name, lambda device: 3 * GIB)


@pytest.mark.parametrize(
    ("taken", "per_device", "expected"),
    [
        (0, 1, 40),
        (0, 4, 10),
        (9 * GIB, 1, 40),
        (20 * GIB - 1, 1, 30),
        (20 * GIB - 2**20, 1, 30),
        (20 * GIB, 3, 20 / 2),
        (79.5 * GIB, 1, 0),
    ],
)
def test_what_others_have_taken_of_a_gpu_is_left_to_them(
    taken: int, per_device: int, expected: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The processes share half of the GPU's memory, or half of the free memory if others use much. A few MiB change nothing."""
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (80 * GIB - int(taken), 80 * GIB))
    notes = Notes()
    assert memory.chunk_bytes(Processes(device=torch.device("cuda", 0), per_device=per_device), notes) == expected * GIB
    assert [note.text.partition(":")[0] for note in notes] == (
        [f"{-(-int(taken) // GIB)}.0 GiB of the GPU's 80.0 GiB are taken"] if taken > 10 * GIB else []
    )


def fitted(root: Path, rounds: int, ckpt_path: Path | None = None, data: Any = None, **options: Any) -> Session:
    trainer = flcog.FederatedTrainer(
        **{"rounds": rounds, "clients_per_round": 4, "local_steps": 2, "executor": "vmap"} | options,
        callbacks=[SCAFFOLD()],
        logger=False,
        eval_every=0,
        accelerator="cpu",
        default_root_dir=str(root),
    )
    trainer.fit(*(data or (classifier(), TinyData())), ckpt_path and str(ckpt_path))
    return trainer.run


@pytest.mark.slow
def test_a_run_goes_on_with_as_many_clients_as_it_had(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The GPU's free memory may be different when a run resumes, and another number of clients would change the rounding."""
    with computing_there():
        with monkeypatch.context() as patch:
            let_memory_run_out(patch, 3)
            with pytest.warns(UserWarning, match="4 clients at a time do not fit into memory, 2 are tried"):
                half = fitted(tmp_path, 1)
        resumed = fitted(tmp_path, 2, half.directory)
        assert half.engine.clients.executor.clients_at_once == resumed.engine.clients.executor.clients_at_once == 2
        assert MemoryNote("2 clients at a time, as the checkpoint says") in resumed.engine.notes
        assert fitted(tmp_path, 3, half.directory, chunk_size=3).engine.clients.executor.clients_at_once == 3, (
            "the user's word counts"
        )
    assert fitted(tmp_path, 4, half.directory).engine.clients.executor.clients_at_once > 4, "a CPU has other reasons"


def nine_clients() -> tuple[flcog.Classifier, Pictures]:
    torch.manual_seed(0)
    return flcog.Classifier(nn.Sequential(nn.Flatten(), nn.Linear(784, 3))), Pictures(9, batch_size=4)


@pytest.mark.slow
def test_a_compiled_run_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The resumed run keeps four clients at a time, half of nine, although equal chunks would have three clients each."""
    monkeypatch.setattr(torch, "compile", as_recorded)
    options: dict[str, Any] = {"compile": True, "clients_per_round": 9, "data": nine_clients()}
    with computing_there():
        with monkeypatch.context() as patch:
            let_memory_run_out(patch, 4)
            with pytest.warns(UserWarning, match="9 clients at a time do not fit into memory, 4 are tried"):
                half = fitted(tmp_path, 1, **options)
        resumed = fitted(tmp_path, 2, half.directory, **options)
    assert half.engine.clients.executor.clients_at_once == resumed.engine.clients.executor.clients_at_once == 4
    assert half.engine.clients.executor.compiled and resumed.engine.clients.executor.compiled
