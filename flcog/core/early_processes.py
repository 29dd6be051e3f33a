"""Starts the other processes of a run while the first process still imports torch, so that all of them import at the same time.

An early process imports the command's modules and waits. When the first process launches the run, it sends its environment and
arguments, and the early process runs the command. It ends silently if it is not needed or if the first process ends.
"""

import importlib
import json
import os
import pkgutil
import re
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

STARTED_BY_OTHERS = ("LOCAL_RANK", "SLURM_NTASKS", "TORCHELASTIC_RUN_ID", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE")
"""Environment variables of programs that start all processes of a run themselves."""

OPTION = re.compile(r"(?:^|[\s.])(devices|processes_per_device)\s*[:=\s]\s*['\"]?(\d+)\b")


class _Waiting(NamedTuple):
    process: subprocess.Popen[Any]
    pipe: int
    """The pipe that receives the run's environment and arguments from the first process."""


_waiting: list[_Waiting] = []


def prepare(words: Sequence[str], imported: str, run: str) -> None:
    """Start the other processes that the command line and its config files ask for.

    Args:
        words: the command line.
        imported: the module that an early process imports immediately.
        run: the function without arguments that it calls later, as "module:function".
    """
    if any(name in os.environ for name in STARTED_BY_OTHERS):
        return
    for _ in range(min(number_of_processes(words), os.cpu_count() or 1) - 1):
        read, write = os.pipe()
        code = f"import sys; sys.path[:] = {sys.path!r}; from flcog.core import early_processes"
        code += f"; early_processes.wait({read}, {imported!r}, {run!r})"
        _waiting.append(_Waiting(subprocess.Popen([sys.executable, "-c", code], pass_fds=(read,)), write))
        os.close(read)


def number_of_processes(words: Sequence[str]) -> int:
    """The product of ``devices`` and ``processes_per_device`` if they are numbers. The last value of an option counts."""
    files = [Path(word.split("=", 1)[-1]) for word in words if word.endswith((".yaml", ".yml"))]
    texts = [file.read_text(errors="replace") for file in files if file.is_file()]
    found = {name: int(number) for text in (*texts, " ".join(words)) for name, number in OPTION.findall(text)}
    return found.get("devices", 1) * found.get("processes_per_device", 1)


def start(command: Sequence[str], env: Mapping[str, str], cwd: str | None = None) -> subprocess.Popen[Any]:
    """Run this program in a waiting process, or in a new process as ``subprocess.Popen`` does."""
    while _waiting and cwd is None:
        process, pipe = _waiting.pop()
        with os.fdopen(pipe, "w") as message:
            if process.poll() is None:
                json.dump({"env": dict(env), "argv": sys.argv, "cwd": os.getcwd()}, message)
                return process
    return subprocess.Popen(command, env=env, cwd=cwd)


def dismiss() -> None:
    """End the processes that are still waiting."""
    while _waiting:
        process, pipe = _waiting.pop()
        os.close(pipe)
        process.kill()
        process.wait()


def wait(pipe: int, imported: str, run: str) -> None:
    """Run as an early process: see :func:`prepare`."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # Ctrl-C ends it without a traceback
    importlib.import_module(imported)
    with os.fdopen(pipe) as message:
        text = message.read()
    if not text:
        return
    task = json.loads(text)
    os.environ.clear()
    os.environ.update(task["env"])
    os.chdir(task["cwd"])
    sys.argv[:] = task["argv"]
    signal.signal(signal.SIGINT, signal.default_int_handler)
    pkgutil.resolve_name(run)()
