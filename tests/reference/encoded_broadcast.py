"""FedAvg whose server sends the compressed change of its model, tensor by tensor."""

import copy

import torch
from reference.codecs import Compress
from reference.common import Problem, State, shares, train


def run(problem: Problem, compress: Compress, feedback: bool) -> State:
    """Clients start at y <- y + C(x - y); without ``feedback`` the server's x becomes y. Small tensors and whole numbers are exact."""
    server, seen = copy.deepcopy(problem.model), copy.deepcopy(problem.model)
    for clients in problem.rounds:
        x, y = server.state_dict(), copy.deepcopy(seen.state_dict())
        for name, value in x.items():
            change = value - y[name]
            if change.is_floating_point() and change.numel() >= 16:
                y[name] = y[name] + torch.from_numpy(compress(change.numpy().reshape(-1), None)).view(change.shape)
            else:
                y[name] = value.clone()
        seen.load_state_dict(y)
        start = x if feedback else y
        total = {name: value.clone() for name, value in start.items()}
        for client, share in zip(clients, shares(clients), strict=True):
            after = train(problem, seen, client).state_dict()
            for name, value in after.items():
                total[name] = total[name] + share * (value - y[name]) if value.is_floating_point() else value
        server.load_state_dict(total)
    return server.state_dict()
