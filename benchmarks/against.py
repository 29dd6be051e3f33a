"""Times flcog's rounds against other frameworks, which train the same rounds in turn, each in its own program.

    python benchmarks/against.py -c configs/speed/simple-cnn.yaml --frameworks pfl,batched,flower=/path/to/python

It takes the options of ``flcog bench``. Each framework trains the same clients, batches, model and optimiser, without methods,
augmentation or schedules, and first shows that its first round ends at the bare loop's model.
"""

import functools
import inspect
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from job import ContenderJob, save
from program import program_of
from torch import Tensor

from flcog.commands.bench.bare import BareLoop
from flcog.commands.bench.batches import Batches
from flcog.commands.bench.command import Rival, time_rounds
from flcog.commands.federated_cli import CommandCLI
from flcog.core.commands import TrainerCommand
from flcog.core.fabric import num_cores


def against(
    trainer: Any,
    model: Any,
    datamodule: Any,
    frameworks: str = "pfl,flower,batched",
    repeats: int = 5,
    seconds: float = 60.0,
    vary: dict[str, Any] | None = None,
    save: str | None = None,
) -> None:
    """Time the config's rounds against a bare PyTorch loop and other frameworks.

    Args:
        frameworks: pfl (Apple's pfl-research, in as many processes as flcog), flower (its simulation on Ray, an actor for each core) and
            batched (one model that is trained on as many samples in batches of 512, at the device's maximum speed), several with
            commas. Give pfl=/path/to/python if it is installed for another Python. A framework that is not installed is left out.
        repeats, seconds, vary, save: as for ``flcog bench``.
    """
    wanted = interpreters(frameworks)
    time_rounds(trainer, model, datamodule, repeats, seconds, vary, save, functools.partial(rivals, trainer, wanted))


@contextmanager
def rivals(trainer: Any, wanted: dict[str, str], bare: BareLoop, clients: list[int]) -> Iterator[Sequence[Rival]]:
    """Start the wanted frameworks, each with its Python interpreter, and train the round that the bare loop has trained.

    Args:
        trainer: prepared.
        wanted: the Python interpreter of each framework.
        bare: the bare loop after its first round.
        clients: of that round.
    """
    found: list[Rival] = []
    with ExitStack() as stack:
        if BATCHED in wanted:
            found.append(OneModel(trainer, bare.batches, bare.structure))
        frameworks = {name: python for name, python in wanted.items() if name != BATCHED}
        if frameworks:
            before = {name: value.detach() for name, value in trainer.run.model.module.named_parameters() if value.requires_grad}
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="flcog-bench-", ignore_cleanup_errors=True)))
            job = job_of(trainer, bare.batches)
            save(folder, job, program_of(trainer.run.model.module, next(bare.batches.of(0, clients[0])), bare.structure))
        for name, python in frameworks.items():
            contender = stack.enter_context(started(name, python, folder, job))
            answer = contender.heard()
            if "missing" in answer:
                print(left_out(name, python, answer["missing"]))
                continue
            contender.round(0, clients, keep=folder / "model.pt")
            print(f"{name}: {answer['ready']}; {compared(folder / 'model.pt', bare, before)}")
            found.append(contender)
        yield found


class OneModel(BareLoop):
    """Trains one model on the samples of a round's clients in large batches, at the device's maximum speed."""

    name = "batched"
    large = 512
    """The number of samples in a large batch."""

    def _train(self, number: int, clients: list[int]) -> None:
        self._steps(self.server, self._large_batches(number, clients))

    def _large_batches(self, number: int, clients: list[int]) -> Iterator[list[Tensor]]:
        parts, rows = list[list[Tensor]](), 0
        for client in clients:
            for leaves in self.batches.of(number, client):
                parts.append(leaves)
                rows += len(leaves[0])
                if rows >= self.large:
                    yield [torch.cat(leaf) for leaf in zip(*parts, strict=True)]
                    parts, rows = [], 0
        if parts:
            yield [torch.cat(leaf) for leaf in zip(*parts, strict=True)]


@dataclass(frozen=True)
class Peer:
    """Another framework.

    Args:
        contender: the file beside this one that runs it.
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

GRACE = 20.0
"""A contender must end within these seconds. Ray needs a few."""


def interpreters(frameworks: str) -> dict[str, str]:
    """Return the Python interpreter of each framework, by the framework's name.

    Args:
        frameworks: the option's value: ``pfl,flower,batched``, or ``pfl=/path/to/python``.

    >>> interpreters("pfl") == {"pfl": sys.executable}
    True
    >>> interpreters("pfl,tff")  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    ValueError: frameworks: 'tff' is not known; give pfl, flower or batched, several with commas, and NAME=PYTHON for a framework ...
    """
    chosen: dict[str, str] = {}
    for part in frameworks.split(","):
        name, _, python = (word.strip() for word in part.partition("="))
        if name not in PEERS and part.strip() != BATCHED:
            raise ValueError(
                f"frameworks: {part.strip()!r} is not known; give {', '.join(PEERS)} or {BATCHED}, several with commas, and NAME=PYTHON "
                "for a framework that is installed in another Python"
            )
        if python and shutil.which(python) is None:
            raise ValueError(f"frameworks: found no program {python} for {name}: give the path of its Python")
        chosen[name] = python or sys.executable
    return chosen


def job_of(trainer: Any, batches: Batches) -> ContenderJob:
    """Return the job for contenders: the trainer's clients, its optimiser and its device."""
    precision, optimizer = trainer.settings.precision, trainer.run.model.module.configure_optimizers()
    if precision not in ("32-true", "64-true"):
        raise ValueError(f"trainer.precision={precision} is not supported by the other frameworks; give 32-true or 64-true")
    kind = type(optimizer)
    if getattr(torch.optim, kind.__name__, None) is not kind or len(optimizer.param_groups) != 1:
        raise ValueError(
            f"the other frameworks need an optimizer of torch.optim with one group of parameters; got {kind.__name__} with "
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
            raise ValueError(f"{self.name} ended ({reason}): leave it out of --frameworks")
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
            [python, *launcher, str(Path(__file__).with_name("contend.py")), peer.contender, str(folder)],
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
        ours["PYTHONPATH"] = str(Path(inspect.getfile(Batches)).parent)
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
        f"Python: --frameworks {name}=/path/to/python"
    )


SAME_MODEL = 0.01
"""The greatest distance of two models after a round that rounding errors explain, relative to their update."""


def compared(kept: Path, bare: BareLoop, before: dict[str, Tensor]) -> str:
    """Say whether the model that a contender kept is the bare loop's after the same round. ``before`` it, both had these parameters."""
    state = {name.removeprefix("module."): value for name, value in torch.load(kept, map_location="cpu").items()}
    distance = apart(state, {name: value.detach() for name, value in bare.server.named_parameters()}, before)
    if distance <= SAME_MODEL:
        return f"a round ends at the bare loop's model ({distance:.0e} of the way apart)"
    return f"a round ends elsewhere than the bare loop's ({distance:.0e} of the way apart): the network draws random numbers, or is chaotic"


def apart(state: dict[str, Tensor], other: dict[str, Tensor], before: dict[str, Tensor]) -> float:
    """Return the distance of two models after a round, relative to the second model's update."""
    names = state.keys() & other.keys()
    between = sum(float((state[name].cpu().double() - other[name].cpu().double()).square().sum()) for name in names)
    way = sum(float((before[name].cpu().double() - other[name].cpu().double()).square().sum()) for name in names)
    return float((between / way) ** 0.5) if way else float(between > 0)


if __name__ == "__main__":
    CommandCLI(["against", *sys.argv[1:]], TrainerCommand("against", "against:against"))
