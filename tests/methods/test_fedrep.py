"""FedRep against its paper: clients keep their heads, and the part that a step does not train stays fixed."""

from functools import partial
from typing import Any

import pytest
import torch
from contracts.case import Case
from harness import MOMENTUM, ODD_BATCHES, RAGGED, SGD, assert_close, classifier, distance, problem_of, states_by_client, train
from reference import fedrep

from flcog.callbacks.personal.fedrep import FedRep

pytestmark = pytest.mark.filterwarnings("error")


CASES: dict[str, Case] = {
    "FedRep": Case(FedRep(body_share=0.5), partial(fedrep.run, body_share=0.5)),
    "FedRep-momentum": Case(
        FedRep(body_share=0.3), partial(fedrep.run, body_share=0.3), optimizer=MOMENTUM, data=ODD_BATCHES, options=RAGGED
    ),
}


@pytest.mark.parametrize("executor", ["loop", "vmap"])
@pytest.mark.parametrize(
    "optimizer", [SGD, MOMENTUM, partial(torch.optim.SGD, lr=0.05, momentum=0.9, weight_decay=0.1, nesterov=True)]
)
def test_fedrep_keeps_heads_and_freezes_the_part_at_rest(optimizer: Any, executor: str) -> None:
    setting: dict[str, Any] = {"data": ODD_BATCHES(client_test=0.2), "executor": executor} | RAGGED
    trainer = train(FedRep(body_share=0.4), module=classifier(optimizer), **setting)
    state, heads = fedrep.solve(problem_of(trainer, classifier(optimizer), optimizer), 0.4)
    assert_close(trainer.state, state, 1e-11)
    kept = states_by_client(trainer, "FedRep", "own")
    assert kept.keys() == heads.keys()
    for client, head in heads.items():
        assert_close(kept[client], head, 1e-11)
    trainer.evaluate()
    for client, (params, _) in enumerate(trainer.measured):
        expected = {name: state[name] for name, _ in classifier().model.named_parameters()} | heads.get(client, {})
        assert_close({name.removeprefix("model."): value for name, value in params.items()}, expected, 1e-11)


@pytest.mark.parametrize("executor", ["loop", "vmap"])
def test_fedrep_at_rest_means_not_a_bit(executor: str) -> None:
    """All steps but the last train the head, which stays on the client; the last step moves the body."""
    method, setting = FedRep(body_share=0.01), {"rounds": 1, "executor": executor}
    heads_only = train(method, module=classifier(MOMENTUM), local_steps=4, **setting)
    untouched = {name: value.detach().double() for name, value in classifier().model.named_parameters()}
    assert torch.equal(heads_only.state["head.weight"], untouched["head.weight"])
    assert distance({"x": heads_only.state["hidden.0.weight"]}, {"x": untouched["hidden.0.weight"]}) > 1e-4
    # With one step there is no step for the head.
    for head in states_by_client(train(method, module=classifier(MOMENTUM), local_steps=1, **setting), "FedRep", "own").values():
        assert all(torch.equal(value, untouched[name]) for name, value in head.items())
