"""FedAvg with ``torch.nn.utils.clip_grad_norm_`` before every local step."""

from functools import partial

import torch
from reference.common import Problem, State, averaged, train


def run(problem: Problem, max_norm: float) -> State:
    def clip(local):
        torch.nn.utils.clip_grad_norm_(local.parameters(), max_norm)

    return averaged(problem, partial(train, correct=clip))
