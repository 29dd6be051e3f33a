"""Methods with models of the clients' own, each from its paper: the global model, and each client's personal parameters."""

import copy
from collections.abc import Callable, Mapping
from typing import Any

import torch
import torch.nn.functional as F
from reference.common import Client, Problem, State, average, parameters, shares, train
from torch import Tensor, nn

Trained = tuple[nn.Module, State, Any]
"""A client's model for the mean, its personal parameters, and what it keeps for its next round."""


def rounds(problem: Problem, client_round: Callable[[nn.Module, Client, Any], Trained]) -> tuple[State, dict[int, State]]:
    model, personal, kept = copy.deepcopy(problem.model), dict[int, State](), dict[int, Any]()
    for clients in problem.rounds:
        locals_ = []
        for client in clients:
            local, personal[client.id], kept[client.id] = client_round(model, client, kept.get(client.id))
            locals_.append(local)
        model.load_state_dict(average(locals_, shares(clients)))
    return model.state_dict(), personal


def gradient(problem: Problem, model: nn.Module, at: State, batch: tuple[Tensor, Tensor]) -> State:
    """The gradient of the loss at these parameters; zero for a batch without rows."""
    leaves = {name: value.detach().requires_grad_() for name, value in at.items()}
    if not len(batch[1]):
        return {name: torch.zeros_like(value) for name, value in at.items()}
    loss = problem.loss(torch.func.functional_call(model, leaves, (batch[0],)), batch[1])
    return dict(zip(leaves, torch.autograd.grad(loss, list(leaves.values())), strict=True))


def apfl(problem: Problem, alpha: float, adaptive: bool = False) -> tuple[State, dict[int, State]]:
    def client_round(model: nn.Module, client: Client, kept: Any) -> Trained:
        own, share = kept or (parameters(model), torch.tensor(alpha, dtype=torch.float64))
        local = copy.deepcopy(model)
        optimizer = problem.optimizer(local.parameters())
        for batch in client.batches:
            copied = parameters(local)
            slope = gradient(problem, model, {n: share * own[n] + (1 - share) * copied[n] for n in own}, batch)
            optimizer.zero_grad()
            problem.loss(local(batch[0]), batch[1]).backward()
            optimizer.step()
            step = problem.lr * share
            if adaptive:
                share = (share - problem.lr * sum((slope[n] * (own[n] - copied[n])).sum() for n in own)).clamp(0, 1)
            own = {n: value - step * slope[n] for n, value in own.items()}
        mixed = {n: share * own[n] + (1 - share) * value for n, value in parameters(local).items()}
        return local, mixed, (own, share)

    return rounds(problem, client_round)


def pfedme(problem: Problem, strength: float, steps: int, lr: float, beta: float) -> tuple[State, dict[int, State]]:
    model, personal = copy.deepcopy(problem.model), {}
    for clients in problem.rounds:
        locals_, before = [], copy.deepcopy(model.state_dict())
        for client in clients:
            w = copy.deepcopy(model)
            outer = problem.optimizer(w.parameters())
            for inputs, targets in client.batches:
                theta = copy.deepcopy(w)
                inner = torch.optim.SGD(theta.parameters(), lr=lr)
                for _ in range(steps):
                    inner.zero_grad()
                    pull = sum((a - b.detach()).square().sum() for a, b in zip(theta.parameters(), w.parameters(), strict=True))
                    (problem.loss(theta(inputs), targets) + strength / 2 * pull).backward()
                    inner.step()
                for value, own in zip(w.parameters(), theta.parameters(), strict=True):
                    value.grad = strength * (value - own).detach()
                outer.step()
            personal[client.id] = parameters(theta)
            locals_.append(w)
        mean = average(locals_, shares(clients))
        model.load_state_dict({name: value + beta * (mean[name] - value) for name, value in before.items()})
    return model.state_dict(), personal


def per_fedavg(problem: Problem, alpha: float, delta: float | None = None) -> State:
    """The first-order form, or with a delta the Hessian-free one."""

    def client_round(model: nn.Module, client: Client, kept: Any) -> Trained:
        local = copy.deepcopy(model)
        optimizer = problem.optimizer(local.parameters())
        for inputs, targets in client.batches:
            number = 2 if delta is None else 3
            parts = [(inputs[start::number], targets[start::number]) for start in range(number)]
            w = parameters(local)
            inner = gradient(problem, model, w, parts[0])
            outer = gradient(problem, model, {n: value - alpha * inner[n] for n, value in w.items()}, parts[1])
            if delta is not None:
                ends = [
                    gradient(problem, model, {n: v + by * outer[n] for n, v in w.items()}, parts[2]) for by in (delta, -delta)
                ]
                outer = {n: outer[n] - alpha * (ends[0][n] - ends[1][n]) / (2 * delta) for n in w}
            for name, value in local.named_parameters():
                value.grad = outer[name]
            optimizer.step()
        return local, {}, None

    return rounds(problem, client_round)[0]


def fedala(
    problem: Problem, upper: Callable[[str], bool], eta: float, drawn: Mapping[int, list[list[tuple[Tensor, Tensor]]]]
) -> tuple[State, dict[int, State]]:
    """``drawn`` are the batches of each client for its weights, in the order of the client's rounds."""
    turns = {client: iter(each) for client, each in drawn.items()}

    def client_round(model: nn.Module, client: Client, kept: Any) -> Trained:
        received = parameters(model)
        own, weights = kept or (received, {n: torch.ones_like(v) for n, v in received.items() if upper(n)})
        for batch in next(turns[client.id]):
            mixed = received | {n: own[n] + (received[n] - own[n]) * weight for n, weight in weights.items()}
            slope = gradient(problem, model, mixed, batch)
            weights = {n: (w - eta * slope[n] * (received[n] - own[n])).clamp(0, 1) for n, w in weights.items()}
        start = copy.deepcopy(model)
        start.load_state_dict({n: own[n] + (received[n] - own[n]) * w for n, w in weights.items()}, strict=False)
        local = train(problem, start, client)
        return local, parameters(local), (parameters(local), weights)

    return rounds(problem, client_round)


def fedrod(problem: Problem, num_classes: int) -> tuple[State, dict[int, State]]:
    """The state with the names of the network's two heads."""

    def client_round(model: nn.Module, client: Client, kept: Any) -> Trained:
        local, own = copy.deepcopy(model), kept or copy.deepcopy(model.head)
        if kept is None:
            for value in own.parameters():
                nn.init.zeros_(value)
        counts = torch.bincount(client.labels, minlength=num_classes).double().clamp(min=1e-8)
        optimizer = problem.optimizer([*local.parameters(), *own.parameters()])
        for inputs, targets in client.batches:
            features = local.features(inputs)
            outputs = local.head(features)
            optimizer.zero_grad()
            loss = problem.loss(outputs + counts.log(), targets) + problem.loss(
                outputs.detach() + own(features.detach()), targets
            )
            loss.backward()
            optimizer.step()
        return local, {f"head.own.{name}": value for name, value in parameters(own).items()}, own

    state, personal = rounds(problem, client_round)
    shared = {name.replace("head.", "head.shared."): value for name, value in state.items()}
    zeros = {name.replace("head.", "head.own."): torch.zeros_like(value) for name, value in state.items() if "head." in name}
    return shared | zeros, personal


def feddbe(problem: Problem, kappa: float, momentum: float) -> tuple[State, dict[int, State]]:
    model, kept, consensus = copy.deepcopy(problem.model), dict[int, Tensor](), None
    for clients in problem.rounds:
        locals_, means = [], []
        for client in clients:
            local = copy.deepcopy(model)
            bias = kept.get(client.id, torch.zeros(local.head.in_features).double()).requires_grad_()
            optimizer = problem.optimizer([*local.parameters(), bias])
            mean = torch.zeros_like(bias)
            for inputs, targets in client.batches:
                features = local.features(inputs)
                mean = (1 - momentum) * mean.detach() + momentum * features.mean(0)
                loss = problem.loss(local.head(features + bias), targets)
                if consensus is not None:
                    loss = loss + kappa * (0.5 * (mean - consensus) ** 2).mean()
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
            kept[client.id] = bias.detach().clone()
            locals_.append(local)
            means.append(mean.detach())
        model.load_state_dict(average(locals_, shares(clients)))
        if consensus is None:
            consensus = sum(share * mean for share, mean in zip(shares(clients), means, strict=True))
    state = {name.replace("head.", "head.head."): value for name, value in model.state_dict().items()}
    personal = {client: {"head.feature_bias": bias} for client, bias in kept.items()}
    return state | {"head.feature_bias": torch.zeros_like(next(iter(kept.values())))}, personal


def fedphp(problem: Problem, strength: float, inheritance: float, expected: int) -> tuple[State, dict[int, State]]:
    def apart(a: Tensor, b: Tensor) -> Tensor:
        return (a[:, None] - b[None]).square().sum(2)

    def mmd(a: Tensor, b: Tensor) -> Tensor:
        n, pool = len(a), torch.cat([a, b])
        if n == 0:
            return torch.zeros(())
        bandwidth = apart(pool, pool).sum().item() / (2 * n * (2 * n - 1)) + 1e-8
        kernels = [
            [torch.exp(-apart(x, y) / (bandwidth * 2**power)).sum() for power in range(-2, 3)]
            for x, y in ((a, a), (b, b), (a, b))
        ]
        within, others, between = map(sum, kernels)
        return (within + others - 2 * between) / n**2

    def client_round(model: nn.Module, client: Client, kept: Any) -> Trained:
        local, (own, times) = copy.deepcopy(model), kept or (copy.deepcopy(model), 0)
        optimizer = problem.optimizer(local.parameters())
        for inputs, targets in client.batches:
            pull = mmd(local.features(inputs), own.features(inputs).detach())
            optimizer.zero_grad()
            ((1 - strength) * problem.loss(local(inputs), targets) + strength * pull).backward()
            optimizer.step()
        mu, trained = inheritance * min(1, times / expected), parameters(local)
        own.load_state_dict(
            {name: mu * value + (1 - mu) * trained[name] for name, value in parameters(own).items()}, strict=False
        )
        return local, parameters(own), (own, times + 1)

    return rounds(problem, client_round)


def fedproto(problem: Problem, strength: float, data: Mapping[int, tuple[Tensor, Tensor]], num_classes: int) -> dict[int, State]:
    """``data`` are all inputs and targets of each client."""
    kept, prototypes = dict[int, nn.Module](), dict[int, Tensor]()
    for clients in problem.rounds:
        sums, counts = {}, dict.fromkeys(range(num_classes), 0)
        for client in clients:
            local = kept.setdefault(client.id, copy.deepcopy(problem.model))
            optimizer = problem.optimizer(local.parameters())
            for inputs, targets in client.batches:
                features = local.features(inputs)
                loss = problem.loss(local.head(features), targets)
                near = [
                    F.mse_loss(z, prototypes[int(y)]) if int(y) in prototypes else z.new_zeros(())
                    for z, y in zip(features, targets, strict=True)
                ]
                optimizer.zero_grad()
                (loss + strength * torch.stack(near).mean()).backward()
                optimizer.step()
        for client in clients:
            inputs, targets = data[client.id]
            with torch.no_grad():
                for z, y in zip(kept[client.id].features(inputs), targets.tolist(), strict=True):
                    sums[y], counts[y] = sums.get(y, 0) + z, counts[y] + 1
        prototypes = prototypes | {y: total / counts[y] for y, total in sums.items()}
    return {client: parameters(model) for client, model in kept.items()}


def ifca(
    problem: Problem, models: list[State], drawn: Mapping[int, list[tuple[Tensor, Tensor]]]
) -> tuple[list[State], dict[int, int]]:
    """The models of all clusters, and each client's last cluster. ``drawn`` are the client's samples for each of its rounds."""
    turns, cluster_of = {client: iter(each) for client, each in drawn.items()}, dict[int, int]()
    for clients in problem.rounds:
        ends: dict[int, list[tuple[int, State]]] = {}
        for client in clients:
            inputs, targets = next(turns[client.id])
            with torch.no_grad():
                losses = [problem.loss(torch.func.functional_call(problem.model, m, (inputs,)), targets) for m in models]
            cluster_of[client.id] = chosen = int(torch.stack(losses).argmin())
            start = copy.deepcopy(problem.model)
            start.load_state_dict(models[chosen])
            ends.setdefault(chosen, []).append((client.num_samples, parameters(train(problem, start, client))))
        for chosen, trained in ends.items():
            total = sum(size for size, _ in trained)
            models[chosen] = {n: sum(size / total * end[n] for size, end in trained) for n in models[chosen]}
    return models, cluster_of


def fedamp(
    problem: Problem, strength: float, alpha: float, sigma: float, own_weight: float | None = None
) -> tuple[State, dict[int, State]]:
    model, last = copy.deepcopy(problem.model), dict[int, nn.Module]()
    for clients in problem.rounds:
        vectors = {k: nn.utils.parameters_to_vector(each.parameters()).detach() for k, each in last.items()}
        locals_ = []
        for client in clients:
            k, cloud = client.id, nn.utils.parameters_to_vector(model.parameters()).detach()
            if k in vectors:
                others = [j for j in vectors if j != k]
                if own_weight is None:
                    apart = [(vectors[k] - vectors[j]).square().sum() for j in others]
                    weights = [alpha * torch.exp(-x / sigma) / sigma for x in apart]
                else:
                    like = torch.stack([torch.cosine_similarity(vectors[k], vectors[j], dim=0) for j in others])
                    weights = list((1 - own_weight) * torch.softmax(sigma * like, 0))
                cloud = (1 - sum(weights)) * vectors[k] + sum(w * vectors[j] for w, j in zip(weights, others, strict=True))

            def pull(local: nn.Module, cloud: Tensor = cloud) -> Tensor:
                return strength / (2 * alpha) * (nn.utils.parameters_to_vector(local.parameters()) - cloud).square().sum()

            locals_.append(train(problem, last.get(k, model), client, pull))
        last |= {client.id: local for client, local in zip(clients, locals_, strict=True)}
        model.load_state_dict(average(locals_, shares(clients)))
    return model.state_dict(), {k: parameters(local) for k, local in last.items()}


def fedfomo(
    problem: Problem, drawn: Mapping[int, list[tuple[Tensor, Tensor]]], sent: Mapping[int, list[list[int]]]
) -> tuple[State, dict[int, State], Tensor]:
    """``drawn`` are each client's validation samples, and ``sent`` the clients whose models it has received, by its rounds."""
    model, last = copy.deepcopy(problem.model), dict[int, nn.Module]()
    samples, places = ({k: iter(each) for k, each in by_client.items()} for by_client in (drawn, sent))
    affinities = torch.zeros(problem.num_clients, problem.num_clients, dtype=torch.float64)
    for clients in problem.rounds:
        locals_, gained = [], {}
        for client in clients:
            k, (inputs, targets) = client.id, next(samples[client.id])
            start = copy.deepcopy(last.get(k, model))
            own, loss = nn.utils.parameters_to_vector(start.parameters()).detach(), problem.loss(start(inputs), targets)
            gained[k] = {}
            for j in next(places[k]):
                other = nn.utils.parameters_to_vector(last[j].parameters()).detach()
                gained[k][j] = (
                    ((loss - problem.loss(last[j](inputs), targets)) / (other - own).norm()).clamp(min=0).detach(),
                    other,
                )
            total = sum(gain for gain, _ in gained[k].values())
            if total > 0:
                moved = own + sum(gain / total * (other - own) for gain, other in gained[k].values())
                nn.utils.vector_to_parameters(moved, start.parameters())
            locals_.append(train(problem, start, client))
        for k, gains in gained.items():
            for j, (gain, _) in gains.items():
                affinities[k, j] += gain
        last |= {client.id: local for client, local in zip(clients, locals_, strict=True)}
        model.load_state_dict(average(locals_, shares(clients)))
    return model.state_dict(), {k: parameters(local) for k, local in last.items()}, affinities


def fedpac(
    problem: Problem, strength: float, body_share: float, data: Mapping[int, tuple[Tensor, Tensor]], num_classes: int
) -> tuple[State, dict[int, State], dict[int, State]]:
    """The global model, each client's last model, and its next head. ``data`` are all inputs and targets of each client."""
    model, last, heads, prototypes = copy.deepcopy(problem.model), dict[int, State](), dict[int, nn.Module](), dict[int, Tensor]()
    for clients in problem.rounds:
        locals_, by_class, means, variances = [], dict[int, list[Tensor]](), dict[int, Tensor](), dict[int, Tensor]()
        for client in clients:
            local, (inputs, targets) = copy.deepcopy(model), data[client.id]
            with torch.no_grad():
                z = model.features(inputs)
            each = [z[targets == c] for c in range(num_classes)]
            p = [len(rows) / len(z) for rows in each]
            own = [rows.mean(0) if len(rows) else z.new_zeros(z.shape[1]) for rows in each]
            means[client.id] = torch.stack([share * mean for share, mean in zip(p, own, strict=True)])
            square = sum(
                share * (rows @ rows.T).trace() / len(rows) - share**2 * mean @ mean
                for share, rows, mean in zip(p, each, own, strict=True)
                if len(rows)
            )
            variances[client.id] = square / len(z)
            local.head.load_state_dict(heads.get(client.id, model.head).state_dict())
            head = problem.optimizer(local.head.parameters())
            names = {id(value) for value in local.head.parameters()}
            body = problem.optimizer([value for value in local.parameters() if id(value) not in names])
            first = len(client.batches) - max(1, round(body_share * len(client.batches)))
            for step, batch in enumerate(client.batches):
                features = local.features(batch[0])
                pulls = [
                    F.mse_loss(z, prototypes[int(y)]) if int(y) in prototypes else z.new_zeros(())
                    for z, y in zip(features, batch[1], strict=True)
                ]
                local.zero_grad()
                (problem.loss(local.head(features), batch[1]) + strength * torch.stack(pulls).mean()).backward()
                (head if step < first else body).step()
            last[client.id] = parameters(local)
            locals_.append(local)
            with torch.no_grad():
                for z, y in zip(local.features(inputs), targets.tolist(), strict=True):
                    by_class.setdefault(y, []).append(z)
        prototypes |= {c: torch.stack(rows).mean(0) for c, rows in by_class.items()}
        ids = [client.id for client in clients]
        for k in ids:
            weights = _simplex_minimum(
                torch.tensor([[((means[k] - means[i]) * (means[k] - means[j])).sum() for j in ids] for i in ids])
                + torch.diag(torch.stack([variances[i] for i in ids]))
            )
            heads[k] = copy.deepcopy(model.head)
            heads[k].load_state_dict(
                {n: sum(w * m.head.state_dict()[n] for w, m in zip(weights, locals_, strict=True)) for n in heads[k].state_dict()}
            )
        model.load_state_dict(average(locals_, shares(clients)))
    return model.state_dict(), last, {k: parameters(head) for k, head in heads.items()}


def _simplex_minimum(matrix: Tensor) -> Tensor:
    """The minimum of ``w matrix w`` over w >= 0 with the sum 1: the best of the solutions on all faces."""
    best, lowest = torch.empty(0), float("inf")
    for chosen in range(1, 2 ** len(matrix)):
        face = [i for i in range(len(matrix)) if chosen >> i & 1]
        solved = torch.linalg.solve(matrix[face][:, face], torch.ones(len(face), dtype=matrix.dtype))
        w = torch.zeros(len(matrix), dtype=matrix.dtype)
        w[face] = solved / solved.sum()
        if (w >= 0).all() and w @ matrix @ w < lowest:
            best, lowest = w, w @ matrix @ w
    return best
