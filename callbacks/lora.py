"""FFALoRA and FlexLoRA: clients train LoRA's adapters."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from flcog.client_module import ClientModule
from flcog.core.checks import option
from flcog.core.precision import to_float64_device
from flcog.core.types import Params, Slot
from flcog.method import ClientUpload, Cohort, Messages, Method, ParameterMask
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

    needs_adapters = True

    def configure_model(self, model: ClientModule) -> ClientModule:
        for _, adapter in adapters(model):
            adapter.A.requires_grad_(False)
        return model


def factors(changes: Sequence[tuple[float, Tensor, Tensor]], old: Tensor) -> tuple[Tensor, Tensor]:
    """``U S`` and ``V^T`` of ``sum_k p_k B_k A_k = U S V^T``, cut to the rank of ``old``; further rows of A are unchanged.

    The sum itself is never computed. It is a product of two thin matrices, and its singular values are those of a product of
    their small triangular parts.

    >>> b, a = factors([(0.5, torch.tensor([[2.0], [0.0]]), torch.tensor([[0.0, 3.0]]))], torch.ones(2, 2))
    >>> b @ a, a[1]
    (tensor([[0., 3.],
            [0., 0.]]), tensor([1., 1.]))
    """
    left = torch.cat([weight * to_float64_device(b).double() for weight, b, _ in changes], 1)
    right = torch.cat([to_float64_device(a).double() for _, _, a in changes])
    (outer, upper), (inner, lower) = torch.linalg.qr(left), torch.linalg.qr(right.T)
    u, singular, v = torch.linalg.svd(upper @ lower.T, full_matrices=False)
    rank = min(len(old), int((singular > 1e-12 * singular[0]).sum()))
    b, a = (outer @ u * singular)[:, :rank], (v @ inner.T)[:rank]
    # The sign of a singular vector is arbitrary: here the largest entry of each row of A is positive.
    sign = a.gather(1, a.abs().argmax(1, keepdim=True)).sign()
    full = old.new_zeros(len(b), len(old))
    full[:, :rank] = (b * sign.T).to(full)
    return full, torch.cat([(a * sign).to(old), old[rank:]])


@dataclass(frozen=True)
class FlexLoRA(ParameterMask):
    """Gives each client adapters of a rank it can afford, and averages the resulting changes of the model, not the matrices.

    Client k of rank r_k trains B_k (its columns) and A_k (its rows). The server computes the singular value decomposition of the
    mean change, and sends each client as many singular values as its rank allows::

        W = sum_k p_k B_k A_k = U S V^T        B_k <- U[:, :r_k] S[:r_k]        A_k <- V[:, :r_k]^T

    The global model has the model's own rank. In the first round a client starts with the first r_k rows of the initial A.
    Clients neither receive nor send anything beyond their rank, and the ledger does not count it. All other parameters are
    averaged as usual. FFALoRA, which freezes A, cannot run with it.

    Bai et al., Federated Fine-tuning of Large Language Models under Heterogeneous Tasks and Client Resources, NeurIPS 2024,
    https://arxiv.org/abs/2402.11505.

    Args:
        ranks: client k has the rank ``ranks[k % len(ranks)]``, at least 1; a rank above the model's counts as the model's.

    Example:
        >>> FlexLoRA(ranks=[2, 2, 8]).ranks
        [2, 2, 8]
    """

    ranks: Sequence[int] = option((2, 4, 8), ">= 1")

    individual_uploads = True
    needs_adapters = True
    excludes = dict.fromkeys(
        ("FedDC", "FedDyn", "FedPVR", "FedReg", "SCAFFOLD"),
        "it compares clients' adapters with the global ones, of which a client has only the part of its rank",
    )

    def mask(self, params: Params, client: int) -> dict[str, Tensor]:
        rank, masks = self.ranks[client % len(self.ranks)], {}
        for a, b in _pairs(params):
            within = torch.arange(len(params[a]), device=params[a].device) < rank
            masks[a], masks[b] = within.view(-1, *[1] * (params[a].ndim - 1)), within
        return masks

    def server_step(self, server: Slot, params: Params, delta: Params, messages: Messages, cohort: Cohort) -> tuple[Params, Slot]:
        adapters = {name for pair in _pairs(params) for name in pair}
        step = {name: delta[name] for name in params if name not in adapters}
        for a, b in _pairs(params):
            total = sum(upload.weight for upload in messages.individual)
            changes = [(upload.weight / total, *_sent(params, upload, a, b)) for upload in messages.individual]
            new_b, new_a = factors(changes, params[a].flatten(1))
            step[a], step[b] = new_a.view_as(params[a]) - params[a], new_b - params[b]
        return step, server


def _pairs(params: Params) -> Iterator[tuple[str, str]]:
    """The names of each adapter's two matrices."""
    for name in params:
        if name.endswith(".A") and (other := f"{name[:-1]}B") in params:
            yield name, other


def _sent(params: Params, upload: ClientUpload, a: str, b: str) -> tuple[Tensor, Tensor]:
    """A client's matrices B and A of one adapter; a convolution's A is also returned as a matrix."""
    return params[b] + upload.delta[b], (params[a] + upload.delta[a]).flatten(1)
