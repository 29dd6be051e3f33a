"""Local: every client trains a model of its own, alone, for comparison with federated methods."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from flcog.core.types import Params, Slot
from flcog.functional.apply import Apply
from flcog.method import ClientView, Context, Personal, Personalisation, Upload


@dataclass(frozen=True)
class Local(Personalisation):
    """Lets every client train a model of its own on its own data, all from the same initial weights; nothing is ever sent.

    This is each client's result without the others, and shows the benefit of federation. With y_k the model that client k keeps::

        y_k <- y_k - lr grad F_k(y_k),   in the client's rounds, with as many local steps as in other arms

    ``test/accuracy``, ``test/loss`` and the like are means over all clients' own models on the global test set. This costs one
    evaluation for each client (raise ``trainer.eval_every`` if there are many). ``test/personal_accuracy_*`` describes the models
    on each client's own held-out part (``data.client_test``). Clients that have not been sampled yet have the initial model.
    BatchNorm's statistics come from the client's samples. There is no global model: the run's stays the initial one.

    Smith et al., Federated Multi-Task Learning, NeurIPS 2017, https://arxiv.org/abs/1705.10467, call this comparison "local".

    Example:
        >>> Local().communicates
        False
    """

    communicates = False
    excludes: ClassVar[Mapping[str, str]] = dict.fromkeys(
        ("FedCOG", "FedProx", "FedReg", "MOON"),
        "it compares clients' models with the global model, which never trains beside Local",
    )

    def init_client(self, params: Params, buffers: Params, client: ClientView) -> Slot:
        return {"params": dict(params)}

    def start(self, apply: Apply, params: Params, ctx: Context) -> tuple[Params, Slot]:
        return ctx.state["params"], {}

    def finish_client(self, delta: Params, params: Params, ctx: Context) -> Upload:
        return Upload(None, {"params": params})

    def personal(self, params: Params, ctx: Context) -> Personal:
        return Personal(ctx.state["params"], own_statistics=True)
