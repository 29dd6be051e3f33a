"""Builds the placement and the steps that a choice names."""

from collections.abc import Sequence
from contextlib import nullcontext

import torch

from flcog.client.executor import Choice
from flcog.execute.batched import Batched
from flcog.execute.batched_layers import batched_layers
from flcog.execute.compiled_steps import CompiledSteps
from flcog.execute.graphs import Graphs
from flcog.execute.job import Job
from flcog.execute.one_client import OneClient
from flcog.execute.plain_steps import PlainSteps, Steps
from flcog.execute.programs import Programs
from flcog.execute.sequential import Sequential
from flcog.execute.stacked_clients import StackedClients
from flcog.execute.streams import Streams
from flcog.execute.threads import Threads
from flcog.execute.trainer import ClientTrainer, Learner
from flcog.method import Notes

AnyPlacement = Sequential | Threads | Batched | Streams
"""A placement with its ``trainer``, whose steps may be compiled."""


def make_placement(job: Job, choice: Choice, notes: Notes, logs: Sequence[str] = ()) -> AnyPlacement:
    """The placement and the steps that a choice names.

    Args:
        job: describes the model and the clients.
        choice: which placement and which steps.
        notes: receives a note with the time that compiling took.
        logs: the columns that a module's own step logs. The sums of compiled steps must exist before the first step.
    """
    name, at_once, compiled = choice
    if name == "lightning":
        return Sequential(job.lightning(Learner(job.model, job.client.optimizer)), name)
    layers = nullcontext if name == "loop" else batched_layers(job.model, name == "vmap-patches")
    learner = Learner(job.model, job.client.optimizer, layers, logs=logs if compiled and job.model.trains_itself else ())
    if name != "loop":
        programs = Graphs(notes) if compiled == "graphs" else Programs(notes)
        steps: Steps = CompiledSteps(learner, programs, at_once, job.rows) if compiled else PlainSteps(learner)
        return Batched(StackedClients(learner, steps), at_once, name)
    if compiled == "graphs":
        lanes = CompiledSteps(learner, Graphs(notes), 1, job.rows, at_once)
        return Streams(StackedClients(learner, lanes), lanes, at_once)
    programs = Programs(notes)

    def make(learner: Learner) -> ClientTrainer:
        if not compiled:
            return OneClient(learner)
        return StackedClients(learner, CompiledSteps(learner, programs, 1, job.rows))

    if at_once == 1:
        return Sequential(make(learner))
    return Threads(learner, at_once, max(1, torch.get_num_threads() // at_once), make, job.client.hooked)
