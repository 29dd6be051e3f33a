"""Every shipped method, compared with the paper in plain torch, with itself under other executors, and with known identities."""

import copy
import doctest
import importlib
import inspect
import pkgutil
import re
from collections.abc import Sequence
from dataclasses import fields, replace
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType

import pytest
import torch
from harness import (
    ROOT,
    RecordingTrainer,
    TinyData,
    adapted,
    assert_close,
    distance,
    fit,
    problem_of,
    train,
    trainer_options,
    without_times,
)

import flcog
import flcog.callbacks
import flcog.datamodules
import flcog.method
from contracts.case import Case
from contracts.registry import CASES, client_states, each, first_quickly, run
from flcog.callbacks.attacks.omniscient import OmniscientAttack
from flcog.callbacks.codecs.codec import Codec
from flcog.callbacks.codecs.sparse import Sparse
from flcog.callbacks.fedwalk.leash import OnLeash
from flcog.callbacks.personal.kept_models import KeptModels
from flcog.callbacks.robust.parts import ToleratesAttackers
from flcog.callbacks.scaffold import ControlVariates
from flcog.execute.placements import Threads
from flcog.method import Method, Params, Withholding

pytestmark = pytest.mark.filterwarnings("error")


WITH_REFERENCE = {name: case for name, case in CASES.items() if case.reference is not None}
"""For each other case, the method's own file compares single computations with the paper."""
MAY_WAIT = {name: case for name, case in CASES.items() if not isinstance(case.method, Withholding)}
"""The other methods act in all rounds."""
WITHOUT_DRAWS = {name: case for name, case in CASES.items() if not case.random}
"""The other methods draw random numbers that depend on the client's id, so that even clients with equal data differ."""

_listed: dict[int, tuple[RecordingTrainer, flcog.ClientModule]] = {}
_idle: dict[int, RecordingTrainer] = {}
_plain: dict[str, Params] = {}


def as_listed(case: Case) -> tuple[RecordingTrainer, flcog.ClientModule]:
    """Run the case once for all tests that compare with it. Returns the trainer and the initial module."""
    if id(case) not in _listed:
        module = case.module(case.optimizer)
        before = copy.deepcopy(module)
        _listed[id(case)] = run(case, case.method, module=module), before
    return _listed[id(case)]


def before_it_starts(case: Case) -> RecordingTrainer:
    """Run the case once with its method starting only after the last round, or without the method if it cannot start later."""
    if id(case) not in _idle:
        waiting = [] if isinstance(case.method, Withholding) else [replace(case.method, start_round=3)]
        _idle[id(case)] = run(case, *waiting)
    return _idle[id(case)]


def fedavg_of(case: Case) -> Params:
    """The model of FedAvg in the case's setting, which runs once for all cases with this setting."""
    setting = repr((case.module, case.optimizer, case.data, case.options, case.beside))
    if setting not in _plain:
        _plain[setting] = run(case).state
    return _plain[setting]


def run_on_all_samples(case: Case, order: Sequence[int]) -> RecordingTrainer:
    """Run the case with every client in every round and all of its samples in every step, so that no draw distinguishes clients."""
    full = {"clients_per_round": 1.0, "local_steps": 3, "local_epochs": None}
    return run(case, case.method, data=TinyData(batch_size=16, order=order), **full)


@each(WITH_REFERENCE)
def test_against_the_paper(case: Case) -> None:
    assert case.reference is not None
    trainer, before = as_listed(case)
    assert_close(trainer.state, case.reference(problem_of(trainer, before, case.optimizer)), case.rtol)


@pytest.mark.slow
@each(CASES)
def test_threads_agree_with_the_loop(case: Case) -> None:
    loop, _ = as_listed(case)
    threads = run(case, case.method, chunk_size=2)
    assert isinstance(threads.executor.placement, Threads) or len(loop.works[0]) == 1
    assert_close(threads.state, loop.state, 0)
    assert_close(client_states(threads), client_states(loop), 0)
    assert threads.rows == loop.rows


def check_vmap(case: Case, chunk_size: int | None) -> None:
    loop, _ = as_listed(case)
    vmap = run(case, case.method, executor="vmap", chunk_size=chunk_size)
    assert vmap.executor.name == "vmap"
    assert_close(vmap.state, loop.state, 1e-11)
    assert_close(client_states(vmap), client_states(loop), 1e-10)
    assert vmap.rows == [pytest.approx(row, rel=1e-9) for row in loop.rows]


@first_quickly(CASES)
def test_vmap_agrees_with_the_loop(case: Case) -> None:
    check_vmap(case, None)


@pytest.mark.slow
@each(CASES)
def test_chunks_of_vmap_agree_with_the_loop(case: Case) -> None:
    check_vmap(case, 2)


@first_quickly(MAY_WAIT)
def test_before_its_first_round_it_does_nothing(case: Case) -> None:
    idle = before_it_starts(case)
    if not (case.method.overrides("configure_model") or case.method.overrides("prepare_data")):
        assert distance(idle.state, fedavg_of(case)) == 0


@first_quickly(CASES)
def test_neutral_setting_is_fedavg_and_others_are_not(case: Case) -> None:
    plain, (trainer, _) = before_it_starts(case), as_listed(case)
    difference = distance(trainer.state, plain.state)
    assert difference == 0 if case.like_fedavg else difference > 1e-5
    if case.neutral is not None:
        assert_close(run(case, case.neutral).state, plain.state, 1e-12)


@first_quickly(CASES)
def test_resume_is_bitwise(case: Case, tmp_path: Path) -> None:
    """Checkpoints, evaluation and a resume change no bit of a run's model and rows."""
    whole, _ = as_listed(case)
    setting = partial(fit, tmp_path, *case.beside, case.method, **case.options)
    half = setting(module=case.module(case.optimizer), data=case.data(), rounds=2)
    resumed = setting(module=case.module(case.optimizer), data=case.data(), rounds=3, ckpt_path=str(half.run_dir))
    assert len(half.recorded) + len(resumed.recorded) == len(whole.recorded) >= 3
    for name, value in whole.state.items():
        assert torch.equal(resumed.state[name], value), name
    for row, rounds in zip(resumed.rows, whole.rows, strict=True):
        assert {name: row[name] for name in rounds} == rounds
    assert without_times(resumed.rows[:2]) == without_times(half.rows)


@pytest.mark.slow
@each(WITHOUT_DRAWS)
def test_client_ids_are_only_names(case: Case) -> None:
    runs = [run_on_all_samples(case, order) for order in (range(4), (3, 0, 2, 1))]
    assert_close(runs[1].state, runs[0].state, 1e-11)


@pytest.mark.slow
@each(WITHOUT_DRAWS)
def test_identical_clients_are_one(case: Case) -> None:
    runs = [run_on_all_samples(case, order) for order in ((5,), (5, 5, 5))]
    assert_close(runs[1].state, runs[0].state, 1e-11)


# Requirements on every method ---------------------------------------------------------------------------------------------------------

EXPORTED = {name: getattr(flcog.callbacks, name) for name in flcog.callbacks.__all__}
METHODS = {name: value for name, value in EXPORTED.items() if issubclass(value, Method)}
CONFIGS = sorted((ROOT / "configs" / "methods").glob("*.yaml"))


PROTOCOLS = {value for value in vars(flcog.method).values() if inspect.isclass(value) and issubclass(value, Method)}
BASES = {*PROTOCOLS, Codec, ControlVariates, KeptModels, OnLeash, Sparse, ToleratesAttackers, OmniscientAttack}

MODULES = [info.name for info in pkgutil.walk_packages(flcog.callbacks.__path__, "flcog.callbacks.") if not info.ispkg]


def module_of(method: type[Method]) -> str:
    return method.__module__.removeprefix("flcog.callbacks.").replace(".", "/")


@pytest.mark.parametrize("name", METHODS)
def test_it_has_everything_that_a_method_needs(name: str) -> None:
    method = METHODS[name]
    assert (ROOT / "callbacks" / f"{module_of(method)}.py").exists() and name in flcog.callbacks.__all__
    assert method.__dataclass_params__.frozen
    cases = [case for case in CASES.values() if type(case.method) is method]
    assert cases, "no file under tests/methods has a case of it"
    reference = ROOT / "tests" / "reference" / f"{module_of(method).split('/')[-1]}.py"
    in_plain_torch = any(case.reference for case in cases) or reference.exists()
    assert in_plain_torch or any(case.no_reference for case in cases)
    doc = inspect.getdoc(method) or ""
    assert re.search(r"https://\S+", doc), "its docstring cites nothing"
    assert "::\n" in doc, "its docstring has no formula"
    for field in fields(method):
        if field.name in vars(method).get("__annotations__", {}):
            assert re.search(rf"^    {field.name}: ", doc, re.MULTILINE), f"its docstring does not explain {field.name}"


def test_the_lists_of_methods_agree() -> None:
    found = {
        name
        for module in MODULES
        for name, value in vars(importlib.import_module(module)).items()
        if inspect.isclass(value) and issubclass(value, Method) and value not in BASES and not name.startswith("_")
    }
    assert found == set(METHODS)
    configured = set(re.findall(r"class_path: flcog\.callbacks\.(\w+)", "".join(path.read_text() for path in CONFIGS)))
    assert set(METHODS) <= configured <= set(flcog.callbacks.__all__)
    assert len([case for case in CASES.values() if case.no_reference]) == 13


NOT_ON_TINY_DATA = {
    "bulyan": "it needs more clients",
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
    "fedbn": "the tiny network has no BatchNorm",
    "stragglers-feddisco": "it changes the data too",
}
"""Configs that do not run on the tiny data, and why. Other tests run or parse them."""


@pytest.mark.slow
@pytest.mark.parametrize("path", [path for path in CONFIGS if path.stem not in NOT_ON_TINY_DATA], ids=lambda path: path.stem)
def test_its_config_runs(path: Path) -> None:
    given = trainer_options(f"--config={path}")
    methods, count = given.callbacks, min(5, given.clients_per_round or 5)
    module = adapted(rank=8) if any(isinstance(one, Method) and one.needs_adapters for one in methods) else None
    assert len(train(*methods, module=module, rounds=1, clients_per_round=count).recorded) == 1


def test_few_configs_are_excused() -> None:
    assert set(NOT_ON_TINY_DATA) <= {path.stem for path in CONFIGS}
    assert len(NOT_ON_TINY_DATA) == 17


@pytest.mark.parametrize("module", MODULES, ids=lambda module: module.removeprefix("flcog.callbacks."))
def test_its_examples_are_true(module: str) -> None:
    failed, _ = doctest.testmod(importlib.import_module(module))
    assert not failed


@pytest.mark.parametrize("package", [flcog, flcog.datamodules], ids=lambda package: package.__name__)
def test_other_modules_examples_are_true(package: ModuleType) -> None:
    for path in sorted((ROOT / package.__name__.removeprefix("flcog.")).rglob("*.py")):
        needs_flower = path.parent.name == "deploy" and find_spec("flwr") is None
        if ">>>" in path.read_text() and not needs_flower:
            name = ".".join([*package.__name__.split(".")[:-1], *path.relative_to(ROOT).with_suffix("").parts])
            assert not doctest.testmod(importlib.import_module(name)).failed, name
