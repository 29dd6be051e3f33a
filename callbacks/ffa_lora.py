"""FFA-LoRA: of LoRA's two matrices only B trains, so that the mean of the clients' adapters is the mean of their changes."""

from dataclasses import dataclass
from typing import ClassVar

from flcog.client_module import ClientModule
from flcog.method import Method
from flcog.models.lora import adapters


@dataclass(frozen=True)
class FFALoRA(Method):
    """Freezes the matrix A of every LoRA adapter as it was drawn: clients train and send B alone, and half as much of the adapters.

    With A_k and B_k client k's matrices and p_k its weight, LoRA's server averages each for itself, and so makes another model than
    the clients' mean; with A the same everywhere it does not::

        sum_k p_k B_k  sum_k p_k A_k  !=  sum_k p_k B_k A_k        sum_k p_k B_k  A  =  sum_k p_k B_k A

    The model is changed before round 1, so that ``start_round`` means nothing. The head trains as it did.

    Sun et al., Improving LoRA in Privacy-preserving Federated Learning, ICLR 2024, https://arxiv.org/abs/2403.12313.

    Example:
        >>> import flcog
        >>> network = flcog.models.LoRA(flcog.models.MLP(4, (8,), 3))
        >>> FFALoRA().configure_model(flcog.Classifier(network)) and network.hidden[0].A.requires_grad
        False
    """

    needs_adapters: ClassVar[bool] = True

    def configure_model(self, model: ClientModule) -> ClientModule:
        for _, adapter in adapters(model):
            adapter.A.requires_grad_(False)
        return model
