"""Flower's simulation on Ray: ``FedAvg`` over as many supernodes as clients, an actor for each core, or four for each GPU."""

import time
from collections.abc import Iterable
from contextlib import suppress
from importlib.metadata import version
from typing import Any

import torch
from contend import Turns
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation
from job import ContenderJob, load

ENDLESS = 10**9
"""Rounds, and seconds that a round may take."""

ACTORS_ON_A_GPU = 4
"""Each holds a CUDA context and the data for itself."""


class NoFurtherRound(Exception):
    """Leaves Flower's loop over rounds, which has no other way out."""


def train(message: Message, context: Context) -> Message:
    """What a client does. ContenderJob and program are loaded once in each actor's process."""
    asked = message.content["config"]
    (job, program), round, client = load(asked["folder"]), asked["round"], asked["client"]
    torch.set_num_threads(max(1, job.cores // actors(job)))
    program.load_state_dict(message.content["arrays"].to_torch_state_dict())
    optimizer = job.new_optimizer(program.parameters())
    for batch in job.batches.of(round, client):
        optimizer.zero_grad()
        program(*batch).backward()
        optimizer.step()
    metrics = MetricRecord({"num-examples": job.batches.num_samples(client)})
    return Message(RecordDict({"arrays": ArrayRecord(program.state_dict()), "metrics": metrics}), reply_to=message)


class Rounds(FedAvg):
    """Flower's averaging, over the rounds and the clients that the bench asks for."""

    def __init__(self, turns: Turns, folder: str) -> None:
        super().__init__(fraction_evaluate=0.0)
        self.turns, self.folder = turns, folder

    def configure_train(self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid) -> Iterable[Message]:
        request = self.turns.next()
        if request is None:
            raise NoFurtherRound
        round, clients = request
        while len(nodes := list(grid.get_node_ids())) < len(clients):
            time.sleep(0.05)  # they register while the simulation starts
        return [
            Message(
                RecordDict({"arrays": arrays, "config": ConfigRecord({"folder": self.folder, "round": round, "client": client})}),
                message_type="train",
                dst_node_id=node,
            )
            for node, client in zip(nodes, clients, strict=False)
        ]

    def aggregate_train(self, server_round: int, replies: Iterable[Message]) -> Any:
        replies = list(replies)
        failed = next((reply for reply in replies if reply.has_error()), None)
        if failed is not None:
            raise RuntimeError(f"a client failed: {failed.error.reason}")
        return super().aggregate_train(server_round, replies)


def actors(job: ContenderJob) -> int:
    """How many clients train side by side."""
    return job.cores if job.device != "cuda" else min(job.cores, ACTORS_ON_A_GPU * job.processes)


def run(turns: Turns, folder: str) -> None:
    job, program = load(folder)
    client_app, server_app = ClientApp(), ServerApp()
    client_app.train()(train)

    def after_round(server_round: int, arrays: ArrayRecord) -> None:
        if server_round:
            turns.done(arrays.to_torch_state_dict)
        else:
            turns.say(ready=f"flwr {version('flwr')}, ray {version('ray')}, torch {torch.__version__}, {actors(job)} actor(s)")

    @server_app.main()
    def serve(grid: Grid, context: Context) -> None:
        with suppress(NoFurtherRound):
            Rounds(turns, folder).start(
                grid, ArrayRecord(program.state_dict()), num_rounds=ENDLESS, timeout=ENDLESS, evaluate_fn=after_round
            )

    gpus = job.processes if job.device == "cuda" else 0
    run_simulation(
        server_app=server_app,
        client_app=client_app,
        num_supernodes=job.batches.num_clients,
        backend_config={
            "init_args": {"num_cpus": job.cores, "num_gpus": gpus},
            "client_resources": {"num_cpus": job.cores // actors(job), "num_gpus": gpus / actors(job)},
        },
    )
