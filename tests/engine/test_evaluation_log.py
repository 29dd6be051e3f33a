"""Values that a validation_step or a test_step logs become the figures that Lightning would compute."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from harness import TinyData, make_trainer
from torch import Tensor

from engine.test_lightning_hooks import Both, Plain
from flcog.callbacks import Local
from flcog.client.remote import RemoteClients, answer_of
from flcog.core.processes import Processes
from flcog.evaluation_log import EvaluationLog, Logged
from flcog.hosting import host_clients
from flcog.logged_names import SetNames
from flcog.wire.packing import pack, unpack


class Steps(Plain):
    """Its validation has a batch of 20 rows and one of 10."""

    def __init__(self, step: Callable[[Any, Any, int], Any], end: Callable[[Any], None] = lambda module: None) -> None:
        super().__init__()
        self._step, self._end = step, end

    def validation_step(self, batch: Any, batch_idx: int) -> Any:
        return self._step(self, batch, batch_idx)

    def on_validation_epoch_end(self) -> None:
        self._end(self)


def evaluated(step: Callable[[Any, Any, int], Any], **options: Any) -> dict[str, float]:
    """The figures on the validation set."""
    trainer = make_trainer(None)
    trainer.prepare(Steps(step, **options), Both(eval_batch_size=20))
    return {name: value for name, value in trainer.evaluate().items() if name.startswith("val/")}


def test_each_value_is_reduced_as_the_module_asks() -> None:
    def step(module: Any, batch: Any, index: int) -> None:
        rows = float(len(batch[0]))
        if index == 1:
            module.log("val_last", 3.0)
        module.log("val_rows", rows)
        module.log("val_sum", rows, reduce_fx="sum")
        module.log("val_all", rows, False, None, None, None, torch.sum)
        module.log_dict({"val_largest": rows, "val/last_largest": float(index)}, reduce_fx=max)
        module.log("val_smallest", rows, reduce_fx=torch.min)
        module.log("val_weighted", float(index), batch_size=1 if index else 3)

    assert evaluated(step) == {
        "val/last": 3,
        "val/rows": (20 * 20 + 10 * 10) / 30,
        "val/sum": 30,
        "val/all": 30,
        "val/largest": 20,
        "val/last_largest": 1,
        "val/smallest": 10,
        "val/weighted": 1 / 4,
    }


@pytest.mark.parametrize("at_the_end", [False, True])
def test_the_returned_value_is_no_loss_if_the_module_logs_one(at_the_end: bool) -> None:
    def step(module: Any, batch: Any, index: int) -> Tensor:
        if not at_the_end:
            module.log("val_loss", 2.0 + index, batch_size=1)
        return F.cross_entropy(module(batch[0]), batch[1])

    def end(module: Any) -> None:
        if at_the_end:
            module.log("val_loss", 2.5)

    assert evaluated(step, end=end) == {"val/loss": 2.5}


def test_a_value_of_the_whole_set_replaces_those_of_its_batches() -> None:
    figures = evaluated(
        lambda module, batch, index: module.log("val_score", 1.0), end=lambda module: module.log("val_score", 5.0, batch_size=1)
    )
    assert figures == {"val/score": 5}


def test_names_that_end_alike_are_different_columns() -> None:
    def step(module: Any, batch: Any, index: int) -> None:
        module.log_dict({"val/cls/loss": 1.0, "val/reg/loss": 2.0, "val_reg/acc": 3.0, "validation/acc": 4.0})

    assert evaluated(step) == {"val/cls/loss": 1, "val/reg/loss": 2, "val/reg/acc": 3, "val/acc": 4}


@pytest.mark.parametrize(
    ("logs", "message"),
    [
        (
            lambda module, index: module.log("val_a", 1.0, reduce_fx=torch.median),
            "val_a is logged with reduce_fx=median: choose mean, sum, max, min",
        ),
        (
            lambda module, index: module.log("val_a", 1.0, reduce_fx="max" if index else "mean"),
            "a is logged with reduce_fx=mean and with max: choose one",
        ),
        (
            lambda module, index: module.log_dict({"val_a": 1.0, "a": 2.0}),
            "the logged values 'val_a' and 'a' would both be the column 'a': rename one of them",
        ),
    ],
)
def test_what_has_no_honest_figure_is_refused(logs: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        evaluated(lambda module, batch, index: logs(module, index))


@dataclass(frozen=True)
class WithAnother(Processes):
    """This process beside one whose module has logged other values."""

    other: Any = None

    def gather(self, value: Any) -> list[Any]:
        return [value, self.other]


def test_processes_join_their_values_by_the_rows_that_logged_them() -> None:
    module, log = Plain(), EvaluationLog()
    with log.of(module, 20):
        module.log("val_mean", 1.0)
        module.log("val_max", 4.0, reduce_fx="max")
        module.log("val_sum", 4.0, reduce_fx="sum")
    log.take_result(torch.tensor(9.0), 20)
    other = {name: Logged(name, 6.0, 10) for name in ("mean", "max", "sum")} | {"loss": Logged("mean", 5.0, 10)}
    found = log.over_processes(module, 20, WithAnother(other=(other, {}, 15, SetNames())))
    assert {name: logged.value for name, logged in found.items()} == {"loss": 0.5, "max": 6, "mean": 26 / 30, "sum": 10}
    alone = log.over_processes(module, 20, WithAnother(other=({}, {}, 0, SetNames())))
    assert {name: logged.value for name, logged in alone.items()} == {"loss": 9, "max": 4, "mean": 1, "sum": 4}


class InHere:
    """A host with some clients in this process, which receives messages as bytes."""

    def __init__(self, trainer: Any, module: Any, data: Any) -> None:
        self._clients = host_clients(trainer.settings, trainer.methods, module, data)

    def send(self, name: str, *arguments: Any) -> None:
        self._answer = pack(answer_of(self._clients, name, unpack(pack(arguments))))

    def answer(self) -> Any:
        return unpack(self._answer)


def test_hosts_of_clients_find_the_figures_of_one_process() -> None:
    def step(module: Any, batch: Any, index: int) -> None:
        inputs, ones = batch[0], batch[0][batch[1] == 1]
        module.log("val_sum", inputs.sum(), reduce_fx="sum")
        module.log("val_largest", inputs.max(), reduce_fx="max")
        if len(ones):
            module.log("val_of_class", ones.mean(), batch_size=len(ones))

    options: dict[str, Any] = {"eval_batch_size": 7, "client_val": 0.5}
    alone, server = make_trainer(None), make_trainer(None)
    alone.prepare(Steps(step), TinyData(**options))
    server.connect(
        RemoteClients([InHere(server, Steps(step), TinyData(**options).only(mine)) for mine in (range(3), range(3, 8))])
    )
    server.prepare(Steps(step), TinyData(**options))
    expected, found = ({name: value for name, value in run.evaluate().items() if "val/" in name} for run in (alone, server))
    assert expected.keys() == {"val/sum", "val/largest", "val/of_class"} and found == pytest.approx(expected, rel=1e-12)


def test_a_figure_of_some_personal_models_is_the_mean_over_these() -> None:
    numbers = iter(range(8))

    class Sometimes(Plain):
        def test_step(self, batch: Any, batch_idx: int) -> None:
            if next(numbers) % 2:
                self.log("test_odd", 6.0)

    trainer = make_trainer(None, Local())
    trainer.prepare(Sometimes(), TinyData())
    assert trainer.evaluate() == {"test/odd": 6}
