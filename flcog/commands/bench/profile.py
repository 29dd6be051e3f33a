"""Profiles one round: writes a trace, and prints a table of the slowest operations."""

import time
from contextlib import nullcontext
from pathlib import Path
from typing import Any

from torch._C._profiler import _ExperimentalConfig
from torch.autograd import DeviceType
from torch.profiler import ProfilerActivity, profile

from flcog.commands.bench.waiting import wait_for_device
from flcog.core.text import markdown, seconds

MOST_ROWS = 12

MOST_LETTERS = 70
"""Longer names are cut off: the C++ name of a kernel with its template arguments may have a thousand letters."""


def check_trace(path: str) -> None:
    """Refuse the path of a trace if its folder does not exist, or if it is a folder itself."""
    if Path(path).is_dir():
        raise ValueError(f"profile={path} is a folder: give a file for the trace, such as {Path(path, 'trace.json')}")
    if not Path(path).absolute().parent.is_dir():
        raise ValueError(
            f"profile={path}: there is no folder {Path(path).parent} to write the trace to; make it, or give another path"
        )


def profile_round(trainer: Any, path: str) -> None:
    """Train one more round under torch's profiler. Every process trains it, the first one writes and prints.

    Args:
        trainer: a prepared trainer after its first round.
        path: the file of the trace.
    """
    is_first, on_gpu = trainer.run.processes.is_first, trainer.run.processes.device.type == "cuda"
    activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if on_gpu else [])]
    began = time.perf_counter()
    # Without this, threads that run clients side by side would not be counted.
    everywhere = _ExperimentalConfig(profile_all_threads=True)
    # With acc_events, torch does not warn of later cycles, of which there are none.
    with (
        profile(activities=activities, experimental_config=everywhere, acc_events=True) if is_first else nullcontext() as profiler
    ):
        trainer.train_round()
        wait_for_device(trainer.run.processes.device)
    took = time.perf_counter() - began
    if profiler is not None:
        profiler.export_chrome_trace(path)
        print(f"one round took {seconds(took)} under the profiler; its trace is in {path}: open it in https://ui.perfetto.dev")
        executor = trainer.run.engine.clients.executor
        side_by_side = executor.clients_at_once if executor.name == "loop" else 1
        print(table(profiler.key_averages(), took * side_by_side, on_gpu))


def table(events: Any, took: float, on_gpu: bool = False) -> str:
    """Format the slowest operations by their own time, the sum of the others, and the time outside torch, mostly in Python.

    Args:
        events: torch's averages by operation.
        took: seconds of the round, times the number of threads that run clients side by side.
        on_gpu: whether to count kernels' time on the GPU instead of operations' time on the CPU.
    """
    if on_gpu:  # the operation on the CPU that launched a kernel would count the kernel's time again
        events = [event for event in events if event.device_type != DeviceType.CPU and not event.is_user_annotation]
    attribute = "self_device_time_total" if on_gpu else "self_cpu_time_total"
    times = sorted(((getattr(event, attribute) / 1e6, event.key, event.count) for event in events), reverse=True)
    inside = sum(spent for spent, _, _ in times)
    rest = max(0.0, took - inside)
    shown, others = times[:MOST_ROWS], times[MOST_ROWS:]
    rows = [(name, spent, str(calls)) for spent, name, calls in shown if spent]
    rows += [("all other operations", sum(spent for spent, _, _ in others), str(sum(calls for _, _, calls in others)))]
    rows += [("no operation running" if on_gpu else "Python, and waiting", rest, "")]
    return markdown(
        ["operation", "time", "share", "calls"],
        ((_brief(name), seconds(spent), f"{spent / (inside + rest):.1%}", calls) for name, spent, calls in rows),
    )


def _brief(name: str) -> str:
    name = name.removeprefix("void ")
    return name if len(name) <= MOST_LETTERS else f"{name[: MOST_LETTERS - 1]}…"
