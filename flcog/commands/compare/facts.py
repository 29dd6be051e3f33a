"""The facts about a run beside its evaluations: its costs, and its origin (code, machine, command, settings)."""

import math
import re
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from flcog import SavedRun
from flcog.commands.compare.plan import Cell
from flcog.commands.compare.resolved import digest, own_classes
from flcog.commands.compare.settings_of_runs import other_settings, run_settings
from flcog.core.speed import speed_of
from flcog.core.waiting import share_of_waiting

History = Sequence[Mapping[str, float]]
"""The rows of a ``metrics.csv``."""

UNKNOWN = "unknown"
"""The commit of a run outside a git repository."""


@dataclass(frozen=True)
class Facts:
    """The costs of a run and its origin.

    Args:
        rounds: the number of finished rounds.
        seconds: the time of all rounds, without evaluations.
        acting_seconds: the mean time of the rounds with all of the arm's methods.
        shared_rounds, shared_acting_rounds: the numbers of rounds, and of rounds with all methods, that another run trained and timed.
        trunk: the arm of that run, or empty.
        up_bytes: bytes from clients to server, including exchanges before the first round.
        total_bytes: bytes in both directions.
        waiting: the share of the rounds' time that the run's threads waited for a core that other programs used.
        calibration: the mean seconds of a fixed piece of work during the run, which measures the machine's speed; NaN if unknown.
        diverged: whether the run ended because its model became NaN or infinite.
        version, commit: of flcog; the commit is empty if flcog was not run from a clone.
        own_commit: of the working directory, or ``unknown``, if the settings name classes of the user's own; else empty.
        machine: the machine's system and number of processors.
        date: the day on which the run began.
        command: the command of the run.
        settings: the digest of its settings.
        other: the settings that are not the table's, or empty.
    """

    rounds: int = 0
    seconds: float = math.nan
    acting_seconds: float = math.nan
    shared_rounds: int = 0
    shared_acting_rounds: int = 0
    trunk: str = ""
    up_bytes: float = math.nan
    total_bytes: float = math.nan
    waiting: float = 0.0
    calibration: float = math.nan
    diverged: bool = False
    version: str = ""
    commit: str = ""
    own_commit: str = ""
    machine: str = ""
    date: str = ""
    command: str = ""
    settings: str = ""
    other: str = ""


def facts_of(cell: Cell, run: SavedRun) -> Facts:
    """The facts about a cell's run so far."""
    history, about = run.rows, run.description
    newest: Mapping[str, float] = history[-1] if history else {}  # none if the run diverged in round 1
    times = {row["round"]: row["time/round"] for row in history if "time/round" in row}
    first, last = about.get("acting_rounds") or (1, math.inf)
    acting = {round: took for round, took in times.items() if first <= round <= last}
    sent = [row["comm/up_bytes"] for row in history if "comm/up_bytes" in row]
    day = re.match(r"(\d{4})(\d\d)(\d\d)-", run.directory.name)
    machine, settings = about.get("machine") or {}, run_settings(cell)
    return Facts(
        rounds=int(newest.get("round", 0)),
        seconds=sum(times.values()) if history else math.nan,
        acting_seconds=statistics.fmean(acting.values()) if acting else math.nan,
        up_bytes=newest.get("comm/up_bytes_total", sum(sent) if sent else math.nan),  # private runs withhold bytes
        total_bytes=newest.get("comm/total_bytes", math.nan),
        waiting=share_of_waiting(history),
        calibration=speed_of(history),
        diverged=cell.files.source.diverged,
        version=str((about.get("packages") or {}).get("flcog") or ""),
        commit=str(about.get("flcog_commit") or ""),
        own_commit=str(about.get("git_commit") or UNKNOWN) if own_classes(settings) else "",
        machine=", ".join(f"{name} {value}" for name, value in machine.items()),
        date="-".join(day.groups()) if day else "",
        command=str(about.get("command") or ""),
        settings=digest(settings),
        other=other_settings(cell),
    )
