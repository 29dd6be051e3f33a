"""Local: every client trains a model of its own, alone, to compare federated methods with."""

from dataclasses import dataclass

from flcog.apply import Apply
from flcog.core.types import Params, Slot
from flcog.method import ClientView, Context, Method, Personal, Upload


@dataclass(frozen=True)
class Local(Method):
    """Lets every client train a model of its own on its own data, all from the same initial weights; nothing is ever sent.

    What each client reaches without the others, which shows what federation is worth. With y_k the model that client k keeps::

        y_k <- y_k - lr grad F_k(y_k),   in the rounds in which the client is sampled, as many local steps as in other arms

    ``test/accuracy``, ``test/loss`` and the like are means over all clients of their own models on the global test set, which costs
    one evaluation for each of them (raise ``trainer.eval_every`` for many); ``test/personal_accuracy_*`` their spread on each
    client's own held-out part (``data.client_test``). Clients who were not sampled yet have the initial model, and BatchNorm's
    statistics are taken on the client's samples. There is no global model: the run's stays the initial one.

    Smith et al., Federated Multi-Task Learning, NeurIPS 2017, https://arxiv.org/abs/1705.10467, compare with it as "local".

    Example:
        >>> Local().communicates
        False
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
