"""``trainer.compile`` makes the local step one program, which all steps, chunks, rounds and learning rates share.

These tests record programs as for ``torch.compile`` and run the recording, because torch's compiler takes many seconds for each.
"""

import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import lightning as L
import pytest
import torch
import yaml
from harness import (
    MOMENTUM,
    ODD_BATCHES,
    RAGGED,
    BatchNormMLP,
    RecordingTrainer,
    TinyData,
    assert_close,
    classifier,
    dropout_network,
    fit,
    needs_compiler,
    train,
)
from torch import nn
from torch.fx.experimental.proxy_tensor import make_fx

from flcog.callbacks import SCAFFOLD, FedProx, FedReg
from flcog.execute.optimizer import TensorOptimizer
from flcog.schedules import Piecewise

pytestmark = needs_compiler

EXECUTORS: list[dict[str, Any]] = [
    {"executor": "vmap"},
    {"executor": "vmap", "chunk_size": 3},
    {"executor": "loop"},
    {"executor": "loop", "chunk_size": 2},
]


def same(a: RecordingTrainer, b: RecordingTrainer) -> None:
    assert_close(a.params, b.params, 1e-11)
    assert_close(a.buffers, b.buffers, 1e-11)
    assert a.rows == [pytest.approx(row, rel=1e-9) for row in b.rows]


@pytest.mark.parametrize("how", EXECUTORS, ids=str)
@pytest.mark.slow
def test_one_program_runs_every_step(how: dict[str, Any], programs: list[int]) -> None:
    """The clients differ in their numbers of steps, batches are padded, the last chunk is smaller, and the learning rate changes."""
    options: dict[str, Any] = {"module": None, "data": None, **RAGGED, **how}

    def run(**more: Any) -> RecordingTrainer:
        module, data = classifier(MOMENTUM), ODD_BATCHES()
        module.lr_schedule = Piecewise([1.0, 0.5], [1])
        return train(SCAFFOLD(), **(options | {"module": module, "data": data} | more))

    plain, trainer = run(), run(compile=True)
    same(trainer, plain)
    assert trainer.executor.compiled is True and trainer.executor.name == how["executor"]
    assert len(programs) == 1
    told = [note for note in trainer.notes if "was compiled in" in note]
    clients = how.get("chunk_size", 5) if how["executor"] == "vmap" else 1
    assert len(told) == 1 and f"the local step of {clients} client" in told[0]


@pytest.mark.slow
def test_what_is_mostly_padding_runs_uncompiled(programs: list[int]) -> None:
    options: dict[str, Any] = {"executor": "vmap", "chunk_size": 3, "clients_per_round": 7, "rounds": 1, "local_steps": 2}
    same(train(compile=True, **options), train(**options))
    assert programs == [1 + 2 + 2]  # one call to compile, two steps of two full chunks; the last chunk runs uncompiled
    programs.clear()
    options = {"executor": "loop", "data": TinyData(batch_size=16), "local_epochs": 1, "rounds": 1}
    trainer = train(compile=True, **options)
    small = sum(work.num_samples < 8 for work in trainer.works[0])
    same(trainer, train(**options))
    assert small and programs == [1 + 5 - small]


@pytest.mark.slow
def test_batch_norm_feels_no_padding(programs: list[int]) -> None:
    """Steps on full batches of four are compiled. The smaller last batch of an epoch is not."""
    options: dict[str, Any] = {"clients_per_round": 1.0, "local_epochs": 2, "rounds": 2}
    for how in ({"executor": "vmap", "chunk_size": 3}, {"executor": "loop"}):
        data = [TinyData(batch_size=4, order=(0, 0, 0, 0, 0, 2, 2, 2)) for _ in range(2)]
        network = [classifier(network=BatchNormMLP) for _ in range(2)]
        same(*(train(module=network[c], data=data[c], compile=bool(c), **(options | how)) for c in (True, False)))
    assert len(programs) == 2


@pytest.mark.slow
def test_methods_that_start_later_have_a_program_of_their_own(programs: list[int]) -> None:
    methods = [SCAFFOLD(), FedProx(mu=0.5, start_round=1)]
    same(train(*methods, executor="vmap", compile=True), train(*methods))
    assert len(programs) == 2


OPTIMIZERS = [
    partial(torch.optim.SGD, lr=0.1, momentum=0.9, dampening=0.3, weight_decay=0.01),
    partial(torch.optim.SGD, lr=0.1, momentum=0.9, nesterov=True, maximize=True),
    partial(torch.optim.Adam, lr=0.01, amsgrad=True, weight_decay=0.01),
    partial(torch.optim.AdamW, lr=0.01),
    partial(torch.optim.Adagrad, lr=0.1, lr_decay=0.1),
    partial(torch.optim.Adadelta, lr=1.0),
    partial(torch.optim.Adamax, lr=0.01),
    partial(torch.optim.NAdam, lr=0.01),
    partial(torch.optim.RAdam, lr=0.01),
    partial(torch.optim.RMSprop, lr=0.01, momentum=0.5, centered=True),
    partial(torch.optim.Rprop, lr=0.01),
    partial(torch.optim.ASGD, lr=0.1),
]


@pytest.mark.parametrize("make", OPTIMIZERS, ids=lambda make: f"{make.func.__name__}-{len(make.keywords)}")
def test_an_optimizer_on_tensors_is_torchs(make: Callable[..., torch.optim.Optimizer]) -> None:
    """It runs as a recorded program, with two parameter groups and a learning rate that changes after the second step."""
    torch.set_default_dtype(torch.float64)
    rng = torch.Generator().manual_seed(0)
    theirs = {name: torch.randn(shape, generator=rng, dtype=torch.float64) for name, shape in (("a", (3, 2)), ("b", (4,)))}
    optimizer = make([{"params": [theirs["a"]]}, {"params": [theirs["b"]], "lr": 0.02}])
    ours, step = TensorOptimizer(optimizer, theirs), torch.zeros((), dtype=torch.int64)
    params = {name: value.clone() for name, value in theirs.items()}
    state, program = ours.fresh_state(params), None
    for number in range(6):
        gradients = {name: torch.randn(value.shape, generator=rng, dtype=torch.float64) for name, value in params.items()}
        if number == 2:
            for group in optimizer.param_groups:
                group["lr"] *= 0.5
        for name, value in theirs.items():
            value.grad = gradients[name].clone()
        optimizer.step()
        rates = ours.rates([group["lr"] for group in optimizer.param_groups], torch.device("cpu"))
        given = (params, gradients, state, step.fill_(number), rates)
        program = program or make_fx(lambda *args: ours(*args) or (), tracing_mode="fake")(*given)
        program(*given)
        assert "_local_scalar_dense" not in program.code, "no number is read from a device, which a CUDA graph could not"
        for name, value in params.items():
            torch.testing.assert_close(value, theirs[name], rtol=1e-12, atol=1e-13)


class OwnStep(L.LightningModule):
    """Its loss depends on the round and on the local step."""

    def __init__(self, branches: bool = False) -> None:
        super().__init__()
        self.network, self.branches = nn.Linear(6, 3), branches

    def training_step(self, batch: Any, batch_idx: Any) -> Any:
        inputs, targets = batch
        loss = nn.functional.cross_entropy(self.network(inputs), targets)
        if self.branches and batch_idx == 1:
            return 2 * loss
        return loss * (1 + 0.1 * batch_idx) * 0.5**self.current_epoch

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), lr=0.1)


def own_step(**options: Any) -> RecordingTrainer:
    torch.manual_seed(0)
    module = OwnStep(options.pop("branches", False))
    trainer = train(module=module, **options)  # type: ignore[arg-type]
    return trainer


@pytest.mark.parametrize("executor", ["loop", "vmap"])
def test_a_step_of_the_users_own_sees_its_numbers(executor: str, programs: list[int]) -> None:
    same(own_step(executor=executor, compile=True), own_step())
    assert len(programs) == 1


@pytest.mark.slow
def test_what_cannot_be_compiled_runs_as_it_is_and_says_so_once(programs: list[int]) -> None:
    with pytest.warns(UserWarning, match="trainer.compile: local steps run uncompiled, as they cannot be compiled") as caught:
        trainer = own_step(executor="vmap", branches=True, compile=True)
    plain = own_step(executor="vmap", branches=True)
    assert len(caught) == 1 and trainer.executor.compiled is False
    assert_close(trainer.params, plain.params, 0)


@pytest.mark.slow
def test_nor_are_models_that_draw(programs: list[int]) -> None:
    def run(**options: Any) -> RecordingTrainer:
        return train(
            module=classifier(network=lambda: nn.Sequential(nn.Linear(6, 8), nn.Dropout(0.5), nn.Linear(8, 3))), **options
        )

    with pytest.warns(UserWarning, match="trainer.compile=True is left out.*draws from torch's global stream"):
        trainer = run(compile=True, executor="loop")
    assert_close(trainer.params, run().params, 0)
    keyed = [train(module=classifier(network=dropout_network), executor="vmap", compile=c) for c in (True, False)]
    same(*keyed)
    assert len(programs) == 1


def test_graphs_without_cuda() -> None:
    with pytest.warns(UserWarning, match="run uncompiled: CUDA graphs need a CUDA device, this run is on cpu"):
        trainer = train(executor="vmap", compile="graphs")
    assert trainer.executor.compiled is False


@pytest.mark.slow
def test_a_run_goes_on_to_the_bit(programs: list[int], tmp_path: Path) -> None:
    options: dict[str, Any] = {"executor": "vmap", "compile": True, "precision": "32-true", **RAGGED}
    whole, half = (fit(tmp_path / str(rounds), FedReg(), rounds=rounds, **options) for rounds in (4, 2))
    resumed = fit(tmp_path / "2", FedReg(), rounds=4, ckpt_path=str(half.run_dir), **options)
    assert_close(resumed.params, whole.params, 0)
    assert yaml.safe_load((resumed.run_dir / "run.yaml").read_text())["compile"] is True


def test_autocast(programs: list[int]) -> None:
    options: dict[str, Any] = {"executor": "vmap", "precision": "bf16-mixed"}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        runs = [train(compile=c, **options) for c in (True, False)]
    assert_close(runs[0].params, runs[1].params, 1e-2)
    assert len(programs) == 1
