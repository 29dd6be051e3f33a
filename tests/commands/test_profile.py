"""``flcog bench --profile``: a trace of one round, and a table that accounts for all of its time."""

import json
import re
from pathlib import Path
from types import SimpleNamespace

import pytest
from harness import train
from torch.autograd import DeviceType

from flcog.commands.bench.profile import check_trace, profile_round, table


def test_a_round_is_traced_and_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trainer = train(rounds=1)
    profile_round(trainer, str(tmp_path / "trace.json"))
    names = {event.get("name") for event in json.loads((tmp_path / "trace.json").read_text())["traceEvents"]}
    assert {"aten::addmm", "aten::index_select"} <= names
    assert trainer.round == 2
    printed = capsys.readouterr().out
    assert "one round took" in printed and str(tmp_path / "trace.json") in printed
    shares = [float(share) for share in re.findall(r"([\d.]+)% \|", printed)]
    assert 13 <= len(shares) <= 14 and sum(shares) == pytest.approx(100, abs=1)


@pytest.mark.parametrize(("name", "message"), [("missing/trace.json", "there is no folder"), ("", "is a folder: give a file")])
def test_places_of_no_trace(name: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=message):
        check_trace(str(tmp_path / name))


@pytest.mark.slow
def test_clients_side_by_side_are_all_seen(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    calls = []
    for clients_at_once in (1, 2):
        trainer = train(rounds=1, chunk_size=clients_at_once, clients_per_round=4)
        profile_round(trainer, str(tmp_path / "trace.json"))
        events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
        calls.append(sum(event.get("name") == "aten::addmm" for event in events))
        capsys.readouterr()
    assert calls[0] == calls[1] == 4 * 4 * 2  # clients, steps, layers


def test_the_tables_figures() -> None:
    events = [SimpleNamespace(key=f"op{i}", count=i, self_cpu_time_total=1e4 * (i == 3) + 1e5 * (i == 7)) for i in range(20)]
    rows = [[cell.strip() for cell in line.strip("| ").split("|")] for line in table(events, took=0.2).splitlines()[2:]]
    assert rows[:2] == [["op7", "0.10 s", "50.0%", "7"], ["op3", "10 ms", "5.0%", "3"]]
    assert rows[-1][:3] == ["Python, and waiting", "90 ms", "45.0%"]


def test_on_a_gpu_a_kernels_time_counts_once() -> None:
    """torch counts the time for the kernel, and again for its caller: an operation, or a range that the user has named."""

    def event(key: str, device: DeviceType, named: bool = False) -> SimpleNamespace:
        return SimpleNamespace(key=key, count=1, device_type=device, is_user_annotation=named, self_device_time_total=6e4)

    asked = [event("aten::mm", DeviceType.CPU), event("my range", DeviceType.CUDA, named=True)]
    kernel = event("void at::native::elementwise_kernel<128, 2, at::native::" + "A" * 900, DeviceType.CUDA)
    rows = [line.split("|") for line in table([*asked, kernel], took=0.1, on_gpu=True).splitlines()[2:]]
    assert [[cell.strip() for cell in row[1:4]] for row in rows] == [
        ["at::native::elementwise_kernel<128, 2, at::native::AAAAAAAAAAAAAAAAAA…", "60 ms", "60.0%"],
        ["all other operations", "0.0 ms", "0.0%"],
        ["no operation running", "40 ms", "40.0%"],
    ]
