"""Every shipped method, against the paper in plain torch, against itself under other executors, and against theorems."""

import copy
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from harness import SGD, BatchNormMLP, RecordingTrainer, TinyData, assert_close, classifier, distance, fit, problem_of, row_of
from methods import CASES, MOMENTUM, Case
from reference import fedavg

from flcog.hooks import Callback
from flcog.models import Dropout

pytestmark = pytest.mark.filterwarnings("error")

each_case = pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())


def run(root: Path, case: Case, *callbacks: Callback, **options: Any) -> RecordingTrainer:
    """The case's setting with these callbacks in the place of its method."""
    options = {"module": case.module(case.optimizer), "data": case.data()} | case.options | options
    return fit(root, *callbacks, **options)


def run_on_all_samples(root: Path, case: Case, order: Sequence[int]) -> RecordingTrainer:
    """The case with every client in every round and all of its samples in every step, so that no draw tells clients apart."""
    full = {"clients_per_round": 1.0, "local_steps": 3, "local_epochs": None}
    return run(root, case, case.method, data=TinyData(batch_size=16, order=order), **full)


@each_case
def test_against_the_paper(case: Case, tmp_path: Path) -> None:
    assert case.reference is not None
    module = case.module(case.optimizer)
    before = copy.deepcopy(module)
    trainer = run(tmp_path, case, case.method, module=module)
    assert_close(trainer.state, case.reference(problem_of(trainer, before, case.optimizer)), case.rtol)


@each_case
def test_executors_agree(case: Case, tmp_path: Path) -> None:
    loop = run(tmp_path, case, case.method)
    for chunk_size in (None, 2):
        vmap = run(tmp_path, case, case.method, executor="vmap", chunk_size=chunk_size)
        assert vmap.executor.name == "vmap"
        assert_close(vmap.state, loop.state, 1e-11)
        assert vmap.history[-1]["train/loss"] == pytest.approx(loop.history[-1]["train/loss"], rel=1e-10)


@each_case
def test_neutral_setting_is_fedavg_and_others_are_not(case: Case, tmp_path: Path) -> None:
    plain = run(tmp_path, case)
    assert distance(run(tmp_path, case, case.method).state, plain.state) > 1e-5
    if case.neutral is not None:
        assert_close(run(tmp_path, case, case.neutral).state, plain.state, 1e-12)


@each_case
def test_resume_is_bitwise(case: Case, tmp_path: Path) -> None:
    whole = run(tmp_path, case, case.method, rounds=4)
    half = run(tmp_path, case, case.method, rounds=2)
    resumed = run(tmp_path, case, case.method, rounds=4, ckpt_path=str(half.run_dir))
    assert len(resumed.recorded) == 2
    for name, value in whole.state.items():
        assert torch.equal(resumed.state[name], value), name
    assert row_of(resumed)[2:] == row_of(whole)[2:]


@each_case
def test_client_ids_are_only_names(case: Case, tmp_path: Path) -> None:
    if case.random:
        pytest.skip("draws depend on the client's id")
    runs = [run_on_all_samples(tmp_path, case, order) for order in (range(8), (3, 0, 7, 1, 6, 4, 2, 5))]
    assert_close(runs[1].state, runs[0].state, 1e-11)


@each_case
def test_identical_clients_are_one(case: Case, tmp_path: Path) -> None:
    if case.random:
        pytest.skip("clients with equal data draw different numbers")
    runs = [run_on_all_samples(tmp_path, case, order) for order in ((5,), (5, 5, 5, 5))]
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
def test_fedavg(optimizer: Any, work: dict[str, Any], network: Any, tmp_path: Path) -> None:
    module = classifier(optimizer, network)
    loop = fit(tmp_path, module=copy.deepcopy(module), **work)
    assert_close(loop.state, fedavg.run(problem_of(loop, module, optimizer)), 1e-10)
    for chunk_size in (None, 2):
        vmap = fit(tmp_path, module=classifier(optimizer, network), executor="vmap", chunk_size=chunk_size, **work)
        assert vmap.executor.name == "vmap"
        assert_close(vmap.state, loop.state, 1e-11)


def test_dropout_is_the_same_under_every_executor(tmp_path: Path) -> None:
    def network() -> torch.nn.Module:
        return torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.ReLU(), Dropout(0.5), torch.nn.Linear(8, 3))

    loop, vmap, chunked = (
        fit(tmp_path, module=classifier(network=network), **options)
        for options in ({}, {"executor": "vmap"}, {"executor": "vmap", "chunk_size": 2})
    )
    assert_close(vmap.state, loop.state, 1e-11)
    assert_close(chunked.state, loop.state, 1e-11)
    assert distance(fit(tmp_path, module=classifier(network=lambda: network().eval())).state, loop.state) < 1e-12
