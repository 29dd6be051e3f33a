"""Every shipped method, against the paper in plain torch, against itself under other executors, and against theorems."""

import copy
import doctest
import importlib
import inspect
import itertools
import math
import pkgutil
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import jsonargparse
import pytest
import torch
from harness import (
    ROOT,
    SGD,
    TESTS,
    BatchNormMLP,
    RecordingTrainer,
    TinyData,
    assert_close,
    classifier,
    distance,
    fit,
    problem_of,
    train,
    without_times,
)
from reference import fedavg
from torch import Tensor, nn

import flcog
import flcog.callbacks
import flcog.datamodules
from contracts.cases import MOMENTUM, Case
from flcog.callbacks import (
    SCAFFOLD,
    ClientDropout,
    ClipGradient,
    EqualWeights,
    FedAdagrad,
    FedAdam,
    FedAvgM,
    FedDisco,
    FedDyn,
    FedNova,
    FedProx,
    FedSAM,
    FedYogi,
    Stragglers,
)
from flcog.engine.aggregation import BadUpdate
from flcog.engine.executors.threads import ThreadedLoop
from flcog.hooks import Cohort, Method, Params
from flcog.models import Dropout
from flcog.schedules import Piecewise

pytestmark = pytest.mark.filterwarnings("error")


def registered(name: str) -> dict[str, Any]:
    """One of the dictionaries of ``cases.py``, with what the files of the methods add to it."""
    paths = [TESTS / "contracts/cases.py", *sorted((TESTS / "methods").rglob("cases_*.py"))]
    registries = [importlib.import_module(".".join(path.relative_to(TESTS).with_suffix("").parts)) for path in paths]
    parts = [getattr(registry, name) for registry in registries if hasattr(registry, name)]
    merged = {key: value for part in parts for key, value in part.items()}
    assert len(merged) == sum(map(len, parts)), f"an entry of {name} is registered twice"
    return merged


LIKE_FEDAVG: dict[str, Case] = registered("LIKE_FEDAVG")
CASES: dict[str, Case] = registered("CASES") | registered("LARGER") | LIKE_FEDAVG
NO_REFERENCE: dict[str, str] = registered("NO_REFERENCE")

each_case = pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())


def run(case: Case, *callbacks: flcog.Callback, **options: Any) -> RecordingTrainer:
    """The case's setting with these callbacks in the place of its method."""
    return train(*callbacks, **({"module": case.module(case.optimizer), "data": case.data()} | case.options | options))


_listed: dict[int, tuple[RecordingTrainer, flcog.ClientModule]] = {}
_idle: dict[int, RecordingTrainer] = {}


def as_listed(case: Case) -> tuple[RecordingTrainer, flcog.ClientModule]:
    """The case itself, run once for all tests that compare with it, and the module that it started from."""
    if id(case) not in _listed:
        module = case.module(case.optimizer)
        before = copy.deepcopy(module)
        _listed[id(case)] = run(case, case.method, module=module), before
    return _listed[id(case)]


def before_it_starts(case: Case) -> RecordingTrainer:
    """The case with its method waiting for a round that never comes, also run once."""
    if id(case) not in _idle:
        _idle[id(case)] = run(case, replace(case.method, start_round=3))
    return _idle[id(case)]


def run_on_all_samples(case: Case, order: Sequence[int]) -> RecordingTrainer:
    """The case with every client in every round and all of its samples in every step, so that no draw tells clients apart."""
    full = {"clients_per_round": 1.0, "local_steps": 3, "local_epochs": None}
    return run(case, case.method, data=TinyData(batch_size=16, order=order), **full)


@each_case
def test_against_the_paper(case: Case) -> None:
    if case.reference is None:
        pytest.skip("it is compared with the paper piece by piece, in a file of its own")
    trainer, before = as_listed(case)
    assert_close(trainer.state, case.reference(problem_of(trainer, before, case.optimizer)), case.rtol)


@each_case
def test_executors_agree(case: Case) -> None:
    loop, _ = as_listed(case)
    threads = run(case, case.method, chunk_size=2)
    assert isinstance(threads.executor, ThreadedLoop)
    assert_close(threads.state, loop.state, 0)
    assert_close(_client_states(threads), _client_states(loop), 0)
    assert threads.rows == loop.rows
    for chunk_size in (None, 2):
        vmap = run(case, case.method, executor="vmap", chunk_size=chunk_size)
        assert vmap.executor.name == ("vmap" if case.method.vmappable else "loop")
        assert_close(vmap.state, loop.state, 1e-11)
        assert_close(_client_states(vmap), _client_states(loop), 1e-10)
        assert vmap.rows == [pytest.approx(row, rel=1e-9) for row in loop.rows]


def _client_states(trainer: RecordingTrainer) -> Params:
    leaves, _ = torch.utils._pytree.tree_flatten_with_path(trainer.states.slots)
    return {torch.utils._pytree.keystr(path): leaf for path, leaf in leaves}


@each_case
def test_before_its_first_round_it_does_nothing(case: Case) -> None:
    idle = before_it_starts(case)
    if not (case.method.overrides("configure_model") or case.method.overrides("prepare_data")):
        assert distance(idle.state, run(case).state) == 0


@each_case
def test_neutral_setting_is_fedavg_and_others_are_not(case: Case) -> None:
    plain, (trainer, _) = before_it_starts(case), as_listed(case)
    difference = distance(trainer.state, plain.state)
    assert difference == 0 if case in LIKE_FEDAVG.values() else difference > 1e-5
    if case.neutral is not None:
        assert_close(run(case, case.neutral).state, plain.state, 1e-12)


@each_case
def test_resume_is_bitwise(case: Case, tmp_path: Path) -> None:
    setting = partial(fit, tmp_path, case.method, **case.options)
    whole = setting(module=case.module(case.optimizer), data=case.data(), rounds=4)
    half = setting(module=case.module(case.optimizer), data=case.data(), rounds=2)
    resumed = setting(module=case.module(case.optimizer), data=case.data(), rounds=4, ckpt_path=str(half.run_dir))
    assert [len(trainer.recorded) for trainer in (whole, half, resumed)] == [4, 2, 2]
    for name, value in whole.state.items():
        assert torch.equal(resumed.state[name], value), name
    assert without_times(resumed.rows) == without_times(whole.rows)


@each_case
def test_client_ids_are_only_names(case: Case) -> None:
    if case.random:
        pytest.skip("draws depend on the client's id")
    runs = [run_on_all_samples(case, order) for order in (range(8), (3, 0, 7, 1, 6, 4, 2, 5))]
    assert_close(runs[1].state, runs[0].state, 1e-11)


@each_case
def test_identical_clients_are_one(case: Case) -> None:
    if case.random:
        pytest.skip("clients with equal data draw different numbers")
    runs = [run_on_all_samples(case, order) for order in ((5,), (5, 5, 5, 5))]
    assert_close(runs[1].state, runs[0].state, 1e-11)


# FedAvg itself ----------------------------------------------------------------------------------------------------------------------

OPTIMIZERS = {
    "sgd": SGD,
    "momentum": MOMENTUM,
    "adam": partial(torch.optim.Adam, lr=0.01),
    "adamw": partial(torch.optim.AdamW, lr=0.01, weight_decay=0.1),
}
NETWORKS = {"mlp": None, "batchnorm": BatchNormMLP}


@pytest.mark.parametrize("network", NETWORKS.values(), ids=NETWORKS.keys())
@pytest.mark.parametrize("work", [{"local_steps": 4}, {"local_epochs": 1.5}], ids=["steps", "epochs"])
@pytest.mark.parametrize("optimizer", OPTIMIZERS.values(), ids=OPTIMIZERS.keys())
def test_fedavg(optimizer: Any, work: dict[str, Any], network: Any) -> None:
    module = classifier(optimizer, network)
    loop = train(module=copy.deepcopy(module), **work)
    assert_close(loop.state, fedavg.run(problem_of(loop, module, optimizer)), 1e-10)
    for chunk_size in (None, 2):
        vmap = train(module=classifier(optimizer, network), executor="vmap", chunk_size=chunk_size, **work)
        assert vmap.executor.name == "vmap"
        assert_close(vmap.state, loop.state, 1e-11)


def dropout_network() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 8), nn.ReLU(), Dropout(0.5), nn.Linear(8, 3))


@pytest.mark.parametrize("methods", [(), (FedSAM(rho=0.3),)], ids=["fedavg", "fedsam"])
def test_dropout_is_the_same_under_every_executor(methods: tuple[Method, ...]) -> None:
    loop, vmap, chunked = (
        train(*methods, module=classifier(network=dropout_network), local_epochs=1.5, **options)
        for options in ({}, {"executor": "vmap"}, {"executor": "vmap", "chunk_size": 2})
    )
    assert_close(vmap.state, loop.state, 1e-11)
    assert_close(chunked.state, loop.state, 1e-11)
    without = train(module=classifier(network=lambda: nn.Sequential(*[dropout_network()[i] for i in (0, 1)], nn.Linear(8, 3))))
    assert distance({"x": next(iter(without.state.values()))}, {"x": next(iter(loop.state.values()))}) > 1e-3


@pytest.mark.parametrize("method", [None, SCAFFOLD(), FedNova(), FedDisco(), EqualWeights()], ids=repr)
def test_one_client_is_plain_sgd(method: Method | None) -> None:
    module = classifier(MOMENTUM)
    network = copy.deepcopy(module.model).double()
    trainer = train(*([method] if method else []), module=module, data=TinyData(order=(3,)), clients_per_round=1, local_epochs=2)
    for (client,) in trainer.recorded:
        optimizer = MOMENTUM(network.parameters())
        for inputs, targets in client.batches:
            optimizer.zero_grad()
            nn.functional.cross_entropy(network(inputs), targets).backward()
            optimizer.step()
    assert_close(trainer.state, network.state_dict(), 1e-11)


@dataclass(frozen=True)
class Without(Method):
    """Leaves one client out: before it trains, or when its update is weighed."""

    client: int = 0
    trains: bool = False

    def plan(self, plan: Any, client: Any, rng: torch.Generator) -> Any:
        return plan if self.trains or client.id != self.client else None

    def weights(self, weights: Tensor, reports: object, cohort: Cohort) -> Tensor:
        return weights * torch.tensor([float(client != self.client) for client in cohort.clients])


@pytest.mark.parametrize("executor", ["loop", "vmap"])
def test_a_client_without_weight_changes_nothing(executor: str) -> None:
    absent, weightless = (
        train(Without(client=3, trains=trains), clients_per_round=8, executor=executor) for trains in (False, True)
    )
    assert [len(round) for round in absent.recorded + weightless.recorded] == [7, 7, 7, 8, 8, 8]
    assert_close(weightless.state, absent.state, 1e-12)


# What single methods promise --------------------------------------------------------------------------------------------------------


def test_stragglers_do_what_they_can() -> None:
    trainer = train(Stragglers(min_steps=2, max_steps=5), clients_per_round=8, rounds=8)
    steps = [[len(client.batches) for client in round] for round in trainer.recorded]
    assert set(itertools.chain(*steps)) == {2, 3, 4, 5}
    assert len({tuple(round) for round in steps}) == 8


def test_clients_drop_out_at_the_rate_asked_for() -> None:
    trainer = train(ClientDropout(probability=0.3), clients_per_round=8, rounds=50, local_steps=1)
    share = sum(map(len, trainer.recorded)) / 400
    assert abs(share - 0.7) < 3 * (0.3 * 0.7 / 400) ** 0.5
    with pytest.warns(UserWarning, match="round 1: every sampled client dropped out"):
        nobody = train(ClientDropout(probability=1 - 1e-9), rounds=1)
    assert distance(nobody.params, {name: value.detach().double() for name, value in classifier().named_parameters()}) == 0


@pytest.mark.parametrize("executor", ["loop", "vmap"])
def test_fedsam_leaves_the_trace_of_one_pass(executor: str) -> None:
    """Statistics and reported loss are those at the client's own parameters, not at the perturbed ones, and not of both."""
    plain, sharp = (
        train(*methods, module=classifier(network=BatchNormMLP), executor=executor, local_steps=1, rounds=1)
        for methods in ((), (FedSAM(rho=0.3),))
    )
    assert_close(sharp.buffers, plain.buffers, 1e-12)
    assert sharp.rows[0]["train/loss"] == pytest.approx(plain.rows[0]["train/loss"], rel=1e-12)
    assert distance(sharp.params, plain.params) > 1e-4


def test_feddyn_is_evaluated_at_the_mean_of_its_clients() -> None:
    method, clients = FedDyn(alpha=0.1), {"clients_per_round": 5, "rounds": 1}
    dynamic, mean = train(method, **clients), train(FedProx(mu=0.1), EqualWeights(), **clients)
    evaluated = method.evaluate_at(dynamic.servers["FedDyn"], dynamic.params)
    assert_close(evaluated, mean.params, 1e-12)
    assert distance(dynamic.params, mean.params) > 1e-2
    assert replace(method, evaluate_mean=False).evaluate_at(dynamic.servers["FedDyn"], dynamic.params) is dynamic.params


def test_what_methods_send() -> None:
    def bytes_of(method: Method, **options: Any) -> tuple[float, float]:
        ledger = train(method, clients_per_round=8, rounds=2, **options).ledger
        return ledger.up[method.name] / ledger.up["model"], ledger.down[method.name] / ledger.down["model"]

    num_params = sum(p.numel() for p in classifier().parameters())
    assert bytes_of(SCAFFOLD()) == (1, 1)
    for free in (FedProx(), FedAvgM(), FedAdam(), FedDyn(), FedSAM(), EqualWeights()):
        assert bytes_of(free) == (0, 0)
    for executor in ("loop", "vmap"):
        assert bytes_of(FedNova(), executor=executor) == (1 / num_params, 0)
    # One float32 from each client in the first of two rounds of float64 models; three counts each way before it.
    assert bytes_of(FedDisco()) == (4 / 8 / 2 / num_params, 0)
    assert bytes_of(FedDisco(target="global")) == (4 * 4 / 8 / 2 / num_params, 3 * 4 / 8 / 2 / num_params)


@pytest.mark.parametrize("targets", ["multilabel", "regression"])
@pytest.mark.parametrize("executor", ["loop", "vmap"])
def test_feddisco_weighs_any_kind_of_label(targets: Any, executor: str) -> None:
    data = TinyData(targets=targets)
    network = flcog.models.MLP(6, (8,), 3 if targets == "multilabel" else 1)
    client = flcog.MultiLabelClassifier if targets == "multilabel" else flcog.Regressor
    trainers = [
        train(*methods, module=client(copy.deepcopy(network), SGD), data=data, executor=executor, clients_per_round=8, rounds=1)
        for methods in ((), (FedDisco(a=0.2),))
    ]
    assert distance(trainers[0].state, trainers[1].state) > 1e-4
    counts = torch.stack([data.federation.label_counts(k) for k in range(8)])
    assert counts.shape == (8, 3)
    reports = trainers[1]._reports["FedDisco"]
    for k, shares in enumerate(counts / counts.sum(1, keepdim=True)):
        assert reports[k] == pytest.approx(float(sum(s * math.log(3 * s) for s in shares.tolist() if s)), abs=1e-12)


def test_weights_that_are_all_zero_are_not_used() -> None:
    with pytest.warns(UserWarning, match="FedDisco gave every client of round 1 weight 0: keeping the weights before it"):
        trainer = train(FedDisco(a=100.0, b=0.0, metric="l1"), clients_per_round=2, rounds=1)
    assert_close(trainer.state, train(clients_per_round=2, rounds=1).state, 1e-15)


def test_the_last_to_set_weights_decides() -> None:
    alone, overruled, replaced = (train(*methods) for methods in ((FedDyn(),), (FedDisco(), FedDyn()), (FedDyn(), FedDisco())))
    assert distance(overruled.state, alone.state) == 0
    assert distance(replaced.state, alone.state) > 1e-5


class OneBrokenClient(TinyData):
    """Client 6's inputs are not numbers."""

    def load(self) -> Any:
        splits = super().load()
        splits.train.inputs[62:66] = math.nan
        return splits


@pytest.mark.parametrize("executor", ["loop", "vmap"])
@pytest.mark.parametrize("methods", [(), (SCAFFOLD(),), (FedDyn(alpha=0.1), FedNova())], ids=["fedavg", "scaffold", "feddyn"])
def test_a_client_that_diverges(methods: tuple[Method, ...], executor: str) -> None:
    setting = {"executor": executor, "clients_per_round": 8, "rounds": 2}
    with pytest.raises(BadUpdate, match="the update of client 6 in round 1 is NaN or infinite"):
        train(*methods, data=OneBrokenClient(), **setting)
    dropped = train(*methods, data=OneBrokenClient(), on_bad_update="drop", **setting)
    assert [row["clients/dropped"] for row in dropped.rows] == [1, 1]
    assert_close(dropped.state, train(*methods, Without(client=6), **setting).state, 1e-12)


# What every method must have --------------------------------------------------------------------------------------------------------

METHODS = {name: value for name, value in vars(flcog.callbacks).items() if inspect.isclass(value) and issubclass(value, Method)}
CONFIGS = sorted((ROOT / "configs" / "methods").glob("*.yaml"))


def module_of(method: type[Method]) -> str:
    return method.__module__.removeprefix("flcog.callbacks.")


@pytest.mark.parametrize("name", METHODS)
def test_it_has_everything_that_a_method_needs(name: str) -> None:
    method = METHODS[name]
    assert (ROOT / "callbacks" / f"{module_of(method)}.py").exists() and name in flcog.callbacks.__all__
    assert method.__dataclass_params__.frozen
    cases = [case for case in CASES.values() if type(case.method) is method]
    assert cases, "it has no entry in tests/contracts/cases.py or tests/methods"
    in_plain_torch = any(case.reference for case in cases) or (ROOT / "tests" / "reference" / f"{module_of(method)}.py").exists()
    assert in_plain_torch or name in NO_REFERENCE
    doc = inspect.getdoc(method) or ""
    assert re.search(r"https://\S+", doc), "its docstring cites nothing"
    assert "::\n" in doc, "its docstring has no formula"
    for field in fields(method):
        if field.name in vars(method).get("__annotations__", {}):
            assert re.search(rf"^    {field.name}: ", doc, re.MULTILINE), f"its docstring does not explain {field.name}"


def test_the_lists_of_methods_agree() -> None:
    found = {
        name
        for info in pkgutil.iter_modules(flcog.callbacks.__path__)
        for name, value in vars(importlib.import_module(f"flcog.callbacks.{info.name}")).items()
        if inspect.isclass(value) and issubclass(value, Method) and value is not Method and not name.startswith("_")
    }
    assert found == set(METHODS)
    configured = set(re.findall(r"class_path: flcog\.callbacks\.(\w+)", "".join(path.read_text() for path in CONFIGS)))
    assert set(METHODS) <= configured <= set(flcog.callbacks.__all__)
    assert set(NO_REFERENCE) <= set(METHODS)
    assert len(NO_REFERENCE) == 3


NOT_ON_TINY_DATA = {
    "dense": "it trains for 200 epochs",
    "fedcog-analysis": "it changes the data too",
    "feddisco-classes": "it changes the data too",
    "feddisco-fairness": "it changes the data too",
    "fedssyn-ddpm": "it needs images",
    "fedssyn-ddpm-small": "it needs images",
    "fedssyn-dsprites": "it trains for 360 epochs",
    "fedssyn-private": "it needs images",
    "fedwalk": "its leash has images of another shape",
    "fedwalk-imagenet": "its leash is to be downloaded",
    "fedwalk-tiny-imagenet": "its leash is to be downloaded",
    "fedwalk-pretraining": "its leash has images of another shape",
    "fedwalk-pretraining-imagenet": "its leash is to be downloaded",
    "fedwalk-pretraining-tiny-imagenet": "its leash is to be downloaded",
    "stragglers-feddisco": "it changes the data too",
}
"""Configs that are run elsewhere, or only parsed."""


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.stem)
def test_its_config_runs(path: Path) -> None:
    if path.stem in NOT_ON_TINY_DATA:
        pytest.skip(NOT_ON_TINY_DATA[path.stem])
    parser = jsonargparse.ArgumentParser()
    parser.add_argument("--config", action="config")
    parser.add_class_arguments(flcog.FederatedTrainer, "trainer", instantiate=False, sub_configs=True)
    methods = parser.instantiate(parser.parse_args([f"--config={path}"])).trainer.callbacks
    assert len(train(*methods, rounds=1).recorded) == 1


def test_few_configs_are_excused() -> None:
    assert set(NOT_ON_TINY_DATA) <= {path.stem for path in CONFIGS}
    assert len(NOT_ON_TINY_DATA) == 15


@pytest.mark.parametrize("module", [info.name for info in pkgutil.iter_modules(flcog.callbacks.__path__)])
def test_its_examples_are_true(module: str) -> None:
    failed, tried = doctest.testmod(importlib.import_module(f"flcog.callbacks.{module}"))
    assert tried and not failed


@pytest.mark.parametrize("package", [flcog, flcog.datamodules], ids=lambda package: package.__name__)
def test_other_modules_examples_are_true(package: ModuleType) -> None:
    for info in pkgutil.iter_modules(package.__path__, f"{package.__name__}."):
        if not info.ispkg and info.name != "flcog.__main__":
            assert not doctest.testmod(importlib.import_module(info.name)).failed, info.name


BAD_INPUTS: list[tuple[Callable[[], Any], str]] = [
    (lambda: FedProx(mu=-1.0), "FedProx: mu must be at least 0; got -1.0"),
    (lambda: FedProx(start_round=3, stop_round=3), "FedProx: start_round must be at least 0 and below stop_round; got 3 and 3"),
    (lambda: SCAFFOLD(server_lr=0.0), "SCAFFOLD: server_lr must be positive; got 0.0"),
    (lambda: FedAvgM(beta=1.0), "FedAvgM: beta must lie in [0, 1); got 1.0"),
    (lambda: FedAvgM(lr=-1.0), "FedAvgM: lr must be positive; got -1.0"),
    (lambda: FedAvgM(form="nesterov"), "FedAvgM: form must be standard, fedcog or feddisco; got 'nesterov'"),  # type: ignore[arg-type]
    (lambda: FedAdam(lr=0.0), "FedAdam: lr must be positive; got 0.0"),
    (lambda: FedAdam(beta2=1.0), "FedAdam: beta2 must lie in [0, 1); got 1.0"),
    (lambda: FedYogi(beta1=-0.1), "FedYogi: beta1 must lie in [0, 1); got -0.1"),
    (lambda: FedYogi(beta2=2.0), "FedYogi: beta2 must lie in [0, 1); got 2.0"),
    (lambda: FedAdagrad(tau=0.0), "FedAdagrad: tau must be positive; got 0.0"),
    (lambda: FedSAM(rho=-0.1), "FedSAM: rho must be at least 0; got -0.1"),
    (lambda: FedSAM(eta=-0.1), "FedSAM: eta must be at least 0; got -0.1"),
    (lambda: FedDyn(alpha=0.0), "FedDyn: alpha must be positive; got 0.0"),
    (lambda: FedDyn(alpha=math.nan), "FedDyn: alpha must be positive; got nan"),
    (lambda: FedDisco(a=-1.0), "FedDisco: a must be at least 0; got -1.0"),
    (lambda: FedDisco(metric="js"), "FedDisco: metric must be kl, l1, l2 or cosine; got 'js'"),  # type: ignore[arg-type]
    (lambda: FedDisco(target="test"), "FedDisco: target must be uniform, global or a list of class shares; got 'test'"),  # type: ignore[arg-type]
    (
        lambda: FedDisco(target=[1.0, 0.0]),
        "FedDisco: target's shares must be at least 0, and above 0 for metric=kl; got [1.0, 0.0]",
    ),
    (lambda: Piecewise([0.5, math.nan], [3]), "a piecewise schedule's values must be numbers; got [0.5, nan]"),
    (lambda: train(FedDisco(target=[0.5, 0.5])), "FedDisco: target lists 2 shares, but the data have 3 classes"),
    (lambda: ClipGradient(max_norm=0.0), "ClipGradient: max_norm must be positive; got 0.0"),
    (lambda: Stragglers(min_steps=0), "Stragglers: need 1 <= min_steps <= max_steps; got 0 and 500"),
    (lambda: Stragglers(min_steps=5, max_steps=4), "Stragglers: need 1 <= min_steps <= max_steps; got 5 and 4"),
    (lambda: ClientDropout(probability=1.0), "ClientDropout: probability must lie in [0, 1); got 1.0"),
    (lambda: train(FedProx(), FedProx(mu=1.0)), "FedProx is listed 2 times in callbacks: keep one of them"),
]


@pytest.mark.parametrize(("make", "message"), BAD_INPUTS, ids=[message.split(";")[0] for _, message in BAD_INPUTS])
def test_bad_inputs_are_named_in_one_line(make: Callable[[], Any], message: str) -> None:
    with pytest.raises(ValueError) as error:
        make()
    assert str(error.value) == message
