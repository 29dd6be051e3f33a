"""A run on a GPU trains the CPU's model up to rounding, repeats itself to the bit, and does not wait in its local steps."""

import gc
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from contracts.case import Case
from contracts.registry import CASES, client_states, run
from harness import MOMENTUM, ODD_BATCHES, TinyData, assert_close, classifier, dropout_network, fit, train, without_times
from torch import nn

import flcog
from engine.test_patches import Pictures
from engine.test_selection import Listed
from flcog.callbacks import SCAFFOLD, ClassAccuracy, ClientFairness, TrainingScores
from flcog.execute.stacked_clients import StackedClients

if not torch.cuda.is_available():
    pytest.skip("needs a GPU", allow_module_level=True)

on_cpu = partial(run, accelerator="cpu")
on_gpu = partial(run, accelerator="cuda")

QUICK = ("FedAvgM", "FedCOG", "FedDyn", "FedProx", "MOON-batchnorm", "SCAFFOLD-momentum")
EACH = [pytest.param(case, id=name, marks=() if name in QUICK else pytest.mark.slow) for name, case in CASES.items()]
EXECUTORS: list[dict[str, Any]] = [{"executor": "loop"}, {"executor": "vmap"}, {"executor": "vmap", "chunk_size": 2}]


def assert_same_run(ours: Any, expected: Any) -> None:
    """Fedssyn's generators train in float32, so that rounding changes the eighth digit; all else is in float64."""
    assert_close(ours.state, expected.state, 1e-7)
    assert_close(client_states(ours), client_states(expected), 1e-7)
    assert ours.rows == [pytest.approx(row, rel=1e-6) for row in expected.rows]


@pytest.mark.parametrize("options", EXECUTORS, ids=["loop", "vmap", "chunks"])
@pytest.mark.parametrize("case", EACH)
def test_each_method_trains_the_cpus_model(case: Case, options: dict[str, Any]) -> None:
    ours = on_gpu(case, case.method, **options)
    assert {value.device.type for value in ours.params.values()} == {"cuda"}
    assert ours.executor.name == options["executor"]
    assert_same_run(ours, on_cpu(case, case.method))


@pytest.mark.parametrize("case", EACH)
def test_captured_steps_are_those_of_the_loop(case: Case) -> None:
    graphs = on_gpu(case, case.method, compile="graphs", chunk_size=2)
    assert graphs.executor.compiled == "graphs"
    assert_same_run(graphs, on_cpu(case, case.method))


@pytest.mark.parametrize(("executor", "compiled"), [("loop", True), ("loop", "graphs"), ("vmap", "graphs")])
def test_compiled_steps_take_cohorts_of_any_size(executor: str, compiled: Any) -> None:
    """The rounds have 2, 0, 6, 1, 0 and 3 clients. On an H100, the compiler of torch 2.11 refuses the batched program in float64."""
    plain = train(Listed(), SCAFFOLD(), rounds=6, accelerator="cpu")
    ours = train(Listed(), SCAFFOLD(), rounds=6, executor=executor, chunk_size=2, compile=compiled, accelerator="cuda")
    assert ours.executor.compiled == compiled
    assert_close(ours.state, plain.state, 1e-10)


def convolutional() -> flcog.Classifier:
    torch.manual_seed(0)
    return flcog.Classifier(flcog.models.SimpleCNN(1, 3), MOMENTUM)


def with_norms() -> flcog.Classifier:
    torch.manual_seed(0)
    layers = nn.Conv2d(1, 4, 5, stride=2), nn.BatchNorm2d(4), nn.ReLU(), nn.AdaptiveAvgPool2d(2), nn.Flatten()
    return flcog.Classifier(nn.Sequential(*layers, nn.Linear(16, 3)), MOMENTUM)


PICTURES: dict[str, Any] = {"clients_per_round": 1.0, "rounds": 3, "local_steps": 3}


@pytest.mark.parametrize("executor", ["loop", "vmap", "vmap-patches"])
@pytest.mark.parametrize("module", [convolutional, with_norms])
def test_so_do_convolutions(module: Callable[[], flcog.Classifier], executor: str) -> None:
    here, there = (
        train(module=module(), data=Pictures(4, batch_size=5), accelerator=place, executor=how, **PICTURES)
        for place, how in (("cpu", "loop"), ("cuda", executor))
    )
    assert there.executor.name == executor
    assert_close(there.state, here.state, 1e-9)


@pytest.mark.parametrize("options", [*EXECUTORS, {"executor": "vmap-patches"}, {"compile": "graphs"}], ids=str)
@pytest.mark.parametrize("module", [convolutional, with_norms])
@pytest.mark.parametrize("precision", ["32-true", "bf16-mixed"])
def test_a_run_repeats_itself_to_the_bit(module: Callable[[], flcog.Classifier], options: dict[str, Any], precision: str) -> None:
    one, other = (
        train(
            SCAFFOLD(),
            module=module(),
            data=Pictures(4, batch_size=5),
            accelerator="cuda",
            precision=precision,
            **({"executor": "loop"} | PICTURES | options),
        )
        for _ in range(2)
    )
    assert_close(one.state, other.state, 0)


@pytest.mark.parametrize("tf32", [True, False])
def test_tensor_cores_round(tf32: bool) -> None:
    exact = train(module=convolutional(), data=Pictures(4, batch_size=5), accelerator="cuda", **PICTURES)
    rounded = train(
        module=convolutional(), data=Pictures(4, batch_size=5), accelerator="cuda", tf32=tf32, precision="32-true", **PICTURES
    )
    difference = max(float((rounded.state[name] - value).abs().max()) for name, value in exact.state.items())
    assert difference > 1e-5 if tf32 else difference < 1e-5


@pytest.mark.parametrize(
    "network", [None, dropout_network, lambda: nn.Sequential(nn.Linear(6, 8), nn.Dropout(0.5), nn.Linear(8, 3))]
)
@pytest.mark.parametrize("options", [*EXECUTORS, {"compile": "graphs"}], ids=str)
def test_a_resumed_run_gives_the_same_bits(network: Any, options: dict[str, Any], tmp_path: Path) -> None:
    def fitted(folder: str, **more: Any) -> Any:
        common = {"accelerator": "cuda", "precision": "32-true"} | options | more
        return fit(tmp_path / folder, SCAFFOLD(), module=classifier(network=network), **common)

    whole, half = fitted("whole", rounds=4), fitted("half", rounds=2)
    torch.manual_seed(1)
    resumed = fitted("half", rounds=4, ckpt_path=str(half.run_dir))
    assert_close(resumed.state, whole.state, 0)
    assert_close(client_states(resumed), client_states(whole), 0)


@pytest.mark.parametrize("case", EACH)
def test_local_steps_do_not_wait(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    """torch warns of each operation that waits for the GPU. Some wait once, so only those are counted that depend on the steps."""
    steps_of_clients = StackedClients.run
    caught: list[str] = []

    def watched(*arguments: Any) -> Any:
        torch.cuda.set_sync_debug_mode("warn")
        try:
            with warnings.catch_warnings(record=True) as seen:
                warnings.simplefilter("always")
                return steps_of_clients(*arguments)
        finally:
            torch.cuda.set_sync_debug_mode("default")
            caught.extend(f"{warning.filename}:{warning.lineno}" for warning in seen if "synchronizing" in str(warning.message))

    monkeypatch.setattr(StackedClients, "run", watched)
    waits = []
    for steps in (2, 5):
        caught.clear()
        options = case.options | {"local_epochs": None, "local_steps": steps}
        on_gpu(case, case.method, executor="vmap", **options)
        waits.append(sorted(caught))
    assert waits[0] == waits[1]


def test_batches_of_other_sizes_and_all_observers(tmp_path: Path) -> None:
    here, there = (
        fit(
            tmp_path / place,
            SCAFFOLD(),
            ClassAccuracy(),
            ClientFairness(),
            TrainingScores(),
            data=ODD_BATCHES(client_test=0.2),
            accelerator=place,
            executor="vmap",
            local_epochs=2,
            eval_every=1,
        )
        for place in ("cpu", "cuda")
    )
    assert_close(there.state, here.state, 1e-10)
    for ours, cpus in zip(without_times(there.history), without_times(here.history), strict=True):
        assert ours == pytest.approx(cpus, rel=1e-6)


def test_a_checkpoint_of_a_gpu_goes_on_on_a_cpu(tmp_path: Path) -> None:
    whole = fit(tmp_path / "whole", SCAFFOLD(), accelerator="cpu")
    half = fit(tmp_path / "half", SCAFFOLD(), accelerator="cuda", rounds=2)
    resumed = fit(tmp_path / "half", SCAFFOLD(), accelerator="cpu", ckpt_path=str(half.run_dir))
    assert_close(resumed.state, whole.state, 1e-10)


def test_where_the_gpus_memory_runs_out_fewer_clients_go_on() -> None:
    """The process may take about another gigabyte, which 64 clients with 4 million parameters do not fit into."""

    def wide() -> flcog.Classifier:
        return classifier(network=lambda: flcog.models.MLP(6, (2000, 2000), 3))

    data = partial(TinyData, order=[k % 8 for k in range(64)])
    options: dict[str, Any] = {
        "clients_per_round": 64,
        "rounds": 1,
        "local_steps": 1,
        "precision": "32-true",
        "accelerator": "cuda",
    }
    few = train(module=wide(), data=data(), executor="vmap", chunk_size=8, **options)
    gc.collect()
    torch.cuda.empty_cache()
    limit = torch.cuda.memory_reserved() + 1.2 * 2**30
    torch.cuda.set_per_process_memory_fraction(limit / torch.cuda.get_device_properties(0).total_memory)
    try:
        with pytest.warns(UserWarning, match="64 clients at a time do not fit into memory, 32 are tried"):
            many = train(module=wide(), data=data(), executor="vmap", chunk_size=64, **options)
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)
    assert many.executor.clients_at_once in (1, 32)
    assert_close(many.state, few.state, 1e-4)
