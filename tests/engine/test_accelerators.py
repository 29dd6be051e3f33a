"""A run on a device other than the CPU, which may lack float64: local steps never wait for the device."""

from collections import Counter
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from contracts.registry import CASES
from fake_device import NAME, OnDevice, computing_there, waits
from harness import (
    TinyData,
    assert_close,
    classifier,
    few_quickly,
    make_trainer,
    train,
    without_times,
)
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from flcog.callbacks import ClassAccuracy, ClientFairness, FedProx, FineTune, TrainingScores
from flcog.core.precision import float64_device
from flcog.execute.optimizer import ELEMENTWISE
from flcog.method import Method
from flcog.schedules import Exponential

STEPPING = ("FedProx", "Ditto-momentum", "FedCOG", "FedReg", "FedRep", "FedSAM", "GradientNoise", "MOON-batchnorm", "SCAFFOLD")


def waits_of(method: Method | None = None, module: Any = None, data: Any = None, **work: Any) -> Counter[str]:
    """The operations in two rounds that wait for the device."""
    with computing_there():
        waits.clear()
        methods = [] if method is None else [method]
        trainer = train(*methods, module=module, data=data, **({"executor": "vmap", "precision": "32-true", "rounds": 2} | work))
        assert trainer.executor.name == "vmap"
        return waits.copy()


@pytest.mark.parametrize("name", STEPPING)
@pytest.mark.slow
def test_a_local_step_waits_for_nothing(name: str) -> None:
    case = CASES[name]
    few, many = (waits_of(case.method, case.module(case.optimizer), case.data(), local_steps=steps) for steps in (2, 5))
    assert few["copies"] and many == few


WAITING = (torch.optim.ASGD, torch.optim.Rprop)
"""torch's optimisers that read numbers from the device in every step (Rprop in torch 2.11, but not in 2.15). They do not with
``capturable``, which needs a GPU."""


@pytest.mark.parametrize("optimizer", few_quickly([kind for kind in ELEMENTWISE if kind not in WAITING]))
def test_nor_for_an_optimisers_state_and_rates(optimizer: type[torch.optim.Optimizer]) -> None:

    def module() -> Any:
        made = classifier(partial(optimizer, lr=0.01))
        made.lr_schedule = Exponential(0.5)
        return made

    few, many = (waits_of(module=module(), local_steps=steps) for steps in (2, 5))
    assert few["copies"] and many == few


def everything() -> TinyData:
    return TinyData(client_test=0.2)


WATCHING = (ClassAccuracy(), ClientFairness(), TrainingScores())


@pytest.mark.parametrize("executor", ["loop", "vmap"])
@pytest.mark.parametrize("methods", [[FedProx(mu=0.1), *WATCHING], [FineTune(steps=2)]], ids=["observed", "personal"])
@pytest.mark.slow
def test_a_device_without_float64_gives_the_cpus_figures(methods: list[Any], executor: str, tmp_path: Path) -> None:
    options: dict[str, Any] = {"executor": executor, "precision": "32-true", "eval_every": 1, "rounds": 2}
    here = make_trainer(tmp_path / "here", *methods, **options)
    here.fit(classifier(), everything())
    with computing_there():
        there = make_trainer(tmp_path / "there", *methods, **options)
        there.fit(classifier(), everything())
        assert all(isinstance(value, OnDevice) for value in there.params.values())
    assert_close({name: value.here for name, value in there.params.items()}, here.params, 1e-5)
    for ours, cpus in zip(without_times(there.history), without_times(here.history), strict=True):
        assert ours == pytest.approx(cpus, rel=1e-4)


def test_its_checkpoints_are_read_anywhere(tmp_path: Path) -> None:
    """All tensors of a checkpoint are on the CPU, because a plain ``torch.load`` needs the device of the tensors that it reads."""
    with computing_there():
        trainer = make_trainer(tmp_path, CASES["SCAFFOLD"].method, rounds=1, executor="vmap", precision="32-true")
        trainer.fit(classifier(), TinyData())
    saved = torch.load(trainer.run_dir / "checkpoints" / "last.ckpt", weights_only=True)
    tensors = [leaf for leaf in pytree.tree_leaves(saved) if isinstance(leaf, Tensor)]
    assert len(tensors) > 10 and {tensor.device.type for tensor in tensors} == {"cpu"}
    whole = saved["params"]
    assert all(saved["state_dict"][name].data_ptr() == value.data_ptr() for name, value in whole.items()), "written once"


@pytest.mark.parametrize("executor", ["loop", "vmap"])
@pytest.mark.slow
def test_a_run_on_it_goes_on_from_its_checkpoint(executor: str, tmp_path: Path) -> None:
    """torch's own dropout draws from the device's random stream, which differs from the CPU's."""

    def fitted(rounds: int, folder: str, ckpt_path: str | None = None) -> Any:
        trainer = make_trainer(tmp_path / folder, CASES["SCAFFOLD"].method, rounds=rounds, executor=executor, precision="32-true")
        trainer.fit(
            classifier(network=lambda: nn.Sequential(nn.Linear(6, 8), nn.Dropout(0.5), nn.Linear(8, 3))), TinyData(), ckpt_path
        )
        return trainer

    with computing_there():
        whole, half = fitted(2, "whole"), fitted(1, "half")
        torch.manual_seed(1)
        torch.get_device_module(NAME).manual_seed(1)
        resumed = fitted(2, "half", str(half.run_dir))
        kept = list(resumed.run.method_record("SCAFFOLD").clients)
        # States of clients that have not trained again are still on the CPU, as loaded. Observers receive all states on the device.
        assert len(kept) > 5 and all(isinstance(leaf, OnDevice) for leaf in pytree.tree_leaves(kept) if isinstance(leaf, Tensor))
    assert_close({n: v.here for n, v in resumed.params.items()}, {n: v.here for n, v in whole.params.items()}, 0)


def test_float64_is_refused_in_one_line_where_there_is_none() -> None:
    with computing_there() as device:
        assert float64_device(device) == float64_device(torch.device("cpu")) == torch.device("cpu")
        with pytest.raises(ValueError, match="precision=64-true: fake has no float64; use 32-true"):
            train()


@pytest.mark.slow
@pytest.mark.parametrize("executor", ["loop", "vmap"])
@pytest.mark.parametrize("name", [name for name in CASES if name != "DENSE"])
def test_every_method_runs_as_on_cuda(name: str, executor: str, monkeypatch: pytest.MonkeyPatch) -> None:
    case, generator = CASES[name], torch.Generator

    def trained() -> Any:
        options = {"data": case.data(), "precision": "32-true", **case.options, "executor": executor, "rounds": 2}
        return train(case.method, module=case.module(case.optimizer), **options)

    here = trained()
    monkeypatch.setattr(torch, "Generator", lambda device="cpu": generator())
    with computing_there(like_cuda=True):
        there = trained()
    assert there.executor.name == executor
    assert_close({n: v.here for n, v in there.params.items()}, here.params, 1e-4)
