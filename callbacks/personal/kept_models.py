"""Methods whose server keeps the last model of each client, and sends each client something of the others' models."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from flcog.core.types import Params, Slot
from flcog.method import ClientUpload, ClientView, Cohort, Context, Messages, OwnDownload, Personal, Personalisation, Upload


def with_rows(known: Tensor, count: int, clients: Tensor, new: Tensor) -> Tensor:
    """A tensor with a row for each of ``count`` clients, without rows before the first round, after these clients have sent theirs."""
    kept = known if len(known) else known.new_zeros((count, *known.shape[1:]))
    return kept.index_copy(0, clients.to(kept.device), new.to(kept))


def values_of(name: str, params: Params, uploads: Sequence[ClientUpload]) -> Tensor:
    """A parameter in each client's model as it was sent; the global one where clients send no change, as with ``Freeze``."""
    return torch.stack([params[name] + upload.delta.get(name, 0) for upload in uploads])


@dataclass(frozen=True, kw_only=True)
class KeptModels(OwnDownload, Personalisation, protocol=True):
    """The server keeps the last model of each client: as many models as there are clients. ``models`` are empty before the first round.

    A client keeps its last model, too, which is its personal model and at first the given one. The run's global model moves as in FedAvg.
    """

    individual_uploads = True
    excludes = {"LocalModels": "both keep models at the clients"}

    def init_server(self, params: Params) -> Slot:
        return {
            "models": {name: value.new_empty((0, *value.shape)) for name, value in params.items()},
            "is_known": torch.zeros(0, dtype=torch.bool),
        }

    def init_client(self, params: Params, buffers: Params, client: ClientView) -> Slot:
        return {"params": dict(params)}

    def finish_client(self, delta: Params, params: Params, ctx: Context) -> Upload:
        return Upload(delta, {"params": params})

    def server_step(self, server: Slot, params: Params, delta: Params, messages: Messages, cohort: Cohort) -> tuple[Params, Slot]:
        clients, count = torch.tensor([upload.client for upload in messages.individual]), cohort.num_clients
        models = {
            name: with_rows(known, count, clients, values_of(name, params, messages.individual))
            for name, known in server["models"].items()
        }
        known = with_rows(server["is_known"], count, clients, torch.ones(len(clients), dtype=torch.bool))
        return delta, {**server, "models": models, "is_known": known}

    def personal(self, params: Params, ctx: Context) -> Personal:
        return Personal(ctx.state["params"], own_statistics=True)
