"""If memory runs out, a run tries fewer clients at a time, once. The summary shows the memory that a run used."""

import re
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from fake_device import computing_there
from harness import NUM_CLASSES, NUM_FEATURES, TinyData, assert_close, classifier, fit, make_trainer, needs_compiler, train
from torch import Tensor, nn
from torch._C._functorch import get_unwrapped, is_batchedtensor, is_functorch_wrapped_tensor

import flcog
from engine.test_patches import Pictures
from flcog.callbacks import SCAFFOLD
from flcog.core.processes import Processes
from flcog.execute import job
from flcog.execute.job import activation_bytes
from flcog.run.observers.summary import peak_memory


def batched(value: Tensor) -> Tensor | None:
    """The tensor of all clients in a batched program, of which a value is one client's part; None outside of such programs."""
    while is_functorch_wrapped_tensor(value):
        of_clients, value = is_batchedtensor(value), get_unwrapped(value)
        if of_clients:
            return value
    return None


class Hungry(nn.Linear):
    """A network for which memory runs out with more than ``most`` clients at a time."""

    def __init__(self, most: int, inputs: int = NUM_FEATURES) -> None:
        super().__init__(inputs, NUM_CLASSES)
        self.most = most

    def forward(self, inputs: Tensor) -> Tensor:
        weight = batched(self.weight)
        if weight is not None and len(weight) > self.most:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return super().forward(inputs.flatten(1))


def hungry(most: int) -> flcog.Classifier:
    return classifier(network=partial(Hungry, most))


COMPILED = pytest.param(True, marks=[needs_compiler, pytest.mark.slow])


@pytest.mark.parametrize("compiled", [False, COMPILED])
def test_where_memory_runs_out_half_as_many_clients_go_on(compiled: bool, programs: list[int]) -> None:
    """Compiled chunks get smaller, too, although a program pads chunks to its number of clients."""
    options: dict[str, Any] = {"executor": "vmap", "compile": compiled, "clients_per_round": 4}
    small = train(SCAFFOLD(), module=hungry(2), chunk_size=2, **options)
    with pytest.warns(UserWarning, match="4 clients at a time do not fit into memory, 2 are tried") as caught:
        halved = train(SCAFFOLD(), module=hungry(2), chunk_size=4, **options)
    assert len(caught) == 1 and (halved.executor.name, halved.executor.clients_at_once) == ("vmap", 2)
    assert halved.executor.compiled == compiled
    assert_close(halved.params, small.params, 0)


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
    monkeypatch.setitem(job.CHUNK_BYTES, False, 10 * 4 * 12_000)  # the activations of ten batches of four samples
    with computing_there():
        trainer = make_trainer(None, executor="vmap", precision="32-true")
        trainer.prepare(classifier(network=Wide), TinyData(4))
    assert trainer.executor.clients_at_once == 9, "ten, without what else a client takes"


@pytest.mark.parametrize("patches", [False, True])
def test_what_autograd_keeps_is_counted(patches: bool) -> None:
    """Autograd keeps the input of a convolution, or its patches of nine pixels, and the output of a ReLU."""
    network = nn.Sequential(nn.Conv2d(1, 2, 3, padding=1), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(2, 3))
    trainer = make_trainer(None, precision="32-true", clients_per_round=1.0)
    trainer.prepare(flcog.Classifier(network), Pictures(4, batch_size=5))
    pixels, filters, rows = 28 * 28, 2, 5
    counted = activation_bytes(trainer.executor._job, patches) / (4 * rows)
    assert counted == pytest.approx((9 if patches else 1) * pixels + filters * pixels, rel=0.02)


def test_processes_share_half_of_a_gpus_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: SimpleNamespace(total_memory=80 * 2**30))
    assert job.chunk_bytes(Processes(device=torch.device("cuda", 0), per_device=4)) == 10 * 2**30
