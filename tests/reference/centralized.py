"""Plain training of one model on the pooled data, batch after batch; only the optimiser restarts every round."""

import copy

from reference.common import Problem, State


def run(problem: Problem) -> State:
    model = copy.deepcopy(problem.model).train()
    for clients in problem.rounds:
        optimizer = problem.optimizer(model.parameters())
        for inputs, targets in [batch for client in clients for batch in client.batches]:
            optimizer.zero_grad()
            problem.loss(model(inputs), targets).backward()
            optimizer.step()
    return model.state_dict()
