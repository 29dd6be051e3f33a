"""Li et al., 2021, https://arxiv.org/abs/2103.16257, algorithm 1 with the samples' weights; the features are the model's own.

Before a client has a previous model its contrastive term is 0.
"""

import copy

import torch
import torch.nn.functional as F
from reference.common import Problem, State, Weights, average, shares, train


def run(problem: Problem, mu: float, temperature: float, weights: Weights = shares) -> State:
    model = copy.deepcopy(problem.model)
    previous = {}
    for clients in problem.rounds:
        received = copy.deepcopy(model).eval()
        locals_ = []
        for client in clients:
            last = previous.get(client.id)

            def backward(local, inputs, targets, received=received, last=last):
                z = local.features(inputs)
                loss = problem.loss(local.head(z), targets)
                if last is not None:
                    with torch.no_grad():
                        others = [received.features(inputs), last.features(inputs)]
                    similarities = [(z * other).sum(1) / (z.norm(dim=1) * other.norm(dim=1)) for other in others]
                    logits = torch.stack(similarities, 1) / temperature
                    loss = loss + mu * F.cross_entropy(logits, torch.zeros(len(inputs), dtype=torch.long))
                loss.backward()

            local = train(problem, model, client, backward=backward)
            previous[client.id] = copy.deepcopy(local).eval()
            locals_.append(local)
        model.load_state_dict(average(locals_, weights(clients)))
    return model.state_dict()
