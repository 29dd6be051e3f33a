"""SignSGD sends one bit for each number."""

from functools import partial

import torch
from contracts.case import Case
from harness import BatchNormMLP, classifier, train
from reference import codecs

from flcog.callbacks import EqualWeights, FedAvgM, FedExP, SignSGD
from flcog.callbacks.codecs.codec import encoded_bytes
from flcog.method import Cohort, Context, Envelope, GlobalModel, Messages
from flcog.wire.envelope import fields_of
from methods.codecs.draws import decoded

CASES: dict[str, Case] = {
    "SignSGD": Case(SignSGD(), partial(codecs.run, compress=codecs.sign_sgd)),
    "SignSGD with error feedback": Case(
        SignSGD(error_feedback=True),
        partial(codecs.run, compress=codecs.sign_sgd, feedback=True),
        module=partial(classifier, network=BatchNormMLP),
    ),
    "SignSGD, majority": Case(SignSGD(combine="majority"), codecs.majority_vote),
    "SignSGD, majority with error feedback": Case(
        SignSGD(combine="majority", error_feedback=True), partial(codecs.majority_vote, feedback=True)
    ),
}


def test_a_number_costs_one_bit() -> None:
    assert encoded_bytes(SignSGD(), 801, torch.float32) == 101 + 4
    v = torch.randn(801)
    back = decoded(SignSGD(), v)
    assert torch.equal(back.sign(), v.sign()) and torch.allclose(back.abs(), v.abs().mean())


def step_of_vote(changes: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
    codec, received = SignSGD(combine="majority"), GlobalModel({}, {})

    def sent(change: torch.Tensor) -> Envelope:
        envelope = Envelope({"w": change}, {})
        context = Context(received, {}, {}, {"key": torch.tensor(0)}, {}, {}, 0, 1, None, None)  # type: ignore[arg-type]
        return codec.receive(codec.send(envelope, context)[0], fields_of(envelope), received)

    ballots = torch.func.vmap(sent)(changes).mean["SignSGD"]
    messages = torch.utils._pytree.tree_map(lambda value: torch.tensordot(weights, value, 1), ballots)
    cohort: Cohort = None  # type: ignore[assignment]
    return codec.server_step({}, {}, {"w": changes.mean(0)}, Messages(messages, {}), cohort)[0]["w"]


def test_the_vote_follows_the_majority_of_the_clients() -> None:
    """Magnitudes do not count: a client with changes a thousand times as large is outvoted by four others."""
    changes = torch.randn(5, 40, dtype=torch.float64)
    changes[0] *= 1000
    step = step_of_vote(changes, torch.full((5,), 0.2, dtype=torch.float64))
    assert torch.equal(step.sign(), changes.sign().sum(0).sign())
    assert not torch.equal(step.sign(), changes.mean(0).sign())
    torch.testing.assert_close(step.abs(), changes.abs().mean().expand(40))


def test_zeros_vote_as_positive_numbers_and_a_tie_changes_nothing() -> None:
    changes, weights = torch.zeros(4, 16, dtype=torch.float64), torch.tensor([0.3, 0.3, 0.1, 0.3], dtype=torch.float64)
    changes[:, 0] = torch.tensor([1.0, -1.0, 0.0, 0.0])  # 0.3 + 0.1 against 0.3
    changes[:, 1] = torch.tensor([2.0, -3.0, -1.0, 0.0])  # 0.3 against 0.3 + 0.1
    changes[2] *= 0.5
    tie = changes.clone()
    tie[2] = 0  # like the last client, which has no vote
    for rows, signs in ((changes, [1, -1]), (tie, [0, 0])):
        step = step_of_vote(rows, weights)
        voters = rows.abs().sum(1) > 0
        shares = (torch.where(rows[voters] >= 0, 1.0, -1.0) * weights[voters, None]).sum(0)
        assert step[:2].sign().tolist() == signs
        torch.testing.assert_close(
            step, (weights * rows.abs().mean(1)).sum() * torch.where(shares.abs() < 1e-6, 0, shares).sign()
        )


def test_methods_that_step_at_the_server_see_the_vote() -> None:
    """The order of the methods has no effect."""
    one, other = (
        train(*methods) for methods in ((SignSGD(combine="majority"), FedAvgM()), (FedAvgM(), SignSGD(combine="majority")))
    )
    assert all(torch.equal(value, other.params[name]) for name, value in one.params.items())
    moved, start = train(EqualWeights(), SignSGD(combine="majority"), rounds=1).params, classifier().double().state_dict()
    name = next(name for name, value in moved.items() if value.numel() >= 16)
    assert len((moved[name] - start[name]).abs().mul(1e9).round().unique()) <= 2, "one step length, and 0 for ties"
    assert all(torch.isfinite(value).all() for value in train(FedExP(), SignSGD(combine="majority")).params.values())
