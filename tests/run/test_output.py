"""A run continues if its output cannot be written."""

import sys
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any

import pytest
from harness import fit

import flcog
from flcog.core.output import never_failing
from flcog.run.directory import LAST


class Broken:
    """A stream that fails like a closed pipe, a full disk or a closed file."""

    encoding = "utf-8"

    def __init__(self, error: Exception) -> None:
        self.error = error

    def write(self, text: str) -> int:
        raise self.error

    def flush(self) -> None:
        raise self.error


class Prints(flcog.Callback):
    """A user's own observer, which prints."""

    def on_round_end(self, run: Any, round: int, metrics: Any) -> None:
        print("my own line", flush=True)
        print("and to the error stream", file=sys.stderr, flush=True)


@pytest.mark.parametrize(
    "error", [BrokenPipeError(), OSError(28, "No space left on device"), ValueError("closed file")], ids=repr
)
def test_a_failing_print_costs_no_round(error: Exception, tmp_path: Path) -> None:
    broken = Broken(error)
    with redirect_stdout(broken), redirect_stderr(broken):
        trainer = fit(tmp_path, Prints(), rounds=3)
        assert sys.stdout is broken and sys.stderr is broken
    assert [row["round"] for row in trainer.history] == [1, 2, 3]
    assert trainer.run_dir is not None and (trainer.run_dir / LAST).is_file()


def test_letters_that_a_terminal_lacks_are_escaped(tmp_path: Path) -> None:
    with (tmp_path / "ascii.txt").open("w", encoding="ascii") as file, pytest.MonkeyPatch.context() as patch:
        patch.setattr("sys.stdout", file)
        with never_failing():
            print("é")
    assert (tmp_path / "ascii.txt").read_text() == "\\xe9\n"
