"""The global model after some steps of a client's own local optimiser (FedCOG's Table 9, https://arxiv.org/abs/2312.05966)."""

import torch
from reference.common import Client, Problem, State, train
from torch import nn


def run(problem: Problem, model: nn.Module, client: int, batches: list[tuple[torch.Tensor, torch.Tensor]]) -> State:
    return train(problem, model, Client(client, torch.empty(0), batches)).state_dict()
