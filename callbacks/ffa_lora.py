"""FFA-LoRA: of LoRA's two matrices only B trains, so that the mean of the clients' adapters is the mean of their changes."""

from dataclasses import dataclass
from typing import ClassVar

from flcog.client_module import ClientModule
from flcog.method import Method
from flcog.models.lora import adapters


@dataclass(frozen=True)
class FFALoRA(Method):
    """Freezes the initial matrix A of every LoRA adapter: clients train and send only B, half of the adapters' parameters.

    With A_k and B_k client k's matrices and p_k its weight, LoRA's server averages A and B separately. Its model then differs
    from the clients' mean, unless all clients have the same A::

        sum_k p_k B_k  sum_k p_k A_k  !=  sum_k p_k B_k A_k        sum_k p_k B_k  A  =  sum_k p_k B_k A

    The method changes the model before round 1, so ``start_round`` has no effect. The head trains as before.

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
