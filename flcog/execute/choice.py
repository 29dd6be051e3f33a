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
from flcog.execute.job import Job, activation_bytes
from flcog.execute.optimizer import ELEMENTWISE
from flcog.execute.placements import AnyPlacement, make_placement
from flcog.execute.probe import Findings, probe
from flcog.method import Note, Notes
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
    """

    def __init__(self, job: Job, wanted: Wanted, notes: Notes, processes: Processes) -> None:
        self._job, self._wanted, self._notes = job, wanted, notes
        self._findings = Findings()
        choice, why = processes.agree(self._chosen())
        self._lightning = make_placement(job, Choice("lightning", 1), notes)
        self.placement: AnyPlacement = self._lightning
        if choice.name != "lightning":
            self.placement = make_placement(self._job, choice, notes, self._findings.logs)
        self._may_fail = choice.name.startswith("vmap")
        notes.add(Note("executor", f"{choice}{f' ({why})' if why else ''}"))

    def _chosen(self) -> tuple[Choice, str]:
        """The choice, and its reason."""
        wanted, auto = self._wanted, self._wanted == "auto"
        if wanted == "lightning" or self._job.client.reason:
            return Choice("lightning", 1), self._job.client.reason
        self._leave_uncompiled(self._obstacle(to_compiling=True))
        job, obstacle = self._job, ""
        if wanted != "loop" and not (obstacle := self._obstacle()):
            choice = Choice("vmap" if auto else wanted, _chunk(job, patches=wanted == "vmap-patches"), job.compile)
            if not (obstacle := self._probed(choice)):
                self._leave_uncompiled(self._draw)
                small, shared = (
                    "a small model: a step's Python outweighs its arithmetic",
                    "clients share the accelerator's kernels",
                )
                why = [(small if job.on_cpu else shared) * auto, self._tip()]
                return choice._replace(compiled=self._job.compile), "; ".join(filter(None, why))
        if wanted.startswith("vmap"):
            warnings.warn(f"executor={wanted} falls back to loop: {obstacle}", stacklevel=3)
        return self._loop(obstacle)

    def _loop(self, why: str) -> tuple[Choice, str]:
        """One client after another, or several on the cores of a CPU or on a GPU's streams, where kernels take longer than Python."""
        job, on_streams, at_once = self._job, self._job.compile == "graphs", min(self._job.chunk_size or 1, self._job.clients)
        if on_streams:
            at_once = min(job.chunk_size or STREAMS, job.clients)
        elif job.chunk_size is None and job.on_cpu and job.model.convolves:
            turns = -(-job.clients // min(torch.get_num_threads(), MOST_AT_ONCE))
            at_once = -(-job.clients // turns)
        on_threads = at_once > 1 and not on_streams
        apart = self._obstacle_to_threads() if on_threads else ""
        fault = self._probed(Choice("loop", 1 if apart else at_once, job.compile))
        if fault and job.model.trains_itself:
            return Choice("lightning", 1), fault
        apart = apart or fault or (self._draw if on_threads else "")
        self._leave_uncompiled(fault or self._draw)
        choice = Choice("loop", 1 if apart else at_once, self._job.compile)
        return choice, "; ".join(filter(None, [apart, why, self._tip()]))

    def _probed(self, choice: Choice) -> str:
        """Why the clients cannot train in this placement. A client module that trains alone is pure by contract."""
        job = self._job
        if choice == Choice("loop", 1) and not job.model.trains_itself and not _captures(job.device):
            return ""
        self._findings = probe(job, choice)
        job.model.reads_other_rows = job.model.reads_other_rows or self._findings.mixes
        return self._findings.fault

    def _obstacle(self, to_compiling: bool = False) -> str:
        """Why clients are not batched, or steps not compiled."""
        job, auto = self._job, self._wanted == "auto"
        if type(job.client.optimizer) not in ELEMENTWISE:
            return f"{type(job.client.optimizer).__name__} is no elementwise optimiser"
        if (auto or to_compiling) and job.reader.whole_batches:
            return "clients' batches may have different shapes"
        if to_compiling and job.compile == "graphs" and not _captures(job.device):
            return f"CUDA graphs need a CUDA device, this run is on {job.device.type}"
        if to_compiling:
            return "hooks between rounds may change the module, which a program would not see" if job.client.hooked else ""
        constants = sum(constant.numel() for constant in job.model.constants.values())
        if auto and job.on_cpu and (job.model.convolves or (job.num_params + constants) * job.rows > SMALL_STEP):
            return "on a CPU batching clients pays only for small models without convolutions"
        return ""

    def _obstacle_to_threads(self) -> str:
        if not self._job.on_cpu:
            return f"threads share out the cores of a CPU; this run is on {self._job.device.type}"
        if self._job.reader.source is not None and self._job.reader.source.draws_here:
            return "samples are read in this process, whose random streams they share (num_workers above 0 gives them their own)"
        return ""

    def _leave_uncompiled(self, obstacle: str) -> None:
        if obstacle and self._job.compile:
            text = f"trainer.compile={self._job.compile} is left out, local steps run uncompiled: {obstacle}"
            warnings.warn(text, stacklevel=4)
            self._job = dataclasses.replace(self._job, compile=False)

    @property
    def _draw(self) -> str:
        """From which global streams a step draws; empty if it draws nothing."""
        step = f"{type(self._job.model.module).__name__}.training_step" if self._job.model.trains_itself else "the model"
        return f"{step} {draws_from(list(self._findings.draws))}" if self._findings.draws else ""

    def _tip(self) -> str:
        """The advice to capture the local steps, on a GPU where that is possible; otherwise an empty string."""
        able = not self._job.compile and _captures(self._job.device) and not self._findings.draws
        return "trainer.compile=graphs is often several times faster" if able and not self._obstacle(to_compiling=True) else ""

    @property
    def name(self) -> str:
        return self.placement.name

    @property
    def clients_at_once(self) -> int:
        return self.placement.clients_at_once

    @property
    def compiled(self) -> Compile:
        return self.placement.trainer.compiled

    def run(self, assignment: Assignment) -> Generator[Result, None, None]:
        if not all(value.requires_grad for value in self._job.model.params.values()):
            return self._lightning.run(assignment)
        return self._run_or_fall_back(assignment) if self._may_fail else self.placement.run(assignment)

    def _run_or_fall_back(self, assignment: Assignment) -> Generator[Result, None, None]:
        """The results of a batched program that has not run yet, or of the loop."""
        results, first, reason = self.placement.run(assignment), None, ""
        try:
            first = next(results, None)
        except RuntimeError as error:
            reason = first_line(error)
        if reason:  # the error keeps the chunk's tensors alive until the block above has ended
            self.placement = make_placement(self._job, Choice("loop", 1), self._notes)
            results = self.placement.run(assignment)
            first = next(results, None)
            self._notes.add(Note("executor", f"loop, 1 client at a time ({reason})"))
            warnings.warn(f"executor=vmap falls back to loop: this model or method cannot be vectorised ({reason})", stacklevel=2)
        self._may_fail = False
        if first is not None:
            yield first
            yield from results


def _captures(device: torch.device) -> bool:
    """Whether the device has CUDA graphs."""
    return device.type == "cuda"


def _chunk(job: Job, patches: bool) -> int:
    """The number of clients in a batched program: the user's, or as many as fit into memory.

    A program needs a fixed number of clients, so all chunks of compiled steps are as equal as possible.
    """
    most = job.chunk_size
    if most is None:
        bytes_per_client = 16 * job.num_params + 8 * num_bytes(job.reader.example) * job.batch_size
        if not job.on_cpu:
            bytes_per_client += activation_bytes(job, patches)
        most = max(1, min(256, job.memory // max(1, bytes_per_client)))
    return -(-job.clients // -(-job.clients // most)) if job.compile else most
