"""Plan the clients' local steps, and write their tasks."""

from collections.abc import Iterable, Mapping, Sequence

import torch

from flcog.client.messages import ClientTask
from flcog.core.randomness import make_rng
from flcog.core.types import Params
from flcog.method import Method, ParameterMask, Workload
from flcog.method.returned import check_mask
from flcog.server.engine import Engine


def planned_steps(engine: Engine, methods: Sequence[Method], round: int, clients: Sequence[int]) -> dict[int, int]:
    """The number of local steps of each client that does not drop out."""
    plans: dict[int, int] = {}
    planning = [method for method in methods if isinstance(method, Workload)]
    for client in clients:
        steps: int | None = engine.batching.num_steps(engine.size(client))
        for method in planning:
            if steps is not None:
                rng = make_rng(engine.seed, round, client, "plan", method.name)
                steps = method.plan(steps, engine.view(client, round), rng)
        if steps is not None:
            if steps < 1:
                raise ValueError(f"a plan needs at least one local step; client {client} got {steps}")
            plans[client] = steps
    return plans


def tasks_of(params: Params, methods: Sequence[Method], plans: Mapping[int, int], weights: Iterable[float]) -> list[ClientTask]:
    """The task of each client, from its number of steps and its weight."""
    masking = [method for method in methods if isinstance(method, ParameterMask)]
    return [
        ClientTask(client, steps, weight, masks_of(masking, params, client) if masking else {})
        for (client, steps), weight in zip(plans.items(), weights, strict=True)
    ]


def masks_of(methods: Sequence[ParameterMask], params: Params, client: int) -> dict[str, torch.Tensor]:
    """The parts of parameters that a client shares with the server, combined from all methods' masks."""
    masks: dict[str, torch.Tensor] = {}
    for method in methods:
        for name, mask in check_mask(method, method.mask(params, client), params).items():
            masks[name] = masks[name] & mask if name in masks else mask
    return masks
