"""Every method can train LoRA adapters instead of a whole model, under both executors; no frozen parameter is sent or changed."""

import copy

import pytest
import torch
from harness import TinyData, adapted, assert_close, train

from contracts.registry import client_states
from contracts.test_composition import FORMS, NAMES

pytestmark = pytest.mark.filterwarnings("error")

DATA = TinyData(order=(1, 2, 3, 5))


@pytest.mark.parametrize("name", [pytest.param(name, marks=pytest.mark.slow if i % 16 else ()) for i, name in enumerate(NAMES)])
def test_it_trains_adapters(name: str) -> None:
    modules = [adapted(), adapted()]
    before = copy.deepcopy(modules[0]).double().state_dict()
    options = {"rounds": 2, "local_steps": 2, "clients_per_round": 4, "data": DATA}
    loop, vmap = (
        train(FORMS[name], module=module, executor=executor, **options)
        for module, executor in zip(modules, ("loop", "vmap"), strict=True)
    )
    assert (loop.executor.name, vmap.executor.name) == ("loop", "vmap")
    assert_close(vmap.state, loop.state, 1e-9)
    assert_close(client_states(vmap), client_states(loop), 1e-9)
    frozen = ("hidden.0.layer.weight", "hidden.0.layer.bias")
    assert not any(part.endswith(frozen) for part in loop.state) and any(part.endswith("hidden.0.B") for part in loop.state)
    for module in modules:
        layer = module.state_dict()  # a method may have wrapped the network, which changes its parameters' names
        assert all(
            any(torch.equal(value, before[f"model.{part}"]) for n, value in layer.items() if n.endswith(part)) for part in frozen
        )
    assert all(torch.isfinite(value).all() for value in loop.state.values())
