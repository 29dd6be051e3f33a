"""Centralized and Local: all data pooled, and every client for itself, for comparison with federated methods."""

from dataclasses import dataclass, replace
from pathlib import Path

import torch

from flcog.core.types import Params, Slot
from flcog.data import Exchange, Federation, Partition
from flcog.functional.apply import Apply
from flcog.method import ClientView, Context, DataExchange, Personal, Personalisation, Upload


@dataclass(frozen=True)
class Centralized(DataExchange):
    """Trains one model on the pooled data of all clients, with as many steps in a round as the round's clients take together.

    Papers draw this bound as a line above federated methods. With m of N clients in a round, and n samples in all::

        x <- x - lr grad F(x),   F = sum_k n_k / n F_k,   m local_steps times a round, or local_epochs m / N times over all samples

    So it reads as many samples, and takes as long, as the other rows of a table. Papers rarely state the budget of this bound:
    raise ``trainer.rounds`` or ``trainer.local_steps`` for a larger budget. Batch size and optimiser are the clients'. As at a
    client, the optimiser starts each round without momentum, and the learning rate's schedule counts rounds. Nothing is sent: 0
    bytes. The pool includes data that methods listed before it exchange before round 1 (Fedssyn's synthetic data), and their
    bytes count. The pool belongs to one client, so that personal models (Ditto, FedRep, FineTune) are this client's.

    Li et al., Synthetic data shuffling accelerates the convergence of federated learning under data heterogeneity, 2024,
    https://arxiv.org/abs/2306.13263, Figures 3 and 4, have such lines.
    """

    communicates = False

    def prepare_data(self, federation: Federation, rng: torch.Generator, workspace: Path | None) -> Exchange:
        pool = Partition.from_clients([federation.partition.indices])
        return Exchange(replace(federation, partition=pool, whole=federation.split))


@dataclass(frozen=True)
class Local(Personalisation):
    """Lets every client train a model of its own on its own data, all from the same initial weights; nothing is ever sent.

    This is each client's result without the others, and shows the benefit of federation. With y_k the model that client k keeps::

        y_k <- y_k - lr grad F_k(y_k),   in the client's rounds, with as many local steps as in other arms

    ``test/accuracy``, ``test/loss`` and the like are means over all clients' own models on the global test set. This costs one
    evaluation for each client (raise ``trainer.eval_every`` if there are many). ``test/personal_accuracy_*`` describes the models
    on each client's own held-out part (``data.client_test``). Clients that have not been sampled yet have the initial model.
    BatchNorm's statistics come from the client's samples. There is no global model: the run's stays the initial one, with which
    FedProx, MOON, FedReg and FedCOG would compare the clients' models.

    Smith et al., Federated Multi-Task Learning, NeurIPS 2017, https://arxiv.org/abs/1705.10467, call this comparison "local".
    """

    communicates = False

    def init_client(self, params: Params, buffers: Params, client: ClientView) -> Slot:
        return {"params": dict(params)}

    def start(self, apply: Apply, params: Params, ctx: Context) -> tuple[Params, Slot]:
        return ctx.state["params"], {}

    def finish_client(self, delta: Params, params: Params, ctx: Context) -> Upload:
        return Upload(None, {"params": params})

    def personal(self, params: Params, ctx: Context) -> Personal:
        return Personal(ctx.state["params"], own_statistics=True)
