"""Sun et al., 2024, https://arxiv.org/abs/2403.12313, section 4: LoRA whose matrices A keep their initial values."""

import copy

from reference.common import Problem, State, average, shares, train


def run(problem: Problem) -> State:
    model = copy.deepcopy(problem.model)
    for name, value in model.named_parameters():
        if name.endswith(".A"):
            value.requires_grad_(False)
    for clients in problem.rounds:
        model.load_state_dict(average([train(problem, model, client) for client in clients], shares(clients)))
    return {name: value.detach() for name, value in model.named_parameters() if value.requires_grad}
