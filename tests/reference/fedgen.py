"""Zhu et al., 2021, https://arxiv.org/abs/2105.10056, with the losses of https://github.com/zhuangdizhu/FedGen."""

import torch
import torch.nn.functional as F
from reference.common import State
from torch import Tensor, nn


class Generator(nn.Module):
    """Maps noise and a one-hot label to features."""

    def __init__(self, state: State) -> None:
        super().__init__()
        hidden, inputs = state["first.weight"].shape
        self.first, self.norm = nn.Linear(inputs, hidden), nn.BatchNorm1d(hidden)
        self.last = nn.Linear(hidden, len(state["last.weight"]))
        names = {"norm.mean": "norm.running_mean", "norm.var": "norm.running_var"}
        self.load_state_dict({names.get(name, name): value.clone() for name, value in state.items()}, strict=False)
        self.to(state["first.weight"].dtype)

    def forward(self, noise: Tensor, labels: Tensor, num_classes: int) -> Tensor:
        code = torch.stack([torch.eye(num_classes, dtype=noise.dtype)[label] for label in labels])
        return self.last(torch.relu(self.norm(self.first(torch.cat((noise, code), dim=1)))))


def generator_loss(features: Tensor, noise: Tensor, labels: Tensor, heads: list[nn.Linear], counts: Tensor) -> Tensor:
    """The generator's loss, example by example and client by client."""
    size, teacher, pairs = len(labels), 0.0, 0.0
    for k, head in enumerate(heads):
        for i, y in enumerate(labels.tolist()):
            share = counts[k, y] / counts[:, y].sum()
            teacher = teacher - share * F.log_softmax(head(features[i]), dim=0)[y] / size
    for i in range(size):
        for j in range(size):
            between = F.mse_loss(noise[i], noise[j]) * F.l1_loss(features[i], features[j])
            pairs = pairs + between / size**2
    return teacher + torch.exp(-pairs)


def client_loss(
    model: nn.Module, generator: Generator, batch: tuple[Tensor, Tensor], sampled: tuple[Tensor, Tensor], noise: Tensor
) -> tuple[Tensor, Tensor]:
    """The cross-entropy on (noise, labels) ``sampled``, and the divergence on the real batch with ``noise`` for its labels."""
    (x, y), num_classes = batch, model.head.out_features
    generator.eval()
    taught = F.cross_entropy(model.head(generator(*sampled, num_classes)), sampled[1])
    with torch.no_grad():
        target = F.softmax(model.head(generator(noise, y, num_classes)), dim=1)
    return taught, F.kl_div(F.log_softmax(model(x), dim=1), target, reduction="batchmean")


def server_steps(
    state: State, heads: list[nn.Linear], counts: Tensor, drawn: list[tuple[Tensor, Tensor]], lr: float, weight_decay: float
) -> Generator:
    """The generator after the server's training of a round, on the drawn (noise, labels)."""
    generator = Generator(state).train()
    adam = torch.optim.Adam(generator.parameters(), lr=lr, weight_decay=weight_decay)
    for noise, labels in drawn:
        adam.zero_grad()
        generator_loss(generator(noise, labels, counts.shape[1]), noise, labels, heads, counts).backward()
        adam.step()
    return generator
