"""Li et al., 2020, https://arxiv.org/abs/1812.06127, algorithm 2 with the samples' weights of its experiments."""

from reference.common import Problem, State, Weights, averaged, parameters, shares, train


def run(problem: Problem, mu: float, weights: Weights = shares) -> State:
    def one(problem, model, client):
        received = parameters(model)

        def proximal(local):
            return mu / 2 * sum((value - received[name]).pow(2).sum() for name, value in local.named_parameters())

        return train(problem, model, client, penalty=proximal)

    return averaged(problem, one, weights)
