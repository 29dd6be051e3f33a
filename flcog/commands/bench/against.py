"""``flcog bench --against``: other frameworks train the same rounds in turn, each in its own program."""

import inspect
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from flcog.commands.bench.contenders.job import Batches, ContenderJob
from flcog.core.fabric import num_cores


@dataclass(frozen=True)
class Peer:
    """Another framework.

    Args:
        contender: the file in ``contenders`` that runs it.
        packages: the names for pip.
        many_processes: whether torchrun starts it in as many processes as flcog. Otherwise it starts its own.
    """

    contender: str
    packages: str
    many_processes: bool = False


PEERS = {
    "pfl": Peer("pfl_backend", "'pfl[pytorch]'", many_processes=True),
    "flower": Peer("flower_simulation", "'flwr[simulation]' torch"),
}

BATCHED = "batched"
"""The contender without a framework: one model that is trained on the same samples in this process."""

CONTENDERS = Path(__file__).parent / "contenders"

GRACE = 20.0
"""A contender must end within these seconds. Ray needs a few."""


def interpreters(against: str) -> dict[str, str]:
    """Return the Python interpreter of each framework, by the framework's name.

    Args:
        against: the option's value: ``pfl,flower,batched``, or ``pfl=/path/to/python``.

    >>> interpreters("pfl") == {"pfl": sys.executable}
    True
    >>> interpreters("pfl,tff")  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    ValueError: against: 'tff' is not known; give pfl, flower or batched, several with commas, and NAME=PYTHON for a framework ...
    """
    chosen: dict[str, str] = {}
    for part in against.split(","):
        name, _, python = (word.strip() for word in part.partition("="))
        if name not in PEERS and part.strip() != BATCHED:
            raise ValueError(
                f"against: {part.strip()!r} is not known; give {', '.join(PEERS)} or {BATCHED}, several with commas, and NAME=PYTHON for "
                "a framework that is installed in another Python"
            )
        if python and shutil.which(python) is None:
            raise ValueError(f"against: found no program {python} for {name}: give the path of its Python")
        chosen[name] = python or sys.executable
    return chosen


def job_of(trainer: Any, batches: Batches) -> ContenderJob:
    """Return the job for contenders: the trainer's clients, its optimiser and its device."""
    precision, optimizer = trainer.settings.precision, trainer.run.model.module.configure_optimizers()
    if precision not in ("32-true", "64-true"):
        raise ValueError(
            f"against: trainer.precision={precision} is not supported by the other frameworks; give 32-true or 64-true"
        )
    kind = type(optimizer)
    if getattr(torch.optim, kind.__name__, None) is not kind or len(optimizer.param_groups) != 1:
        raise ValueError(
            f"against: the other frameworks need an optimizer of torch.optim with one group of parameters; got {kind.__name__} with "
            f"{len(getattr(optimizer, 'param_groups', []))}"
        )
    group = optimizer.param_groups[0]
    # Defaults are left out, because another version of torch may not know these options.
    changed = {
        name: group[name]
        for name, option in inspect.signature(kind).parameters.items()
        if name == "lr" or (name != "params" and name in group and group[name] != option.default)
    }
    return ContenderJob(
        batches,
        cohort=len(trainer.sample(0)),
        optimizer=kind.__name__,
        options=changed,
        device=trainer.fabric.device.type,
        processes=trainer.run.processes.count,
        cores=num_cores(),
    )


class Contender:
    """A framework's program, which waits for its turn.

    Args:
        name: the framework's name.
        process: the program, with pipes for input and output.
        log: its other output.
    """

    def __init__(self, name: str, process: subprocess.Popen[str], log: Path) -> None:
        self.name, self._process, self._log = name, process, log

    def round(self, number: int, clients: list[int], keep: Path | None = None) -> float:
        """Seconds that a round of these clients takes.

        Args:
            number: the round's number.
            clients: the round's clients.
            keep: a file for the program's state after the round.
        """
        assert self._process.stdin is not None
        request = {"round": number, "clients": clients, "keep": None if keep is None else str(keep)}
        with suppress(BrokenPipeError):  # it has ended, and has printed the reason
            self._process.stdin.write(json.dumps(request) + "\n")
            self._process.stdin.flush()
        return float(self.heard()["seconds"])

    def heard(self) -> dict[str, Any]:
        """Return its next answer."""
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        answer: dict[str, Any] = json.loads(line) if line else {"error": self._last_words()}
        if "error" in answer:
            reason = " ".join(answer["error"].split())
            raise ValueError(f"against: {self.name} ended ({reason}): leave it out of --against")
        return answer

    def _last_words(self) -> str:
        lines = [line for line in self._log.read_text(errors="replace").splitlines() if line.strip()]
        return lines[-1] if lines else "it said nothing"

    def end(self) -> None:
        """Close its input, which makes it end. Otherwise kill it and its child processes."""
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):
            self._process.stdin.close()
        try:
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(GRACE)
        finally:  # waiting may be interrupted
            if self._process.poll() is None:
                os.killpg(self._process.pid, signal.SIGKILL)
                self._process.wait()


@contextmanager
def started(name: str, python: str, folder: Path, job: ContenderJob) -> Iterator[Contender]:
    """Start a framework's program in its Python interpreter. It reads the job from the folder."""
    peer = PEERS[name]
    torchrun = ["-m", "torch.distributed.run", "--standalone", f"--nproc_per_node={job.processes}"]
    launcher = torchrun if peer.many_processes and job.processes > 1 else []
    log = folder / f"{name}.log"
    with log.open("w") as errors:
        process = subprocess.Popen(
            [python, *launcher, str(CONTENDERS / "contend.py"), peer.contender, str(folder)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            env=environment(python, folder, job),
            start_new_session=True,  # the bench handles Ctrl-C and ends it
        )
    contender = Contender(name, process, log)
    try:
        yield contender
    finally:
        contender.end()


OF_OUR_PROCESSES = ("RANK", "WORLD_SIZE", "LOCAL_", "MASTER_", "NODE_RANK", "GROUP_", "ROLE_", "TORCHELASTIC_")
"""Environment variables of our own processes, which a contender would mistake for its own."""


def environment(python: str, folder: Path, job: ContenderJob) -> dict[str, str]:
    """Return a contender's environment: ours without variables of our processes."""
    ours = {name: value for name, value in os.environ.items() if not name.startswith(OF_OUR_PROCESSES)}
    if python != sys.executable:
        ours.pop("PYTHONPATH", None)
    if job.device == "cpu":
        ours["CUDA_VISIBLE_DEVICES"] = ""
    if job.device != "cuda":  # of GPUs, pfl gives each process its own
        ours["PFL_PYTORCH_DEVICE"] = job.device
    # A bench sends no telemetry.
    return ours | {"FLWR_TELEMETRY_ENABLED": "0", "FLWR_HOME": str(folder), "RAY_USAGE_STATS_ENABLED": "0"}


def left_out(name: str, python: str, reason: str) -> str:
    """Return the message for a framework that is not installed."""
    return (
        f"{name} is left out, for {python} does not have it ({reason}): pip install {PEERS[name].packages}, or name another "
        f"Python: --against {name}=/path/to/python"
    )


def apart(state: dict[str, Tensor], other: dict[str, Tensor], before: dict[str, Tensor]) -> float:
    """Return the distance of two models after a round, relative to the second model's update."""
    names = state.keys() & other.keys()
    between = sum(float((state[name].cpu().double() - other[name].cpu().double()).square().sum()) for name in names)
    way = sum(float((before[name].cpu().double() - other[name].cpu().double()).square().sum()) for name in names)
    return float((between / way) ** 0.5) if way else float(between > 0)
