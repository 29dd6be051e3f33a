"""Start functions of test modules in processes of their own, which start further processes themselves."""

import json
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from harness import TESTS

PROCESS = """
import sys
sys.path.insert(0, {tests!r})
import torch
torch.set_num_threads(1)  # with several threads, sums may be rounded otherwise
from {module} import {function}
{function}(*{arguments!r}, **{options!r})
"""


def started(function: Callable[..., None], folder: Path, *arguments: Any, **options: Any) -> subprocess.Popen[str]:
    """A process that calls a function of a test module with these arguments, which are numbers, texts or None.

    The script of the process lies in ``folder``, because the process starts it again for each further process of a run.
    """
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "script.py").write_text(
        PROCESS.format(
            tests=str(TESTS), module=function.__module__, function=function.__name__, arguments=arguments, options=options
        )
    )
    words = [sys.executable, str(folder / "script.py")]
    return subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def finish(process: subprocess.Popen[str]) -> None:
    output, _ = process.communicate(timeout=300)
    assert process.returncode == 0, output[-2000:]


def wait_for(condition: Callable[[], Any], seconds: float = 600.0) -> Any:
    """Wait until the condition is true, and return its value.

    A process that shares its core takes minutes to import torch, and a long limit delays no test that passes.
    """
    deadline = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < deadline, f"it did not happen within {seconds:g} s"
        time.sleep(0.05)
    return found


def rounds_done(root: Path) -> int:
    """The rounds in the table of the only run in a folder."""
    tables = list(root.glob("*/metrics.csv"))
    return len(tables[0].read_text().splitlines()) - 1 if tables else 0


def on_one_and_two_processes(function: Callable[..., None], folder: Path) -> list[Any]:
    """The results of a function on one process and on two.

    Args:
        function: a function of a test module. It is called with the path of its result, and the keyword ``devices``. The first process
            writes the result as JSON.
        folder: the folder for the scripts and the results.
    """
    for devices in (1, 2):
        finish(started(function, folder / str(devices), str(folder / f"{devices}.json"), devices=devices))
    return [json.loads((folder / f"{devices}.json").read_text()) for devices in (1, 2)]
