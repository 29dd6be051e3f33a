"""CUDA graphs without CUDA: a stand-in records a step's operations and runs them again on the same memory, as a graph does.

The stand-in delays the operations on a stream until another stream waits for it, so that code without the necessary wait reads old
numbers. ``test_gpu.py`` runs the same code on a GPU.
"""

from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from contracts.registry import CASES, client_states, run
from fake_device import computing_there, waits
from harness import MOMENTUM, ODD_BATCHES, RAGGED, BatchNormMLP, TinyData, assert_close, classifier, needs_compiler, train
from torch import Tensor, nn
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from engine.test_selection import Listed
from flcog.callbacks import SCAFFOLD
from flcog.execute import choice, compiled_clients
from flcog.execute import graphs as cuda_graphs

pytestmark = needs_compiler


class Tape(TorchDispatchMode):
    """Records operations, and runs them again without the Python code that called them. Results go to the memory of the first results."""

    def __init__(self) -> None:
        super().__init__()
        self._operations: list[tuple[Any, Any, Any, Any]] = []

    def __torch_dispatch__(self, op: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = op(*args, **(kwargs or {}))
        assert op.overloadpacket is not torch.ops.aten._local_scalar_dense, "a graph reads no number"
        self._operations.append((op, args, kwargs or {}, result))
        return result

    def replay(self) -> None:
        for op, args, kwargs, result in self._operations:
            if not op._schema.is_mutable and any(r.alias_info for r in op._schema.returns):
                continue  # a view shares memory that is already up to date
            again = op(*args, **kwargs)
            if not op._schema.is_mutable:
                for old, new in zip(pytree.tree_leaves(result), pytree.tree_leaves(again), strict=True):
                    if isinstance(old, Tensor):
                        old.copy_(new)


class Late(TorchDispatchMode):
    """Delays copies on a stream. Other operations first run the delayed work of the stream."""

    def __init__(self, stream: "Stream") -> None:
        super().__init__()
        self._stream = stream

    def __torch_dispatch__(self, op: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if op.overloadpacket in (torch.ops.aten.copy_, torch.ops.aten._foreach_copy_):
            if op.overloadpacket is torch.ops.aten._foreach_copy_:  # the step's inputs
                assert set(map(place_of, args[1])) <= self._stream.lent, "another tensor may have got this memory meanwhile"
            self._stream.append(partial(op, *args, **(kwargs or {})))
            return args[0] if op.overloadpacket is torch.ops.aten.copy_ else None
        if not any(r.alias_info for r in op._schema.returns) or op._schema.is_mutable:
            self._stream.run()
        return op(*args, **(kwargs or {}))


def place_of(tensor: Tensor) -> int:
    return getattr(tensor, "here", tensor).untyped_storage().data_ptr()


class Stream(deque[Callable[[], Any]]):
    def __init__(self, device: "StandIn") -> None:
        super().__init__()
        self._device = device
        self.lent: set[int] = set()
        """The addresses of tensors from other streams that this stream may read."""

    def run(self) -> None:
        while self:
            self.popleft()()

    def wait_stream(self, other: "Stream") -> None:
        if self is self._device.main:
            self._device.most_at_once = max(self._device.most_at_once, sum(map(bool, self._device.streams)))
            other.run()


class StandIn:
    """Replaces ``torch.cuda``, and counts captures, replays and streams that work at the same time."""

    def __init__(self) -> None:
        self.main, self.streams, self.captured, self.replayed, self.most_at_once = Stream(self), list[Stream](), 0, 0, 0

    def new_stream(self) -> Stream:
        self.streams.append(Stream(self))
        return self.streams[-1]

    @contextmanager
    def on(self, stream: Stream) -> Iterator[None]:
        with Late(stream):
            yield

    def capture(self, function: Callable[[], None], stream: Stream) -> Callable[[], None]:
        for _ in range(cuda_graphs.WARM_UPS):
            function()
        with Tape() as tape:
            function()
        self.captured += 1

        def replay() -> None:
            self.replayed += 1
            stream.append(tape.replay)

        return replay


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch, programs: list[int]) -> StandIn:
    device = StandIn()
    monkeypatch.setattr(choice, "_captures", lambda device: True)
    cuda = SimpleNamespace(Stream=device.new_stream, current_stream=lambda: device.main, stream=device.on)
    monkeypatch.setattr(cuda_graphs, "cuda", cuda)
    monkeypatch.setattr(cuda_graphs, "capture", device.capture)
    monkeypatch.setattr(Tensor, "record_stream", lambda tensor, stream: stream.lent.add(place_of(tensor)))
    return device


NAMES = ("FedProx", "SCAFFOLD-momentum", "FedCOG", "FedRep-momentum", "MOON-batchnorm")


OTHERS = [pytest.param(name, 2, marks=pytest.mark.slow) for name in CASES if name not in NAMES]


@pytest.mark.parametrize(
    ("name", "lanes"), [*((name, 2) for name in NAMES), ("SCAFFOLD-momentum", 1), ("SCAFFOLD-momentum", 3), *OTHERS]
)
def test_replaying_is_looping(name: str, lanes: int, device: StandIn) -> None:
    case = CASES[name]
    loop = run(case, case.method, executor="loop")
    graphs = run(case, case.method, executor="loop", compile="graphs", chunk_size=lanes)
    assert_close(graphs.state, loop.state, 1e-11)
    assert_close(client_states(graphs), client_states(loop), 1e-10)
    assert graphs.rows == [pytest.approx(row, rel=1e-9) for row in loop.rows]
    needed = min(lanes, len(graphs.recorded[0]))  # Centralized trains a single client
    assert (graphs.executor.name, graphs.executor.clients_at_once, graphs.executor.compiled) == ("loop", needed, "graphs")
    assert device.captured == device.most_at_once == needed


def test_every_step_is_a_replay_where_batches_have_one_size(device: StandIn) -> None:
    trainer = train(executor="loop", compile="graphs", chunk_size=2, local_steps=5, rounds=3)
    assert (device.captured, device.replayed) == (2, 3 * 5 * 5)
    assert sum("the local step of 1 client was captured in" in note for note in trainer.notes) == 2


@pytest.mark.parametrize("network", [None, BatchNormMLP])
def test_batches_of_other_sizes(network: Any, device: StandIn) -> None:
    data = [TinyData(batch_size=4) if network else ODD_BATCHES() for _ in range(2)]
    runs = [
        train(module=classifier(network=network), data=data[k], executor="loop", compile=how, **RAGGED)
        for k, how in enumerate(("graphs", False))
    ]
    assert_close(runs[0].params, runs[1].params, 1e-11)
    assert_close(runs[0].buffers, runs[1].buffers, 1e-11)
    assert device.captured == runs[0].executor.clients_at_once == 4


@pytest.mark.slow
def test_a_batched_program_is_captured_too(device: StandIn) -> None:
    case = CASES["SCAFFOLD-momentum"]
    vmap = run(case, case.method, executor="vmap", chunk_size=2)
    graphs = run(case, case.method, executor="vmap", chunk_size=2, compile="graphs")
    assert_close(graphs.state, vmap.state, 1e-11)
    assert graphs.executor.compiled == "graphs" and device.captured == 1
    steps = [sorted((work.num_steps for work in works), reverse=True) for works in graphs.works]
    assert device.replayed == sum(sum(those[::2]) for those in steps)  # a chunk of two needs the steps of its first client


@pytest.mark.parametrize("executor", ["loop", "vmap"])
def test_captured_steps_take_cohorts_of_any_size(executor: str, device: StandIn) -> None:
    """The rounds have 2, 0, 6, 1, 0 and 3 clients."""
    loop = train(Listed(), SCAFFOLD(), rounds=6)
    graphs = train(Listed(), SCAFFOLD(), rounds=6, executor=executor, chunk_size=2, compile="graphs")
    assert_close(graphs.state, loop.state, 1e-11)
    assert graphs.executor.compiled == "graphs" and graphs.rows == [pytest.approx(row, rel=1e-9) for row in loop.rows]


def test_what_cannot_be_captured_runs_as_it_is(device: StandIn, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(function: Any, stream: Any) -> Any:
        raise RuntimeError("operation not permitted when stream is capturing")

    monkeypatch.setattr(cuda_graphs, "capture", fails)
    with pytest.warns(UserWarning, match="cannot be captured .*not permitted when stream is capturing") as caught:
        graphs = train(executor="loop", compile="graphs")
    assert len(caught) == 1 and graphs.executor.compiled is False
    assert_close(graphs.params, train(executor="loop").params, 1e-11)


@pytest.mark.parametrize("executor", ["loop", "vmap"])
def test_a_run_on_a_gpu_recommends_them_where_they_are_possible(executor: str, device: StandIn) -> None:
    def recommended(network: Any = None, **options: Any) -> bool:
        trainer = train(module=classifier(network=network), executor=executor, rounds=1, **options)
        return any("trainer.compile=graphs is often several times faster" in note for note in trainer.notes)

    assert recommended()
    assert not recommended(compile="graphs")
    assert not recommended(lambda: nn.Sequential(nn.Linear(6, 3), nn.Dropout(0.5))), "its draws cannot be captured"


def test_a_graph_reads_no_number_from_the_cpu() -> None:
    made = compiled_clients._tensors([{"a": torch.tensor(1.0), "b": 2, "c": 3.0}], torch.device("meta"))
    assert {value.device.type for value in made[0].values()} == {"meta"}


@pytest.mark.parametrize("compile", ["graphs", True])
@pytest.mark.parametrize("executor", ["loop", "vmap"])
@pytest.mark.slow
def test_away_from_the_cpu_steps_wait_for_nothing(executor: str, compile: Any, device: StandIn) -> None:
    """The clients differ in their numbers of steps, and their batches are padded."""
    work: dict[str, Any] = {
        "executor": executor,
        "precision": "32-true",
        "chunk_size": 2 if executor == "vmap" else 1,
        "rounds": 2,
    }

    def trained(epochs: int, **options: Any) -> Any:
        case = CASES["SCAFFOLD-momentum"]
        waits.clear()
        return train(case.method, module=classifier(MOMENTUM), data=ODD_BATCHES(), local_epochs=epochs, **work, **options)

    here, waited = trained(3), list[Any]()
    for epochs in (1, 3):
        with computing_there(like_cuda=True):
            there = trained(epochs, compile=compile)
        waited.append(waits.copy())
    assert (there.executor.name, there.executor.compiled) == (executor, compile)
    assert_close({name: value.here for name, value in there.params.items()}, here.params, 1e-5)
    assert waited[0]["copies"] and waited[0] == waited[1]
