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
    Freeze,
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
FORMS["Freeze"] = Freeze(r"hidden\.0\.(bias|B)")  # with FedRep the head is no shared part
FORMS["MOON-projected"] = MOON(mu=2.0, projection=5)  # with a projection, MOON changes the model

NAMES = sorted(FORMS, key=str.lower)


def refusal(a: str, b: str) -> str:
    """Why two methods cannot run together; empty if they can."""
    try:
        check_methods([FORMS[a], FORMS[b]])
    except ValueError as error:
        return str(error)
    return ""


EXCLUSIVE = {pair for pair in itertools.combinations(NAMES, 2) if refusal(*pair)}
"""Pairs that cannot run together in either order."""

REASONS = {
    ("Ditto", "FedRep"): "both give clients models of their own",
    ("FedRep", "DENSE"): "it needs whole models, and clients keep parts of theirs",
    ("FedNovaInFedDisco", "FedExP"): "it reads the changes of clients' models",
    ("Oort", "RoundRobin"): "both select the clients of a round",
    ("Bulyan", "Krum"): "both replace the mean of the clients' changes",
    ("EncodedBroadcast", "FlexLoRA"): "its clients receive different parts of the model",
    ("MinMax", "SecureAggregation"): "reads single uploads, and SecureAggregation shows the server only their sum",
    ("FedBuff", "SecureAggregation"): "SecureAggregation combines uploads as if they began at one model",
    ("DPSGD", "FedSAM"): "it takes further gradients of a batch, which the accountant does not count",
    ("Local", "FedAvgM"): "with Local nothing is sent to a server, where FedAvgM acts",
}
"""Some of them, one for each kind of reason."""

SINGLE_UPLOADS = [name for name in NAMES if FORMS[name].individual_uploads]

WRONG_ORDERS = [(name, "MOON-projected") for name in ("FedDBE", "FedRoD", "VHL")]
"""Pairs that run only in the opposite order, because the second method replaces the head that the first one has changed."""

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
    *SINGLE_UPLOADS,
    *("Availability", "DiurnalAvailability", "Fedssyn", "Deadline", "FedBuff", "OverSelect"),
    *("EncodedBroadcast", "FedExP", "SecureAggregation"),
    *("EqualWeights", "QFFL", "FedDC", "FedDCInFedDisco", "FedDisco", "FedDyn", "FedDynInFedDisco"),
    *("Oort", "PowerOfChoice", "RoundRobin", "WeightedSelection"),
)
"""Methods that DPFedAvg refuses before round 1. Its own tests check the reasons."""

OTHERS = {
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


def together(a: str, b: str) -> bool:
    return not excluded(a, b)


def unrelated(a: str, b: str) -> bool:
    return together(a, b) and not share_a_chain(a, b)


@functools.cache
def sets_of_four(fit: Callable[[str, str], bool]) -> list[tuple[str, ...]]:
    """Sets of methods of which any two fit. Every two methods that fit occur in one of them."""
    pairs, found = [pair for pair in itertools.combinations(NAMES, 2) if fit(*pair)], []
    left = {*map(frozenset, pairs)}
    for pair in pairs:
        chosen = [*pair] if frozenset(pair) in left else []
        while 0 < len(chosen) < 4:
            fitting = [name for name in NAMES if name not in chosen and all(fit(name, other) for other in chosen)]
            new = {name: sum(frozenset((name, other)) in left for other in chosen) for name in fitting}
            if not any(new.values()):
                break
            chosen.append(max(new, key=new.__getitem__))
        left -= {*map(frozenset, itertools.combinations(chosen, 2))}
        found += [tuple(chosen)] * bool(chosen)
    return found


PARTS = 8


@pytest.mark.slow
@pytest.mark.parametrize("part", range(PARTS))
def test_all_pairs(part: int) -> None:
    """Both executors agree about each pair in both orders. Sets of four take a sixth of the time of pairs."""
    for names in sets_of_four(together)[part::PARTS]:
        for order in (names, names[::-1]):
            if not {*WRONG_ORDERS} & {*itertools.combinations(order, 2)}:
                check(*order)
        outcome.cache_clear()


@pytest.mark.slow
@pytest.mark.parametrize("part", range(PARTS))
def test_no_order_of_a_pair_means_anything_without_a_common_chain(part: int) -> None:
    for names in sets_of_four(unrelated)[part::PARTS]:
        same_in_either_order(*names)
        outcome.cache_clear()


def same_in_either_order(*names: str) -> None:
    one, other = outcome(names, "loop"), outcome(names[::-1], "loop")
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


def test_few_pairs_exclude_each_other_and_they_do_so_in_either_order() -> None:
    assert all(refusal(b, a) for a, b in EXCLUSIVE)
    assert len(EXCLUSIVE) < 0.1 * len(NAMES) * (len(NAMES) - 1) / 2
    assert not any("\n" in refusal(a, b) for a, b in EXCLUSIVE)


@pytest.mark.parametrize("pair", REASONS, ids="+".join)
def test_a_trainer_is_not_made_of_what_excludes_each_other(pair: tuple[str, str]) -> None:
    options: dict[str, Any] = {"rounds": 1, "local_steps": 1, "logger": False}
    with pytest.raises(ValueError, match=REASONS[pair]):
        flcog.FederatedTrainer(callbacks=[FORMS[name] for name in pair], **options)


@pytest.mark.parametrize("pair", WRONG_ORDERS, ids="+".join)
def test_pairs_that_run_in_one_order_alone(pair: tuple[str, str]) -> None:
    with pytest.raises((AttributeError, RuntimeError, ValueError)):
        train(*(FORMS[name] for name in pair), data=DATA, rounds=1)
    check(*reversed(pair))
