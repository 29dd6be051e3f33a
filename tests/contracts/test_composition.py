"""Any two methods either run together, under both executors, or are refused before training with a message that gives the reason.

The documentation of each hook says how the contributions of several methods are combined. The order of the list does not matter for
hooks whose results are summed, kept separately for each method, or allowed for one method only. It matters for chained and nested hooks.
"""

import copy
import functools
import itertools
import warnings
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch
from harness import SGD, TinyData, adapted, assert_close, classifier, distance, problem_of, train
from reference import fedavgm, feddc, feddisco, feddyn, fednova, fedprox, moon, scaffold
from reference.common import State

import flcog
from contracts.registry import CASES, client_states
from contracts.test_methods import METHODS
from flcog.callbacks import (
    MOON,
    SCAFFOLD,
    Availability,
    Bucketing,
    Bulyan,
    FedAvgMInFedDisco,
    FedDC,
    FedDCInFedDisco,
    FedDisco,
    FedDyn,
    FedDynInFedDisco,
    FedNova,
    FedNovaInFedDisco,
    FedProx,
    Krum,
    MultiKrum,
    PowerOfChoice,
    SCAFFOLDInFedDisco,
    UniformSelection,
    WeightedSelection,
)
from flcog.method import Attack, Method, Params, UploadChange, check_methods

FORMS: dict[str, Method] = {}
"""Every method once, with the settings of its first case, which suit a tiny model and a few steps."""
for _case in CASES.values():
    FORMS.setdefault(_case.method.name, _case.method)
# These settings work with any number of clients, and leave the clients' weights to other methods.
for _method in (Availability(), PowerOfChoice(), UniformSelection(), WeightedSelection()):
    FORMS[_method.name] = _method
FORMS |= {method.name: method for method in (Bucketing(s=1), Bulyan(f=0), Krum(f=0), MultiKrum(f=0))}
FORMS |= {name: replace(method, clients=(1,)) for name, method in FORMS.items() if isinstance(method, Attack)}
FORMS["MOON-projected"] = MOON(mu=2.0, projection=5)  # with a projection, MOON changes the model

NAMES = sorted(FORMS, key=str.lower)

EXCLUSIVE = {
    ("Ditto", "FedRep"): "both give clients models of their own",
    ("Ditto", "FineTune"): "both give clients models of their own",
    ("FedRep", "FineTune"): "both give clients models of their own",
    ("FedDM", "FedNova"): "FedDM's clients do not move the model, so that FedNova has no steps to count",
    ("FedDM", "FedNovaInFedDisco"): "FedDM's clients do not move the model, so that FedNova has no steps to count",
    ("DENSE", "FedRep"): "FedRep's clients keep their heads, and DENSE needs whole models to distil",
    ("FedGen", "FedRep"): "FedRep's clients keep their heads, and FedGen needs them to train its generator",
    ("FedRep", "LocalModels"): "FedRep's clients keep their heads, and LocalModels needs whole models to measure",
    ("MOON", "MOON-projected"): "MOON is listed 2 times in callbacks",
    ("Ditto", "Local"): "both give clients models of their own",
    ("FedRep", "Local"): "both give clients models of their own",
    ("FineTune", "Local"): "both give clients models of their own",
}
"""Pairs that cannot run together in either order, and why."""
EXCLUSIVE |= {("Availability", "DiurnalAvailability"): "both decide which clients are available"}
EXCLUSIVE |= {
    (nova, name): "it reads the changes of clients' models, and FedNova's clients send theirs divided by their numbers of steps"
    for nova in ("FedNova", "FedNovaInFedDisco")
    for name in (
        *("DENSE", "FedDC", "FedDCInFedDisco", "FedDyn", "FedDynInFedDisco"),
        *("FedExP", "FedGen", "FlexLoRA", "LocalModels"),
    )
}
DRIFT = ("FedDC", "FedDCInFedDisco", "FedDyn", "FedDynInFedDisco", "FedPVR", "FedReg", "SCAFFOLD", "SCAFFOLDInFedDisco")
EXCLUSIVE |= {
    ("FedRep", name): "it compares clients' models with the global model, whose head never trains beside FedRep"
    for name in (*DRIFT, "FedCOG", "FedProx")
}
EXCLUSIVE |= {
    ("FlexLoRA", name): "it compares clients' adapters with the global ones, of which a client has only the part of its rank"
    for name in DRIFT
}
SELECTIONS = ("Oort", "PoissonSampling", "PowerOfChoice", "RoundRobin", "UniformSelection", "WeightedSelection")
EXCLUSIVE |= dict.fromkeys(itertools.combinations(SELECTIONS, 2), "both select the clients of a round")
CODECS = ("LowPrecision", "Quantize", "RandomK", "RotatedQuantize", "SignSGD", "TopK")
EXCLUSIVE |= dict.fromkeys(itertools.combinations(CODECS, 2), "both encode what clients send")
EXCLUSIVE |= {("EncodedBroadcast", name): "its clients receive different parts of the model" for name in ("FedRep", "FlexLoRA")}
EXCLUSIVE |= {("EncodedBroadcast", "PowerOfChoice"): "its candidates download the model before the broadcast is encoded"}
EXCLUSIVE |= {
    (keeper, "PowerOfChoice"): f"which with {keeper} are not those of the models that clients keep"
    for keeper in ("FedRep", "Local")
}
RULES = ("Bulyan", "CenteredClipping", "CoordinateMedian", "GeometricMedian", "Krum", "MultiKrum", "NormBound", "TrimmedMean")
EXCLUSIVE |= dict.fromkeys(itertools.combinations(RULES, 2), "both replace the mean of the clients' changes")
SINGLE_UPLOADS = "reads single uploads, and SecureAggregation shows the server only their sum"
ATTACKS_AT_THE_SERVER = ("ALittleIsEnough", "InnerProductManipulation", "Mimic", "MinMax")
PRE_AGGREGATIONS = ("AdaptiveRobustClipping", "Bucketing", "NearestNeighbourMixing", "StaticClipping")
AT_THE_SERVER = (
    *RULES,
    *PRE_AGGREGATIONS,
    *ATTACKS_AT_THE_SERVER,
    *(
        "DENSE",
        "DPFedAvg",
        "EncodedBroadcast",
        "EqualWeights",
        "FedBuff",
        "FedAdagrad",
        "FedAdam",
        "FedAvgM",
        "FedDC",
        "FedDisco",
        "FedDM",
        "FedDyn",
        "FedExP",
        "FedGen",
        "FlexLoRA",
    ),
    *(
        "SecureAggregation",
        "FedNova",
        "SignSGD",
        "FedPVR",
        "FedWalk",
        "FedYogi",
        "LocalModels",
        "SCAFFOLD",
        "FedAvgMInFedCOG",
        "FedAvgMInFedDisco",
    ),
    *("FedDCInFedDisco", "FedDynInFedDisco", "FedNovaInFedDisco", "SCAFFOLDInFedDisco"),
)
SINGLE = (*RULES, *PRE_AGGREGATIONS, *ATTACKS_AT_THE_SERVER, "DENSE", "FedDM", "FedGen", "FlexLoRA", "LocalModels")
EXCLUSIVE |= {tuple(sorted((name, "SecureAggregation"), key=str.lower)): SINGLE_UPLOADS for name in SINGLE}
EXCLUSIVE |= {tuple(sorted((name, "SecureAggregation"), key=str.lower)): f"{name} encodes uploads" for name in CODECS}
EXCLUSIVE |= {("FedBuff", "SecureAggregation"): "their staleness is known when FedBuff receives them"}
EXCLUSIVE |= {
    tuple(sorted(("FedBuff", name), key=str.lower)): f"{name} reads single uploads as if they began at one model"
    for name in SINGLE
}
EXCLUSIVE |= {
    tuple(sorted(("FedBuff", name), key=str.lower)): f"{name} has weights of its own"
    for name in ("EqualWeights", "FedDC", "FedDCInFedDisco", "FedDisco", "FedDyn", "FedDynInFedDisco")
}
EXCLUSIVE |= {("Deadline", "FedBuff"): "waits for no late clients", ("FedBuff", "OverSelect"): "waits for no late clients"}
EXCLUSIVE |= {("FedBuff", "PoissonSampling"): "it does not select a given number of clients"}
EXCLUSIVE |= {
    tuple(sorted(("DPSGD", name), key=str.lower)): "it reads samples outside the gradient, without noise"
    for name in ("FedDisco", "FedWalk", "Fedssyn", "FedCOG", "FedGen", "PowerOfChoice")
}
EXCLUSIVE |= {("DPSGD", "FedDecorr"): "it compares the samples of a batch, and DPSGD takes the gradient of each sample alone"}
EXCLUSIVE |= {("DPSGD", "Oort"): "it selects clients by the losses of their training, which they send as 0"}
EXCLUSIVE |= {("DPSGD", "Stragglers"): "its clients take more steps than the accountant counts"}
EXCLUSIVE |= {
    tuple(sorted(("DPSGD", name), key=str.lower)): "it takes further gradients of a batch, which the accountant does not count"
    for name in ("FedSAM", "FedReg", "FedDM")
}
EXCLUSIVE |= {("Oort", "SecureAggregation"): "Oort reads the losses of single clients"}
EXCLUSIVE |= {
    tuple(sorted((bound, name), key=str.lower)): f"with {bound} nothing is sent to a server, where {name} acts"
    for bound in ("Centralized", "Local")
    for name in AT_THE_SERVER
}

REFUSED_ORDERS = {("VHL", "MOON-projected"): "a method listed after VHL has changed the head .* List VHL after it"}
"""Pairs that run only in the opposite order."""

CHAINS = (
    "configure_model",
    "prepare_data",
    "plan",
    "weights",
    "start",
    "wrap_gradient",
    "correct_gradient",
    "after_step",
    "finish_client",
    "server_step",
    "evaluate_at",
)
"""Hooks in which each method receives, or wraps, the result of the method listed before it."""

# The combinations in the papers' own tables, except the combination with "FedAvg", which is the method by itself.
PAPERS = {
    "FedCOG": ("FedAvgM", "FedProx", "SCAFFOLD", "MOON"),
    "FedDisco": ("FedAvgM", "FedProx", "SCAFFOLD", "FedDyn", "FedNova", "MOON", "FedDC"),
    "FedWalk": ("SCAFFOLD", "FedProx", "FedNova"),
    "Fedssyn": ("FedProx", "SCAFFOLD", "FedDyn", "FedPVR"),
}

DATA = TinyData(order=(1, 2, 3, 5))
"""Four clients with 10 to 16 samples each. All runs share one split."""


LEAKS = (
    *(*RULES, *PRE_AGGREGATIONS, *ATTACKS_AT_THE_SERVER),
    *("Availability", "DiurnalAvailability", "Fedssyn", "Deadline", "FedBuff", "OverSelect"),
    *("DENSE", "FedDM", "FedGen", "FlexLoRA", "LocalModels", "EncodedBroadcast", "FedExP", "SecureAggregation"),
    *("EqualWeights", "FedDC", "FedDCInFedDisco", "FedDisco", "FedDyn", "FedDynInFedDisco"),
    *("Oort", "PowerOfChoice", "RoundRobin", "WeightedSelection"),
)
"""Methods that DPFedAvg refuses before round 1. Its own tests check the reasons."""

OTHERS = {
    *(("FedDM", name) for name in ("DENSE", "FedGen", "FlexLoRA", "LocalModels")),  # FedDM's clients send no models
    ("FFALoRA", "FlexLoRA"),  # one freezes A, the other replaces it
    *(("Centralized", name) for name in ("Backdoor", "GaussianAttack", "LabelFlip", "SignFlip")),  # the attacker is client 1
    ("RotatedQuantize", "TrimmedMean"),  # rounding breaks ties of clients whose weights differ
    ("MinMax", "NearestNeighbourMixing"),  # the attack and the farthest honest client are equally far away
}
"""Further pairs that cannot be compared here."""


def excluded(a: str, b: str) -> bool:
    private = "DPFedAvg" in (a, b) and (a in LEAKS or b in LEAKS)
    return private or any(pair in EXCLUSIVE or pair in OTHERS for pair in ((a, b), (b, a)))


@functools.cache
def outcome(names: tuple[str, ...], executor: str) -> tuple[Params, Params, list[dict[str, float]]]:
    """The global model, the clients' states and the figures after two rounds of two steps."""
    module = adapted() if any(FORMS[name].needs_adapters for name in names) else classifier()
    options: dict[str, Any] = {"rounds": 2, "local_steps": 2, "clients_per_round": 4, "data": DATA, "module": module}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        said = ("replaces the server's step", "its server's step does nothing")  # of FlexLoRA, and with FedDM
        lonely = ("needs at least . uploads and gets", "no client's update counts")  # robust rules beside dropout, and Deadline
        for words in (*said, *lonely):
            warnings.filterwarnings("ignore", f".*{words}")
        trainer = train(*(FORMS[name] for name in names), executor=executor, **options)
    assert (trainer.executor.name == "vmap") == (executor == "vmap"), trainer.notes
    return trainer.state, client_states(trainer), trainer.rows


def check(*names: str) -> None:
    """Check that both executors give the same finite result."""
    state, clients, rows = outcome(names, "loop")
    for name, value in (state | clients).items():
        assert torch.isfinite(value).all(), f"{names}: {name} is not finite"
    other_state, other_clients, other_rows = outcome(names, "vmap")
    assert_close(other_state, state, 1e-9)
    assert_close(other_clients, clients, 1e-9)
    assert other_rows == [pytest.approx(row, rel=1e-7) for row in rows], names


def share_a_chain(a: str, b: str) -> bool:
    # Of two attacks, and of two rules before the aggregation, the second one changes the first one's uploads.
    changes = any(all(isinstance(FORMS[name], kind) for name in (a, b)) for kind in (Attack, UploadChange))
    return changes or any(FORMS[a].overrides(hook) and FORMS[b].overrides(hook) for hook in CHAINS)


def test_every_method_is_here() -> None:
    assert {method.name for method in FORMS.values()} == set(METHODS)
    assert all(name in FORMS for pair in (*EXCLUSIVE, *REFUSED_ORDERS) for name in pair)


@pytest.mark.parametrize("paper", PAPERS)
@pytest.mark.slow
def test_the_papers_own_combinations(paper: str) -> None:
    check(paper)
    for partner in PAPERS[paper]:
        assert not excluded(paper, partner)
        check(partner, paper)


@pytest.mark.parametrize(
    ("partner", "reference"),
    [
        (FedDyn(alpha=0.1), partial(feddyn.run, alpha=0.1)),
        (FedDC(alpha=0.3), partial(feddc.run, alpha=0.3)),
        (SCAFFOLD(), scaffold.run),
        (FedNova(), fednova.run),
        (FedDynInFedDisco(alpha=0.1), partial(feddyn.run_feddisco, alpha=0.1, mean_size=49 / 4)),
        (FedDCInFedDisco(alpha=0.3), partial(feddc.run_feddisco, alpha=0.3, mean_size=49 / 4)),
        (SCAFFOLDInFedDisco(), scaffold.run_feddisco),
        (FedNovaInFedDisco(batch_size=4), partial(fednova.run_feddisco, batch_size=4)),
        (FedAvgMInFedDisco(beta=0.5), partial(fedavgm.run, beta=0.5, form="feddisco")),
        (FedProx(mu=0.5), partial(fedprox.run, mu=0.5)),
        (MOON(mu=0.5, projection=None), partial(moon.run, mu=0.5, temperature=0.5)),
    ],
    ids=lambda value: getattr(value, "name", ""),
)
def test_disco_weighs_what_the_authors_code_weighs(partner: Method, reference: Callable[..., State]) -> None:
    """FedDisco's weights apply to the same means as in its authors' program.

    They apply to the mean of the models alone in FedDyn, FedDC and SCAFFOLD (not to its control variate), to both sums in FedNova, and to
    the only mean in the other methods.
    """
    disco = FedDisco(a=0.4, b=0.1)
    module, options = classifier(), {"data": DATA, "local_epochs": 1.5, "rounds": 3, "clients_per_round": 3}
    before = copy.deepcopy(module)
    trainer = train(partner, disco, module=module, **options)
    weights = partial(feddisco.weights, a=0.4, b=0.1, target=[1, 1, 1])
    problem = problem_of(trainer, before, SGD)
    assert_close(trainer.state, reference(problem, weights=weights), 1e-9)
    with pytest.raises(AssertionError):
        assert_close(trainer.state, reference(problem), 1e-9)


@pytest.mark.slow
def test_an_experiment_of_many() -> None:
    """Methods that change the data, loss, gradient, weights, server step and system run together, as at the start of an ablation."""
    check(
        "FedCOG",
        "FedProx",
        "MOON",
        "FedDecorr",
        "SCAFFOLD",
        "FedSAM",
        "ClipGradient",
        "FedDisco",
        "Stragglers",
        "FedAvgM",
        "FedWalk",
    )


@pytest.mark.slow
@pytest.mark.parametrize("first", NAMES)
def test_all_pairs(first: str) -> None:
    for second in NAMES:
        if second == first or excluded(first, second):
            continue
        if (first, second) in REFUSED_ORDERS:
            with pytest.raises(ValueError, match=REFUSED_ORDERS[first, second]):
                outcome((first, second), "loop")
            continue
        check(first, second)
        if not share_a_chain(first, second) and (second, first) not in REFUSED_ORDERS:
            same_in_either_order(first, second)


def same_in_either_order(a: str, b: str) -> None:
    one, other = outcome((a, b), "loop"), outcome((b, a), "loop")
    assert_close(other[0], one[0], 1e-10)
    assert_close(other[1], one[1], 1e-10)


@pytest.mark.parametrize(
    ("a", "b"),
    [("FedProx", "SCAFFOLD"), ("FedDisco", "FedAvgM"), ("FedSAM", "FedDecorr"), ("Stragglers", "FedNova"), ("FedReg", "FedProx")],
)
def test_order_means_nothing_without_a_common_chain(a: str, b: str) -> None:
    assert not share_a_chain(a, b)
    same_in_either_order(a, b)


@pytest.mark.parametrize(("a", "b"), [("SCAFFOLD", "ClipGradient"), ("FedAvgM", "FedExP"), ("FedSAM", "FedReg")])
def test_chains_follow_the_list(a: str, b: str) -> None:
    """The order of two methods in one chain matters: clipping a corrected gradient differs from correcting a clipped gradient."""
    assert share_a_chain(a, b)
    one, other = outcome((a, b), "loop")[0], outcome((b, a), "loop")[0]
    assert max(float((one[name] - other[name]).abs().max()) for name in one) > 1e-4


def test_the_last_to_set_weights_decides() -> None:
    alone, overruled, replaced = (train(*methods) for methods in ((FedDyn(),), (FedDisco(), FedDyn()), (FedDyn(), FedDisco())))
    assert distance(overruled.state, alone.state) == 0
    assert distance(replaced.state, alone.state) > 1e-5


def test_what_excludes_each_other_is_refused_with_the_reason() -> None:
    refused = set()
    for a, b in itertools.permutations(NAMES, 2):
        if (a, b) in REFUSED_ORDERS:
            continue
        try:
            check_methods([FORMS[a], FORMS[b]])
        except ValueError as error:
            reason = EXCLUSIVE.get((a, b)) or EXCLUSIVE.get((b, a))
            assert reason is not None and reason in str(error) and "\n" not in str(error)
            refused.add(tuple(sorted((a, b), key=str.lower)))
    assert refused == {tuple(sorted(pair, key=str.lower)) for pair in EXCLUSIVE}


@pytest.mark.parametrize("pair", EXCLUSIVE, ids="+".join)
def test_a_trainer_is_not_made_of_what_excludes_each_other(pair: tuple[str, str]) -> None:
    options: dict[str, Any] = {"rounds": 1, "local_steps": 1, "logger": False}
    with pytest.raises(ValueError, match=EXCLUSIVE[pair]):
        flcog.FederatedTrainer(callbacks=[FORMS[name] for name in pair], **options)


@pytest.mark.parametrize("pair", REFUSED_ORDERS, ids="+".join)
def test_an_order_that_cannot_run_is_refused_before_training(pair: tuple[str, str]) -> None:
    with pytest.raises(ValueError, match=REFUSED_ORDERS[pair]) as caught:
        trainer = flcog.FederatedTrainer(rounds=1, local_steps=1, logger=False, callbacks=[FORMS[name] for name in pair])
        trainer.prepare(classifier(), DATA)
    assert "\n" not in str(caught.value)
    check(*reversed(pair))
