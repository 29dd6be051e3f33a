"""Builds the placement and the steps that a choice names."""

import torch

from flcog.apply import ModelFunction
from flcog.client.executor import Choice, Placement
from flcog.execute.batched import Batched
from flcog.execute.batched_layers import batched_layers
from flcog.execute.compiled_steps import CompiledSteps
from flcog.execute.graphs import Graphs
from flcog.execute.job import Job
from flcog.execute.one_client import OneClient
from flcog.execute.own_steps import OwnSteps
from flcog.execute.plain_steps import PlainSteps
from flcog.execute.programs import Programs
from flcog.execute.sequential import Sequential
from flcog.execute.stacked_clients import StackedClients
from flcog.execute.streams import Streams
from flcog.execute.threads import Threads
from flcog.execute.trainer import ClientTrainer
from flcog.method import Notes


def make_placement(job: Job, choice: Choice, notes: Notes) -> Placement:
    """The placement and the steps that a choice names.

    Args:
        job: describes the model and the clients.
        choice: which placement and which steps.
        notes: receives a note with the time that compiling took.
    """
    if choice.name != "loop":
        return _batched(job, choice, notes)
    if choice.compiled == "graphs":
        graphs = Graphs(notes, compiles=False)
        steps = CompiledSteps(job.model, job.optimizer, graphs, 1, job.rows, lanes=choice.clients_at_once)
        return Streams(StackedClients(job.model, job.optimizer, steps), steps, choice.clients_at_once)
    programs = Programs(notes)

    def make(model: ModelFunction, optimizer: torch.optim.Optimizer, seeds_torch: bool, own_steps: OwnSteps) -> ClientTrainer:
        if not choice.compiled:
            return OneClient(model, optimizer, seeds_torch, own_steps)
        steps = CompiledSteps(model, optimizer, programs, 1, job.rows)
        return StackedClients(model, optimizer, steps, seeds_torch=seeds_torch, own_steps=own_steps)

    if choice.clients_at_once == 1:
        return Sequential(make(job.model, job.optimizer, True, OwnSteps()))
    threads_each = max(1, torch.get_num_threads() // choice.clients_at_once)
    return Threads(job.model, job.optimizer, choice.clients_at_once, threads_each, make)


def _batched(job: Job, choice: Choice, notes: Notes) -> Batched:
    """A placement that trains chunks of stacked clients."""
    layers, chunk = batched_layers(job.model, choice.name == "vmap-patches"), choice.clients_at_once
    if choice.compiled:
        programs = Graphs(notes) if choice.compiled == "graphs" else Programs(notes)
        compiled = CompiledSteps(job.model, job.optimizer, programs, chunk, job.rows, layers)
        return Batched(StackedClients(job.model, job.optimizer, compiled, layers), chunk, choice.name)
    steps = PlainSteps(job.model, job.optimizer, layers)
    return Batched(StackedClients(job.model, job.optimizer, steps, layers), chunk, choice.name)
