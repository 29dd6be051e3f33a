"""Knowledge distillation: a loss for learning another model's outputs on inputs that need no labels."""

import torch
import torch.nn.functional as F
from torch import Tensor


def log_probabilities(outputs: Tensor, multilabel: bool = False) -> Tensor:
    """Log-probabilities of the classes, [B, C], or of each label to be absent or present, [B, C, 2].

    Half precision is widened, because it would lose the small differences between log-probabilities.

    >>> log_probabilities(torch.tensor([[0.0, 0.0]]), multilabel=True).exp()
    tensor([[[0.5000, 0.5000],
             [0.5000, 0.5000]]])
    """
    outputs = outputs.to(torch.promote_types(outputs.dtype, torch.float32))
    return torch.stack([F.logsigmoid(-outputs), F.logsigmoid(outputs)], -1) if multilabel else F.log_softmax(outputs, -1)


def kl_divergence(log_p: Tensor, log_q: Tensor) -> Tensor:
    """``KL(p || q)`` over the last axis, averaged over all others; in nats.

    >>> p, q = torch.tensor([[0.5, 0.5]]), torch.tensor([[0.25, 0.75]])
    >>> round(float(kl_divergence(p.log(), q.log())), 4)
    0.1438
    """
    return (log_p.exp() * (log_p - log_q)).sum(-1).mean()


def distillation_loss(student: Tensor, teacher: Tensor, multilabel: bool = False, temperature: float = 1.0) -> Tensor:
    """The distance of a student's outputs from its teacher's: ``T^2 KL(p(teacher / T) || p(student / T))``.

    p is the softmax. With several labels per sample it is each label's sigmoid, and the divergences are averaged over the labels,
    as their cross-entropies are. ``T^2`` keeps the gradient's size.

    Hinton et al., Distilling the Knowledge in a Neural Network, 2015, https://arxiv.org/abs/1503.02531.

    Example:
        >>> outputs = torch.tensor([[1.0, 2.0]])
        >>> float(distillation_loss(outputs, outputs + 5))
        0.0
    """
    teacher, student = (log_probabilities(outputs / temperature, multilabel) for outputs in (teacher, student))
    return temperature**2 * kl_divergence(teacher, student)


def rows_of_step(step: Tensor | int, batch_size: int, num_samples: int, device: torch.device | None = None) -> Tensor:
    """The rows for local step ``step`` of a set that is read repeatedly in batches, [min(batch_size, num_samples)].

    >>> rows_of_step(1, batch_size=2, num_samples=3)
    tensor([2, 0])
    """
    batch_size = min(batch_size, num_samples)
    return (step * batch_size + torch.arange(batch_size, device=device)) % num_samples
