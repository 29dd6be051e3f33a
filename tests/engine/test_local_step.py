"""The local step of SGD equals torch's own, bit for bit."""

import itertools
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from flcog.execute.optimizer import is_plain_sgd, stepper


def _walk(settings: dict[str, Any], ours: bool) -> list[Tensor]:
    torch.manual_seed(0)
    params = [nn.Parameter(torch.randn(shape)) for shape in ((5, 3), (5,), ())]
    optimizer = torch.optim.SGD(params, **settings)
    step = stepper(optimizer, params)
    for _ in range(4):
        gradients = [torch.randn_like(parameter) for parameter in params]
        if ours:
            step(gradients)
        else:
            for parameter, gradient in zip(params, gradients, strict=True):
                parameter.grad = gradient
            optimizer.step()
    return [parameter.detach() for parameter in params]


SETTINGS = [
    {"lr": 0.1, "momentum": momentum, "weight_decay": decay, "dampening": dampening, "nesterov": nesterov}
    for momentum, decay, dampening, nesterov in itertools.product((0.0, 0.9), (0.0, 0.01), (0.0, 0.3), (False, True))
    if not nesterov or (momentum and not dampening)
]


@pytest.mark.parametrize("settings", SETTINGS, ids=str)
def test_sgd_is_torchs_bit_for_bit(settings: dict[str, Any]) -> None:
    for ours, theirs in zip(_walk(settings, True), _walk(settings, False), strict=True):
        assert torch.equal(ours, theirs)


def test_anything_but_plain_sgd_is_the_users_own() -> None:
    first, second = nn.Parameter(torch.ones(2)), nn.Parameter(torch.ones(2))
    calls: list[Any] = []
    hooked = torch.optim.SGD([first], lr=0.1)
    hooked.register_step_pre_hook(lambda *args: calls.append(args))
    stepper(hooked, [first])([torch.ones(2)])
    assert len(calls) == 1
    groups = torch.optim.SGD([{"params": [first]}, {"params": [second], "lr": 0.5}], lr=0.1)
    for optimizer in (hooked, groups, torch.optim.Adam([first, second]), torch.optim.SGD([first, second], lr=0.1, maximize=True)):
        assert not is_plain_sgd(optimizer, [first, second])
    with torch.no_grad():
        stepper(groups, [first, second])([torch.ones(2), torch.ones(2)])
    assert torch.equal(second.detach(), torch.full((2,), 0.5))
