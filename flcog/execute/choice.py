"""Chooses how the clients run: in which placement, how many at a time, and why."""

import dataclasses
import warnings
from collections.abc import Generator
from typing import Literal

import torch

from flcog.client.executor import Assignment, Choice, Result
from flcog.core.global_streams import draws_from
from flcog.core.processes import Processes
from flcog.core.text import first_line
from flcog.core.trees import num_bytes
from flcog.execute.job import Job
from flcog.execute.memory import activation_bytes
from flcog.execute.optimizer import ELEMENTWISE
from flcog.execute.placements import AnyPlacement, make_placement
from flcog.execute.probe import Findings, probe
from flcog.method import ExecutorNote, Notes
from flcog.settings import Compile

Wanted = Literal["auto", "loop", "vmap", "vmap-patches", "lightning"]
"""The user's setting."""

SMALL_STEP = 5_000_000
"""The most multiply-adds per step of one client: below, batched fully connected models took at most 0.6 of the loop's time on a CPU."""

MOST_AT_ONCE = 8
"""The most clients that run side by side on a CPU. Up to a fifth of SimpleCNN's step on 64 images is Python, which runs on one thread
at a time."""

STREAMS = 4
"""The number of clients side by side on a GPU, each on a stream of its own. On an H100, a round of SimpleCNN took 0.26 s with one
stream and 0.21 s with two, four or eight."""


class ChosenExecutor:
    """Runs the clients in the placement that was chosen.

    torch has no error of its own for a program that cannot be batched. So if the first chunk of a batched program fails, because of a
    method's hook, clients run one after another from then on. If they fail, too, the user sees that error. A round for which a hook has
    frozen parameters runs in Lightning's loops.

    Args:
        job: describes the model and the clients.
        wanted: the user's setting.
        notes: receives the choice and its reason.
        processes: which must all make the same choice.
    """

    def __init__(self, job: Job, wanted: Wanted, notes: Notes, processes: Processes) -> None:
        self._job, self._wanted, self._notes = job, wanted, notes
        self._findings = Findings()
        choice, why = processes.agree(self._chosen())
        self._lightning = make_placement(job, Choice("lightning", 1), notes)
        # The number of clients depends on the memory that was free on the GPU.
        self._varies = choice.name.startswith("vmap") and not job.on_cpu and job.chunk_size is None
        self._may_fail = choice.name.startswith("vmap")
        self._place(choice, why)

    def _place(self, choice: Choice, why: str) -> None:
        faithful = choice.name == "lightning"
        self.placement: AnyPlacement = (
            self._lightning if faithful else make_placement(self._job, choice, self._notes, self._findings.logs)
        )
        self._notes.add(ExecutorNote(f"{choice}{f' ({why})' if why else ''}"))

    def _chosen(self) -> tuple[Choice, str]:
        """The choice, and its reason."""
        job, wanted = self._job, self._wanted
        if wanted == "lightning" or job.client.reason:
            return Choice("lightning", 1), job.client.reason
        obstacle = self._obstacle_to_batching() if wanted != "loop" else ""
        if not obstacle and wanted != "loop":
            most = _chunk(job, patches=wanted == "vmap-patches")
            choice = Choice("vmap" if wanted == "auto" else wanted, _evenly(job, most), self._compile(""))
            why = (
                "a small model: a step's Python outweighs its arithmetic"
                if job.on_cpu
                else "clients share the accelerator's kernels"
            )
            obstacle = self._probed(choice)
            if not obstacle:
                choice = choice._replace(compiled=self._compile(self._draw))
                return choice, "; ".join(filter(None, [why if wanted == "auto" else "", self._tip()]))
        if wanted.startswith("vmap"):
            warnings.warn(f"executor={wanted} falls back to loop: {obstacle}", stacklevel=3)
        return self._loop(obstacle)

    def _loop(self, why: str) -> tuple[Choice, str]:
        """One client after another, or several on the cores of a CPU or on a GPU's streams, where kernels take longer than Python."""
        job = self._job
        compiled, threads, at_once = self._compile(""), torch.get_num_threads(), min(job.chunk_size or 1, job.clients)
        if job.chunk_size is None and job.on_cpu and job.model.convolves:
            turns = -(-job.clients // min(threads, MOST_AT_ONCE))
            at_once = -(-job.clients // turns)
        if compiled == "graphs":
            at_once = min(job.chunk_size or STREAMS, job.clients)
        apart = self._obstacle_to_threads() if at_once > 1 and compiled != "graphs" else ""
        fault = self._probed(choice := Choice("loop", 1 if apart else at_once, compiled))
        if fault and job.model.trains_itself:
            return Choice("lightning", 1), fault
        apart = apart or fault or (self._draw if at_once > 1 and compiled != "graphs" else "")
        choice = Choice("loop", 1 if apart else at_once, self._compile(fault or self._draw))
        return choice, "; ".join(filter(None, [apart, why, self._tip()]))

    def _probed(self, choice: Choice) -> str:
        """Why the clients cannot train in this placement. A client module that trains alone is pure by contract."""
        job = self._job
        if choice == Choice("loop", 1) and not job.model.trains_itself and not _captures(job.device):
            return ""
        self._findings = probe(job, choice, lambda job, choice: make_placement(job, choice, Notes()))
        job.model.reads_other_rows = job.model.reads_other_rows or self._findings.mixes
        return self._findings.fault

    def _obstacle_to_batching(self) -> str:
        job, auto = self._job, self._wanted == "auto"
        if type(job.client.optimizer) not in ELEMENTWISE:
            return f"{type(job.client.optimizer).__name__} is no elementwise optimiser"
        if auto and job.reader.whole_batches:
            return "clients' batches may have different shapes"
        constants = sum(constant.numel() for constant in job.model.constants.values())
        if auto and job.on_cpu and (job.model.convolves or (job.num_params + constants) * job.rows > SMALL_STEP):
            return "on a CPU batching clients pays only for small models without convolutions"
        return ""

    def _obstacle_to_threads(self) -> str:
        if not self._job.on_cpu:
            return f"threads share out the cores of a CPU; this run is on {self._job.device.type}"
        if self._job.draws_here:
            return "samples are read in this process, whose random streams they share (num_workers above 0 gives them their own)"
        return ""

    @property
    def _draw(self) -> str:
        """From which global streams a step draws; empty if it draws nothing."""
        step = f"{type(self._job.model.module).__name__}.training_step" if self._job.model.trains_itself else "the model"
        return f"{step} {draws_from(list(self._findings.draws))}" if self._findings.draws else ""

    def _compile(self, obstacle: str) -> Compile:
        """How to compile local steps. A warning says why they are not compiled, or not captured, if the user wants that."""
        job = self._job
        if job.compile and type(job.client.optimizer) not in ELEMENTWISE:
            obstacle = f"{type(job.client.optimizer).__name__} is no elementwise optimiser"
        elif job.compile and job.reader.whole_batches:
            obstacle = "clients' batches may have different shapes"
        elif job.compile and job.client.hooked:
            obstacle = "hooks between rounds may change the module, and a program is compiled for its present attributes"
        if job.compile and obstacle:
            warnings.warn(f"trainer.compile={job.compile} is left out, local steps run uncompiled: {obstacle}", stacklevel=4)
            self._job = job = dataclasses.replace(job, compile=False)
        elif job.compile == "graphs" and not _captures(job.device):
            warnings.warn(
                f"trainer.compile=graphs: CUDA graphs need a CUDA device, this run is on {job.device.type}; local steps are compiled "
                "without them, as by trainer.compile=true",
                stacklevel=4,
            )
            self._job = job = dataclasses.replace(job, compile=True)
        return job.compile

    def _tip(self) -> str:
        """The advice to capture the local steps, on a GPU where that is possible; otherwise an empty string."""
        job = self._job
        able = type(job.client.optimizer) in ELEMENTWISE and not (
            job.reader.whole_batches or job.client.hooked or self._findings.draws
        )
        return (
            "trainer.compile=graphs is often several times faster" if able and not job.compile and _captures(job.device) else ""
        )

    @property
    def name(self) -> str:
        return self.placement.name

    @property
    def clients_at_once(self) -> int:
        return self.placement.clients_at_once

    @property
    def compiled(self) -> Compile:
        return self.placement.trainer.compiled

    @property
    def choice(self) -> Choice | None:
        return Choice(self.name, self.clients_at_once, self.compiled) if self._varies else None

    def settle(self, choice: Choice, why: str) -> None:
        if self._varies and choice != self.choice:
            self._place(choice, why)

    def run(self, assignment: Assignment) -> Generator[Result, None, None]:
        if not all(value.requires_grad for value in self._job.model.params.values()):
            yield from self._lightning.run(assignment)
        elif self._may_fail:
            yield from self._run_or_fall_back(assignment)
        else:
            yield from self.placement.run(assignment)

    def _run_or_fall_back(self, assignment: Assignment) -> Generator[Result, None, None]:
        """The results of a batched program that has not run yet, or of the loop."""
        results, first, reason = self.placement.run(assignment), None, ""
        try:
            first = next(results, None)
        except RuntimeError as error:
            reason = first_line(error)
        if reason:  # The loop starts after the block above, because the error keeps the chunk's tensors alive until it is gone.
            loop = make_placement(self._job, Choice("loop", 1), self._notes)
            results = loop.run(assignment)
            first = next(results, None)
            self.placement, self._varies = loop, False
            self._notes.add(ExecutorNote(f"loop, 1 client at a time ({reason})"))
            warnings.warn(f"executor=vmap falls back to loop: this model or method cannot be vectorised ({reason})", stacklevel=2)
        self._may_fail = False
        if first is not None:
            yield first
            yield from results


def _captures(device: torch.device) -> bool:
    """Whether the device has CUDA graphs."""
    return device.type == "cuda"


def _chunk(job: Job, patches: bool) -> int:
    """The number of clients in a batched program: the user's, or as many as fit into memory."""
    if job.chunk_size is not None:
        return job.chunk_size
    bytes_per_client = 16 * job.num_params + 8 * num_bytes(job.reader.example) * job.batch_size
    if not job.on_cpu:
        bytes_per_client += activation_bytes(job, patches)
    return max(1, min(256, job.memory // max(1, bytes_per_client)))


def _evenly(job: Job, most: int) -> int:
    """The chunk size that makes all chunks as equal as possible, if steps are compiled: a program needs a fixed number of clients.

    A chunk size from a checkpoint is taken as it is: after memory ran out it may be any number.
    """
    return -(-job.clients // -(-job.clients // most)) if job.compile else most
