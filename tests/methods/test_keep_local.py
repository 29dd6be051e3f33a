"""KeepLocal and Freeze against plain torch, alone and beside methods that act on the shared part."""

from functools import partial
from typing import Any

import pytest
import torch
from contracts.case import Case
from harness import (
    MOMENTUM,
    ODD_BATCHES,
    RAGGED,
    SGD,
    BatchNormMLP,
    TinyData,
    assert_close,
    classifier,
    few_quickly,
    problem_of,
    states_by_client,
    train,
)
from reference import keep_local
from reference.common import Problem, State

from flcog.callbacks import SCAFFOLD, FedALA, FedProx, FedPVR, FedRep, FineTune, Freeze, KeepLocal, TopK
from flcog.method import LocalParts, Method

pytestmark = pytest.mark.filterwarnings("error")

PLACEMENTS = [{"executor": "loop"}, {"executor": "loop", "chunk_size": 2}, {"executor": "vmap"}, {"executor": "lightning"}]
DECAY = partial(torch.optim.SGD, lr=0.05, momentum=0.9, weight_decay=0.1)


def of_head(name: str) -> bool:
    return name.startswith("head.")


def shared(problem: Problem, stays: Any) -> State:
    return keep_local.solve(problem, stays)[0]


CASES: dict[str, Case] = {
    "KeepLocal": Case(KeepLocal("head"), partial(shared, stays=of_head)),
    "KeepLocal-body": Case(
        KeepLocal("body"),
        partial(shared, stays=lambda name: not of_head(name)),
        optimizer=MOMENTUM,
        data=ODD_BATCHES,
        options=RAGGED,
    ),
    "Freeze": Case(Freeze("head"), partial(keep_local.freeze, stays=of_head), optimizer=DECAY, data=ODD_BATCHES, options=RAGGED),
}


@pytest.mark.parametrize("placement", PLACEMENTS, ids=["loop", "threads", "vmap", "lightning"])
@pytest.mark.parametrize("beside", few_quickly(["SCAFFOLD", "alone", "FedProx"], 1))
def test_clients_keep_their_head_and_other_methods_act_on_the_rest(beside: str, placement: dict[str, Any]) -> None:
    others = {"FedProx": [FedProx(mu=0.5)], "SCAFFOLD": [SCAFFOLD()]}.get(beside, [])
    setting: dict[str, Any] = {"data": ODD_BATCHES(client_test=0.2)} | placement | RAGGED
    trainer = train(*others, KeepLocal("head"), module=classifier(SGD), **setting)
    problem = problem_of(trainer, classifier(SGD), SGD)
    state, heads = keep_local.solve(problem, of_head, 0.5 * (beside == "FedProx"), beside == "SCAFFOLD")
    assert_close(trainer.state, state, 1e-11)
    for client, kept in states_by_client(trainer, "KeepLocal", "own").items():
        assert_close(kept, heads[client], 1e-11)
    trainer.evaluate()
    for client, (params, _) in enumerate(trainer.measured):
        expected = {name: state[name] for name, _ in classifier().model.named_parameters()} | heads.get(client, {})
        assert_close({name.removeprefix("model."): value for name, value in params.items()}, expected, 1e-11)


@pytest.mark.parametrize("placement", PLACEMENTS[::2], ids=["loop", "vmap"])
def test_batch_norm_stays_with_its_statistics(placement: dict[str, Any]) -> None:
    module = partial(classifier, network=BatchNormMLP)
    norm = next(name for name, layer in module().model.named_modules() if isinstance(layer, torch.nn.BatchNorm1d))
    trainer = train(
        KeepLocal("BatchNorm"), module=module(SGD), data=TinyData(client_test=0.2, drop_last=True), **placement, **RAGGED
    )
    state, own = keep_local.solve(problem_of(trainer, module(SGD), SGD), lambda name: name.startswith(norm))
    assert_close(trainer.state, state, 1e-11)
    for client, kept in states_by_client(trainer, "KeepLocal", "own").items():
        assert_close(kept, {name: own[client][name] for name in kept}, 1e-11)
    layer = module().model.get_submodule(norm)
    sizes = {name: value.nbytes for name, value in layer.state_dict(keep_vars=True).items()}
    plain = train(module=module(SGD), data=TinyData(client_test=0.2, drop_last=True), **placement, **RAGGED)
    saved = [ours["comm/up_bytes"] - row["comm/up_bytes"] for row, ours in zip(trainer.history, plain.history, strict=True)]
    assert saved == [row["clients/participating"] * sum(sizes.values()) for row in trainer.history]
    trainer.evaluate()
    initial = module().model.state_dict()[f"{norm}.running_mean"]
    assert all(not torch.equal(values[f"model.{norm}.running_mean"], initial) for values, _ in trainer.measured)


def test_a_codec_and_bytes_know_the_shared_part_alone() -> None:
    trainer, plain = train(SCAFFOLD(), KeepLocal("head"), TopK(fraction=1.0)), train(SCAFFOLD(), TopK(fraction=1.0))
    head = sum(value.numel() for name, value in classifier().model.named_parameters() if of_head(name))
    body = sum(value.numel() for name, value in classifier().model.named_parameters() if not of_head(name))
    for ours, all_parts in zip(trainer.history, plain.history, strict=True):
        assert ours["comm/up_bytes"] / all_parts["comm/up_bytes"] == pytest.approx(body / (body + head), rel=0.05)


def test_parts_may_be_patterns_lists_and_functions() -> None:
    module = classifier()
    assert set(KeepLocal(["head", r"hidden\.0\.bias"]).local(module)) == {
        "model.head.weight",
        "model.head.bias",
        "model.hidden.0.bias",
    }
    assert KeepLocal(lambda module: ["model.head.bias"]).local(module) == {"model.head.bias"}


class WithoutPrefix(LocalParts):
    """Its layer's name lacks ``model.``."""

    def local(self, module: torch.nn.Module) -> list[str]:
        return ["head.weight"]


@pytest.mark.parametrize(
    "method", [KeepLocal("fc"), WithoutPrefix(), Freeze("fc"), FedRep(head="fc"), FedALA("fc"), FedPVR("fc")], ids=repr
)
def test_parts_that_the_model_lacks_are_refused(method: Method) -> None:
    with pytest.raises(ValueError, match=r"(matches|keeps) none of the parameters.*: choose among model.hidden"):
        train(method)
    with pytest.raises(ValueError, match="keeps all of the parameters at the clients: choose among"):
        train(KeepLocal(["body", "head"]))
    with pytest.raises(ValueError, match=r"parts '\*\.bias' are no regular expressions \(nothing to repeat at position 0\)"):
        train(KeepLocal("*.bias"))


@pytest.mark.parametrize(
    "optimizer", [partial(torch.optim.AdamW, lr=0.01), partial(torch.optim.Adam, lr=0.01, weight_decay=0.1), DECAY]
)
@pytest.mark.parametrize("placement", PLACEMENTS[::2], ids=["loop", "vmap"])
def test_frozen_parameters_do_not_move_whatever_the_optimiser(optimizer: Any, placement: dict[str, Any]) -> None:
    """Torch's own way is the oracle: parameters without a gradient, which clients do not have."""
    setting: dict[str, Any] = {"data": ODD_BATCHES(), "gradient_clip_val": 0.5} | placement | RAGGED
    constant = classifier(optimizer)
    constant.model.head.requires_grad_(False)  # type: ignore[union-attr, operator]
    frozen, expected = train(Freeze("head"), module=classifier(optimizer), **setting), train(module=constant, **setting)
    first = {f"head.{name}": value.double() for name, value in constant.model.head.named_parameters()}  # type: ignore[union-attr]
    assert_close(frozen.state, expected.state | first, 1e-12)


def test_fedbabu_trains_the_head_in_the_evaluation_alone() -> None:
    trainer = train(Freeze("head"), FineTune(steps=3), data=TinyData(client_test=0.2))
    first = classifier().model.state_dict()
    assert torch.equal(trainer.state["head.weight"].float(), first["head.weight"].float())
    trainer.evaluate()
    assert all(
        not torch.equal(params["model.head.weight"].float(), first["head.weight"].float()) for params, _ in trainer.measured
    )
