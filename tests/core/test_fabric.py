"""The choice of each process's device, and several processes that share a device."""

import os
from pathlib import Path
from typing import Any

import pytest
import torch
from fake_device import computing_there
from lightning.fabric.accelerators import CUDAAccelerator
from torch.utils import _pytree as pytree

from flcog.core.fabric import SharedDevices, as_torchrun_started, make_fabric, processes_of
from flcog.core.processes import Processes


def fabric(devices: int, per_device: int, accelerator: str = "cpu", strategy: str = "auto") -> Any:
    return make_fabric(accelerator, strategy, devices, 1, per_device)


@pytest.fixture
def gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pretend that the machine has as many GPUs as requested. Nothing can be computed on them."""
    monkeypatch.setattr(CUDAAccelerator, "is_available", lambda: True)
    monkeypatch.setattr(CUDAAccelerator, "parse_devices", lambda devices: list(range(devices)))


@pytest.mark.filterwarnings("error")
def test_slurms_client_programs_bring_no_warning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "srun").touch(mode=0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    fabric(1, 1)


@pytest.mark.parametrize(
    ("devices", "num_nodes", "here", "everywhere", "per_device", "expected"),
    [
        ("auto", 1, 4, 8, 1, (4, 2)),
        ("auto", 1, 4, 4, 2, (2, 1)),
        ("auto", 3, 1, 1, 1, (1, 1)),  # two nodes were lost
        (2, 3, 4, 8, 1, (2, 3)),  # given numbers are checked later
    ],
)
def test_auto_means_the_processes_that_torchrun_has_started(
    devices: int | str,
    num_nodes: int,
    here: int,
    everywhere: int,
    per_device: int,
    expected: tuple[int | str, int],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("LOCAL_WORLD_SIZE", str(here))
    monkeypatch.setenv("WORLD_SIZE", str(everywhere))
    assert as_torchrun_started(devices, num_nodes, per_device) == (devices, num_nodes)
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "1")
    assert as_torchrun_started(devices, num_nodes, per_device) == expected


@pytest.mark.usefixtures("gpus")
@pytest.mark.parametrize("rank", range(4))
def test_two_processes_on_each_of_two_gpus(rank: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOCAL_RANK", str(rank))
    made = fabric(2, 2, "cuda")
    assert isinstance(made.strategy, SharedDevices) and made.strategy.num_processes == made.world_size == 4
    assert made.global_rank == rank and made.device == torch.device("cuda", rank % 2)
    assert made.strategy._get_process_group_backend() == "gloo"  # NCCL refuses two processes on one GPU
    assert processes_of(made) == Processes(rank, 4, torch.device("cuda", rank % 2), 2)


def test_what_lies_on_anothers_gpu_comes_to_ones_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tensors travel on the CPU. Otherwise they would be unpickled on the sender's GPU, which the receiver's machine may not have."""
    travelled: list[torch.Tensor] = []

    def gathered(values: list[Any], own: Any) -> None:
        travelled.extend(leaf for leaf in pytree.tree_leaves(own) if isinstance(leaf, torch.Tensor))
        values[:] = [own, {"x": own[0]}]

    monkeypatch.setattr(torch.distributed, "all_gather_object", gathered)
    with computing_there() as device:
        own = [torch.arange(2.0).to(device), torch.ones(2), "text"]
        ours, theirs = Processes(0, 2, device).gather(own)
        assert {tensor.device.type for tensor in travelled} == {"cpu"}
        assert [ours[0].device, theirs["x"].device, ours[1].device] == [device, device, torch.device("cpu")]
        assert ours[0].tolist() == theirs["x"].tolist() == [0, 1] and ours[1].tolist() == [1, 1] and ours[2] == "text"


def test_on_a_cpu_they_are_as_many_processes() -> None:
    assert [fabric(*numbers).world_size for numbers in ((1, 1), (2, 1), (1, 2), (2, 3))] == [1, 2, 2, 6]
