"""FedAvg with ``torch.nn.utils.clip_grad_norm_`` before every local step."""

import copy

import torch
from reference.common import Problem, State, average, shares, train


def run(problem: Problem, max_norm: float) -> State:
    model = copy.deepcopy(problem.model)
    for clients in problem.rounds:

        def clip(local):
            torch.nn.utils.clip_grad_norm_(local.parameters(), max_norm)

        model.load_state_dict(average([train(problem, model, client, correct=clip) for client in clients], shares(clients)))
    return model.state_dict()
