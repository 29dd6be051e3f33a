"""Methods with states at clients and at the server stay right beside rules: sums count clients equally, skipped rounds change nothing."""

import warnings
from typing import Any

import pytest
from harness import NUM_CLASSES, NUM_FEATURES, RecordingTrainer, assert_close, classifier, train
from torch import nn

from flcog.callbacks import SCAFFOLD, Bucketing, ClientDropout, EqualWeights, FedDyn, MultiKrum, NormBound, TopK, TrimmedMean
from flcog.method import Method
from methods.server_steps import gap_to_clients


def softmax() -> Any:
    return classifier(network=lambda: nn.Linear(NUM_FEATURES, NUM_CLASSES))


def drift(trainer: RecordingTrainer, method: str, at_server: str, at_clients: str) -> float:
    """The largest difference between the server's state and the mean of all clients' states, which should be equal."""
    return max(float(value.abs().max()) for value in gap_to_clients(trainer, method, at_server, at_clients).values())


@pytest.mark.parametrize("rule", [NormBound(norm=1e9), TrimmedMean(f=0), MultiKrum(f=0)], ids=lambda rule: rule.name)
def test_a_rule_that_changes_nothing_leaves_scaffold_as_it_is(rule: Method) -> None:
    alone, beside = (train(SCAFFOLD(), *methods, module=softmax(), rounds=6) for methods in ((), (rule,)))
    assert_close(beside.state, alone.state, 1e-12)
    assert drift(beside, "SCAFFOLD", "c", "c") < 1e-12


def test_buckets_of_unlike_sizes_count_their_clients() -> None:
    for weights in ((), (EqualWeights(),)):
        trainer = train(SCAFFOLD(), *weights, Bucketing(s=2), module=softmax(), rounds=6)
        assert drift(trainer, "SCAFFOLD", "c", "c") < 1e-12


@pytest.mark.parametrize(("method", "states"), [(SCAFFOLD(), ("c", "c")), (FedDyn(alpha=0.1), ("h", "g"))])
def test_a_skipped_round_changes_no_clients_state(method: Method, states: tuple[str, str]) -> None:
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        trainer = train(method, EqualWeights(), MultiKrum(f=0), ClientDropout(0.5), module=softmax(), rounds=12)
    assert any("the model stays as it was" in str(one.message) for one in said)
    assert drift(trainer, method.name, *states) < 1e-12


def test_a_skipped_round_keeps_residuals() -> None:
    options: dict[str, Any] = {"module": softmax(), "rounds": 1, "clients_per_round": 8}
    codec = TopK(fraction=0.3, error_feedback=True)
    assert train(codec, MultiKrum(f=0), **options).run.clients.by_client
    with pytest.warns(UserWarning, match="the model stays as it was"):
        skipped = train(codec, MultiKrum(f=0), ClientDropout(0.8), **options)
    assert not skipped.run.clients.by_client
