"""Li et al., 2021, https://arxiv.org/abs/2012.04221, algorithm 1 with FedAvg as its global solver; weighted by samples."""

import copy

import torch
from reference.common import Problem, State, average, shares, train


def run(problem: Problem, lambda_prox: float, lr: float | None = None, momentum: float = 0.0) -> tuple[State, dict[int, State]]:
    """The global model, and each client's own."""
    model, own = copy.deepcopy(problem.model), {}
    for clients in problem.rounds:
        received = {name: value.clone() for name, value in model.named_parameters()}
        for client in clients:
            v = own.setdefault(client.id, copy.deepcopy(model)).train()
            step = torch.optim.SGD(v.parameters(), lr=problem.lr if lr is None else lr, momentum=momentum)
            for inputs, targets in client.batches:
                distance = sum((value - received[name].detach()).pow(2).sum() for name, value in v.named_parameters())
                step.zero_grad()
                (problem.loss(v(inputs), targets) + lambda_prox / 2 * distance).backward()
                step.step()
        model.load_state_dict(average([train(problem, model, client) for client in clients], shares(clients)))
    return model.state_dict(), {k: {name: value.detach() for name, value in v.named_parameters()} for k, v in own.items()}
