"""Apple's pfl-research: ``FederatedAveraging`` on its ``SimulatedBackend``, in as many processes as flcog has."""

from collections import deque
from collections.abc import Iterator
from importlib.metadata import version
from typing import Any

import pfl.internal.ops.pytorch_ops as pfl_torch
import torch
from contend import Turns
from job import ContenderJob, load
from pfl.aggregate.simulate import SimulatedBackend
from pfl.aggregate.weighting import WeightByDatapoints
from pfl.algorithm.base import NNAlgorithmParams
from pfl.algorithm.federated_averaging import FederatedAveraging
from pfl.callback.base import TrainingProcessCallback
from pfl.data.dataset import Dataset
from pfl.data.federated_dataset import FederatedDataset
from pfl.hyperparam.base import NNTrainHyperParams
from pfl.metrics import Metrics, Weighted
from pfl.model.pytorch import PyTorchModel
from torch import Tensor, nn

ENDLESS = 10**9
"""Rounds: the bench says when it has seen enough."""


class Network(nn.Module):
    """The program, as pfl wants it."""

    def __init__(self, program: nn.Module) -> None:
        super().__init__()
        self.program = program

    def loss(self, *batch: Tensor) -> Tensor:
        loss: Tensor = self.program(*batch)
        return loss

    def metrics(self, *batch: Tensor) -> dict[str, Any]:
        """pfl evaluates its first round, the bench's warm-up, and no other; this says next to nothing."""
        return {"samples": Weighted(0, len(batch[0]))}


class ClientData(Dataset):
    """A client's samples, whose batches are the round's."""

    def __init__(self, job: ContenderJob, round: int, client: int) -> None:
        super().__init__(raw_data=tuple(job.batches.samples(client)), user_id=str(client))
        self._batches = lambda: job.batches.of(round, client)

    def iter(self, batch_size: int | None) -> Iterator[list[Tensor]]:
        return self._batches()


class Rounds(TrainingProcessCallback):
    """Has pfl train the rounds that the bench asks for."""

    def __init__(self, turns: Turns, network: Network) -> None:
        self.turns, self.network = turns, network
        self.clients: deque[int] = deque()
        self.round = 0

    def begin(self) -> bool:
        """Wait for a round to train; False if there is no further one. The first process listens, and tells the others."""
        heard: list[Any] = [self.turns.next() if pfl_torch.distributed.global_rank == 0 else None]
        if pfl_torch.distributed.world_size > 1:
            torch.distributed.broadcast_object_list(heard)
        if heard[0] is None:
            return False
        self.round, clients = heard[0]
        self.clients.extend(clients)
        return True

    def after_central_iteration(self, aggregate_metrics: Any, model: Any, *, central_iteration: int) -> tuple[bool, Metrics]:
        if pfl_torch.distributed.global_rank == 0:
            self.turns.done(self.network.program.state_dict)
        return not self.begin(), Metrics()


def run(turns: Turns, folder: str) -> None:
    job, program = load(folder)
    threads = max(1, job.cores // job.processes)
    torch.set_num_threads(threads)
    network = Network(program)
    rounds = Rounds(turns, network)
    model = PyTorchModel(
        network, lambda parameters, lr: job.new_optimizer(parameters, lr=lr), torch.optim.SGD(network.parameters(), lr=1.0)
    )
    data = FederatedDataset(lambda client: ClientData(job, rounds.round, client), rounds.clients.popleft)
    backend = SimulatedBackend(training_data=data, val_data=data, postprocessors=[WeightByDatapoints()])
    settings = NNAlgorithmParams(
        central_num_iterations=ENDLESS, evaluation_frequency=ENDLESS, train_cohort_size=job.cohort, val_cohort_size=None
    )
    local = NNTrainHyperParams(local_batch_size=None, local_num_epochs=1, local_learning_rate=job.options["lr"])
    if pfl_torch.distributed.global_rank == 0:
        turns.say(ready=f"pfl {version('pfl')}, torch {torch.__version__}, {job.processes} process(es), {threads} thread(s) each")
    if rounds.begin():
        FederatedAveraging().run(settings, backend, model, local, callbacks=[rounds])
