"""Collins et al., 2021, https://arxiv.org/abs/2102.07078, algorithm 1, with an optimiser for the head and one for the body."""

import copy

from reference.common import Problem, State, average, shares


def solve(problem: Problem, body_share: float, head: str = "head.") -> tuple[State, dict[int, State]]:
    """The shared model with its untrained head, and each client's own head."""
    model, heads = copy.deepcopy(problem.model), {}
    first_head = {name: value.detach().clone() for name, value in model.named_parameters() if name.startswith(head)}
    for clients in problem.rounds:
        locals_ = []
        for client in clients:
            local = copy.deepcopy(model).train()
            local.load_state_dict(heads.get(client.id, first_head), strict=False)
            parts = {own: [v for name, v in local.named_parameters() if name.startswith(head) is own] for own in (True, False)}
            optimizers = {own: problem.optimizer(part) for own, part in parts.items()}
            on_body = max(1, round(len(client.batches) * body_share))
            for step, (inputs, targets) in enumerate(client.batches):
                local.zero_grad()
                problem.loss(local(inputs), targets).backward()
                optimizers[step < len(client.batches) - on_body].step()
            heads[client.id] = {name: v.detach().clone() for name, v in local.named_parameters() if name.startswith(head)}
            locals_.append(local)
        model.load_state_dict(average(locals_, shares(clients)) | first_head)
    return model.state_dict(), heads


def run(problem: Problem, body_share: float) -> State:
    return solve(problem, body_share)[0]
