"""Steps and hooks may change frozen parameters: teachers that are means of a student's last weights, and momentum encoders."""

import copy
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from harness import NUM_CLASSES, NUM_FEATURES, TinyData, assert_close, fit, make_trainer, train, without_times
from torch import Tensor, nn

from engine.test_lightning_hooks import Plain
from flcog.core.types import Params
from flcog.execute.frozen_writes import restored

ONE_CLIENT: dict[str, Any] = {"clients_per_round": 1, "rounds": 2}
NOTICE = r"^frozen parameters change during training \(teacher.weight and 1 others\): they are not averaged or sent"


class Taught(Plain):
    """A student and its teacher, whose weights follow the student's by one of several means."""

    def __init__(self, means: str = "in place") -> None:
        super().__init__()
        self.means, self.net = means, nn.Linear(NUM_FEATURES, NUM_CLASSES)
        self.teacher = copy.deepcopy(self.net).requires_grad_(False)

    @torch.no_grad()
    def follow(self) -> None:
        for own, value in zip(self.teacher.parameters(), self.net.parameters(), strict=True):
            if self.means == "data":
                own.data = own.data * 0.9 + value.data * 0.1
            elif self.means == "in place":
                own.data.mul_(0.9).add_(value.data, alpha=0.1)
            elif self.means == "copy":
                own.copy_(own * 0.9 + value * 0.1)

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        self.follow()
        return super().training_step(batch, batch_idx) + F.mse_loss(self(batch[0]), self.teacher(batch[0]))

    def test_step(self, batch: Any, batch_idx: int) -> None:
        self.log("teacher", F.cross_entropy(self.teacher(batch[0]), batch[1]))


class TaughtByAHook(Taught):
    def training_step(self, batch: Any, batch_idx: int) -> Any:
        return Plain.training_step(self, batch, batch_idx)

    def on_train_batch_end(self, *args: Any) -> None:
        self.follow()


def state(module: Plain) -> Params:
    return {name: value.detach().clone() for name, value in module.state_dict().items()}


@pytest.mark.parametrize("means", ["data", "in place", "copy"])
@pytest.mark.parametrize("options", [{"executor": "auto"}, {"executor": "vmap"}, {"executor": "fastest"}], ids=str)
@pytest.mark.filterwarnings("ignore:executor=vmap falls back to loop")
def test_a_step_that_changes_them_trains_one_client_at_a_time(means: str, options: dict[str, Any]) -> None:
    ours, loop = (train(module=Taught(means), **ONE_CLIENT, **each) for each in (options, {"executor": "loop"}))
    assert ours.executor.placement.name == "loop" and ours.executor.clients_at_once == 1
    assert_close(state(ours.model), state(loop.model), 0)


def test_threads_are_refused_and_the_reason_is_told() -> None:
    with pytest.warns(UserWarning, match=r"Taught.training_step keeps something between steps \(self.teacher.weight\)"):
        assert train(module=Taught("data"), executor="vmap", rounds=1).executor.name == "loop"
    assert train(module=Taught("data"), chunk_size=2, rounds=1).executor.clients_at_once == 1
    assert train(module=Taught("not at all"), executor="vmap", rounds=1).executor.name == "vmap"


@pytest.mark.parametrize("how", ["data", "in place", "copy", "out", "a parameter", "a layer", "not at all"])
def test_a_trial_leaves_no_change(how: str) -> None:
    module = Taught(how)
    frozen: dict[str, Tensor] = {name: value for name, value in module.named_parameters() if not value.requires_grad}
    before, layer, places = state(module), module.teacher, {name: value.data_ptr() for name, value in frozen.items()}
    module.net.weight.data += 1
    before["net.weight"] += 1
    with restored(module, frozen) as changed:
        module.follow()
        if how == "out":
            torch.add(module.net.bias.data, 1, out=module.teacher.bias.data)
        elif how == "a parameter":
            module.teacher.bias = nn.Parameter(module.net.bias + 1, requires_grad=False)
        elif how == "a layer":
            module.teacher = copy.deepcopy(module.net)
        names = changed()
    assert names == {"out": ["teacher.bias"], "a parameter": ["teacher.bias"], "not at all": []}.get(how, list(frozen))
    assert_close(state(module), before, 0)
    assert module.teacher is layer and all(value is dict(module.named_parameters())[name] for name, value in frozen.items())
    assert places == {name: value.data_ptr() for name, value in frozen.items()}


@pytest.mark.filterwarnings("ignore:frozen parameters change during training")
@pytest.mark.parametrize("kind", [Taught, TaughtByAHook])
def test_each_checkpoint_has_the_teacher_of_its_round(kind: type[Taught], tmp_path: Path) -> None:
    module = kind()
    whole = fit(tmp_path, module=module, eval_every=1)
    folder = whole.run_dir / "checkpoints"  # type: ignore[operator]
    saved = {path.name: torch.load(path, weights_only=True) for path in folder.glob("*.ckpt")}
    assert {path.name for path in folder.glob("frozen-*")} == {content["frozen"] for content in saved.values()}
    for content in saved.values():
        params = torch.load(folder / content["frozen"], weights_only=True)["params"]
        assert_close(params, {name: content["state_dict"][name] for name in params}, 0)
    for name, content in saved.items():
        figures = make_trainer(tmp_path, eval_every=1).test(kind(), TinyData(), str(folder / name))
        assert figures["test/teacher"] == whole.rows[content["round"] - 1]["test/teacher"]
    assert len({row["test/teacher"] for row in whole.rows}) == 3


@pytest.mark.filterwarnings("ignore:frozen parameters change during training")
def test_a_resumed_run_goes_on_with_the_teacher(tmp_path: Path) -> None:
    whole = fit(tmp_path, module=TaughtByAHook(), eval_every=1)
    half = fit(tmp_path, module=TaughtByAHook(), rounds=2, eval_every=1)
    resumed = fit(tmp_path, module=TaughtByAHook(), eval_every=1, ckpt_path=str(half.run_dir))
    assert_close(state(resumed.model), state(whole.model), 0)
    assert without_times(resumed.rows) == without_times(whole.rows)
    assert resumed.run_dir is not None and len(list(resumed.run_dir.glob("checkpoints/frozen-*"))) <= 2


def test_several_clients_are_told_once_that_the_teacher_stays_with_them(tmp_path: Path) -> None:
    with pytest.warns(UserWarning, match=NOTICE) as caught:
        fit(tmp_path, module=TaughtByAHook(), eval_every=1)
    assert len([each for each in caught if "frozen parameters change" in str(each.message)]) == 1
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        fit(tmp_path, module=TaughtByAHook("not at all"), eval_every=1)
        fit(tmp_path, module=TaughtByAHook(), data=TinyData(order=(0,)), clients_per_round=1, eval_every=1)


class Replaces(TaughtByAHook):
    def follow(self) -> None:
        self.teacher = copy.deepcopy(self.net).requires_grad_(False)


def test_a_teacher_that_is_replaced_as_a_whole_is_warned_about(tmp_path: Path) -> None:
    with pytest.warns(UserWarning, match="put another tensor in the place of the frozen parameter teacher.weight: "):
        fit(tmp_path, module=Replaces(), rounds=1)
