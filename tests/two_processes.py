"""Run a function of a test module on one process and on two, to compare the results."""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from harness import TESTS

PROCESS = """
import sys
sys.path.insert(0, {tests!r})
from {module} import {function}
{function}(*sys.argv[2:], devices=int(sys.argv[1]))
"""


def on_one_and_two_processes(function: Callable[..., None], folder: Path, *arguments: str) -> list[Any]:
    """The results of a function on one process and on two. The first process writes its result as JSON.

    Args:
        function: a function of a test module. It is called with the path of its result, ``arguments``, and the keyword ``devices``.
        folder: the folder for the script and the results.
        arguments: further arguments of the function.
    """
    script, ends = folder / "script.py", []
    script.write_text(PROCESS.format(tests=str(TESTS), module=function.__module__, function=function.__name__))
    for devices in ("1", "2"):
        end = folder / f"{devices}.json"
        words = [sys.executable, str(script), devices, str(end), *arguments]
        done = subprocess.run(words, capture_output=True, timeout=300, text=True)
        assert done.returncode == 0, done.stderr[-2000:]
        ends.append(json.loads(end.read_text()))
    return ends
