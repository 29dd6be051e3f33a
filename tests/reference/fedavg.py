"""McMahan et al., 2017, https://arxiv.org/abs/1602.05629: the mean of the clients' models, weighted by their samples."""

from reference.common import Problem, State, averaged, equal, shares


def run(problem: Problem, uniform: bool = False) -> State:
    return averaged(problem, weights=equal if uniform else shares)
