"""SignSGD sends one bit for each number."""

from functools import partial

import pytest
import torch
from contracts.case import Case, Refusals
from contracts.test_user_methods import Median
from harness import BatchNormMLP, classifier, train
from reference import codecs

from flcog.callbacks import EqualWeights, FedAvgM, FedExP, SignSGD
from flcog.callbacks.codecs.codec import Noise, encoded_bytes
from flcog.method import Cohort, Context, Envelope, GlobalModel, Messages
from flcog.wire.envelope import Field, fields_of

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


REFUSED: Refusals = {SignSGD: [({"combine": "median"}, "combine must be mean or majority; got 'median'")]}


def test_a_number_costs_one_bit() -> None:
    assert encoded_bytes(SignSGD(), 801, torch.float32) == 101 + 4
    v = torch.randn(801)
    back = SignSGD().decode(SignSGD().encode(v, Noise(torch.tensor(0), 0)), Field((801,), v.dtype))
    assert torch.equal(back.sign(), v.sign()) and torch.allclose(back.abs(), v.abs().mean())


def test_the_vote_follows_the_majority_of_the_clients() -> None:
    """Magnitudes do not count: a client with changes a thousand times as large is outvoted by four others."""
    changes = torch.randn(5, 40, dtype=torch.float64)
    changes[0] *= 1000
    codec, received = SignSGD(combine="majority"), GlobalModel({}, {})

    def sent(change: torch.Tensor) -> Envelope:
        envelope = Envelope({"w": change}, {})
        context = Context(received, {}, {}, {}, {}, {}, 0, 1, None, None)  # type: ignore[arg-type]
        return codec.receive(codec.send(envelope, context)[0], fields_of(envelope), received)

    messages = torch.utils._pytree.tree_map(lambda value: value.mean(0), torch.func.vmap(sent)(changes).mean["SignSGD"])
    cohort: Cohort = None  # type: ignore[assignment]
    step, _ = codec.server_step({}, {}, {"w": changes.mean(0)}, Messages(messages, {}), cohort)
    assert torch.equal(step["w"].sign(), changes.sign().sum(0).sign())
    assert not torch.equal(step["w"].sign(), changes.mean(0).sign())
    torch.testing.assert_close(step["w"].abs(), changes.abs().mean().expand(40))


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


def test_a_vote_and_an_aggregation_rule_are_refused() -> None:
    with pytest.raises(
        ValueError, match=r"^SignSGD and Median cannot be combined: a majority vote replaces the mean of the changes, too"
    ):
        train(SignSGD(combine="majority"), Median())
    assert train(SignSGD(), Median(), rounds=1).rows
