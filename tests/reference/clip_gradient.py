"""FedAvg with ``torch.nn.utils.clip_grad_norm_`` before every local step."""

from functools import partial

from reference.common import Problem, State, averaged, clip, train


def run(problem: Problem, max_norm: float) -> State:
    return averaged(problem, partial(train, correct=partial(clip, max_norm=max_norm)))
