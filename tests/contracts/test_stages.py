"""ClipUpdate and LowPrecision together with methods that send all kinds of messages.

They run under every executor, after a resume and on two processes. ``test_remote.py`` tests the same with clients in other processes.
``on_processes`` and ``test_remote.py`` also test a user's aggregator.
"""

import json
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from harness import RecordingTrainer, Spoils, assert_close, distance, fit, make_trainer
from two_processes import on_one_and_two_processes

from contracts.registry import CASES, client_states, run
from contracts.test_user_methods import Median
from flcog.callbacks import (
    ALittleIsEnough,
    Bucketing,
    CenteredClipping,
    ClipUpdate,
    EncodedBroadcast,
    LowPrecision,
    Quantize,
    RotatedQuantize,
    SignFlip,
    TopK,
)
from flcog.method import Method

pytestmark = pytest.mark.filterwarnings("error")

NAMES = [
    next(name for name in CASES if type(CASES[name].method).__name__ == kind)
    for kind in ("SCAFFOLD", "FedDisco", "FedCOG", "FedRep", "FFALoRA")
]
PRECISION: dict[str, Any] = {"precision": "32-true"}  # so that LowPrecision's 16 bits halve the bytes
BIT = 2.0**-8
"""The relative distance of two neighbouring bfloat16 numbers. Executors whose float32 values are rounded differently may differ by it."""


def stages() -> list[Method]:
    return [LowPrecision(), ClipUpdate(norm=0.3)]


def staged(name: str, **options: Any) -> RecordingTrainer:
    return run(CASES[name], *stages(), CASES[name].method, **(PRECISION | options))


each = pytest.mark.parametrize("name", NAMES)


@each
@pytest.mark.slow
def test_executors_agree(name: str) -> None:
    loop, threads, vmap = staged(name), staged(name, chunk_size=2), staged(name, executor="vmap")
    assert_close(threads.state, loop.state, 0)
    assert_close(client_states(threads), client_states(loop), 0)
    assert threads.rows == loop.rows
    assert_close(vmap.state, loop.state, 3 * BIT)
    assert [row["comm/up_bytes"] for row in vmap.rows] == [row["comm/up_bytes"] for row in loop.rows]
    plain = run(CASES[name], CASES[name].method, **PRECISION)
    assert distance(loop.state, plain.state) > 1e-5
    assert loop.rows[-1]["comm/up_bytes"] < 0.6 * plain.rows[-1]["comm/up_bytes"]


@pytest.mark.slow
@each
@pytest.mark.parametrize("executor", ["loop", "vmap"])
def test_compiled_steps_agree(name: str, executor: str) -> None:
    compiled = staged(name, executor=executor, compile=True, rounds=2)
    assert_close(compiled.state, staged(name, rounds=2).state, 3 * BIT)


@each
def test_resume_is_bitwise(name: str, tmp_path: Path) -> None:
    case = CASES[name]
    setting = partial(fit, tmp_path, *stages(), case.method, data=case.data(), **(dict(case.options) | PRECISION))
    whole = setting(module=case.module(case.optimizer), rounds=3)
    half = setting(module=case.module(case.optimizer), rounds=1)
    resumed = setting(module=case.module(case.optimizer), rounds=3, ckpt_path=str(half.run_dir))
    assert_close(resumed.state, whole.state, 0)
    assert_close(client_states(resumed), client_states(whole), 0)


CODECS = (
    TopK(fraction=0.3, values=Quantize(bits=4), error_feedback=True),
    EncodedBroadcast(RotatedQuantize(bits=4, error_feedback=True)),
)


ROBUST = (Bucketing(s=2), CenteredClipping(radius=0.2), ALittleIsEnough(clients=(1, 4)), SignFlip(clients=(6,)))


TOLERANCE: dict[str, dict[str, float]] = {
    "stages": {"abs": 2e-6, "rel": BIT},
    "codecs": {"abs": 1e-12, "rel": 1e-12},
    "robust": {"abs": 2e-6, "rel": 1e-5},
}
"""The largest differences between one process and two, by the parts of a run."""


def on_processes(path: str, devices: int) -> None:
    """Run cases with stages, codecs, robust rules, and a median that drops a bad client. The first process writes the results."""
    settings: list[tuple[str, str, list[Method], dict[str, Any]]] = [
        # In float64, another order of addition does not change the levels of the quantized numbers.
        ("codecs", NAMES[0], [*CODECS, CASES[NAMES[0]].method], {"precision": "64-true", "rounds": 3}),
        ("robust", NAMES[0], [Median()], {"clients_per_round": 5}),
        ("robust", NAMES[0], [Median(), Spoils()], {"clients_per_round": 8, "on_bad_update": "drop"}),
        *(("stages", name, [*stages(), CASES[name].method], {}) for name in NAMES),
        *(("robust", name, [*ROBUST, CASES[name].method], {"clients_per_round": 8}) for name in NAMES),
    ]
    found = []
    for kind, name, methods, options in settings:
        given = CASES[name].options | PRECISION | {"rounds": 2} | options
        trainer = make_trainer(None, *methods, devices=devices, **given)
        trainer.prepare(CASES[name].module(CASES[name].optimizer), CASES[name].data())
        rows = [trainer.train_round() for _ in range(trainer.settings.rounds)]
        figures = {column: value for column, value in rows[-1].items() if not column.startswith("time/")}
        found.append([kind, figures, [value.double().flatten().tolist() for value in trainer.state.values()]])
    if trainer.run.processes.is_first:
        Path(path).write_text(json.dumps(found))


@pytest.mark.slow
def test_two_processes_do_what_one_does(tmp_path: Path) -> None:
    one, two = on_one_and_two_processes(on_processes, tmp_path)
    for (kind, rows, state), (_, other_rows, other_state) in zip(one, two, strict=True):
        assert other_rows == pytest.approx(rows, rel=1e-5)
        assert other_state == [pytest.approx(value, **TOLERANCE[kind]) for value in state]
    assert two[2][1]["clients/dropped"] == 1
