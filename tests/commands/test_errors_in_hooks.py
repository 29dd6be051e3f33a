"""For an error in the user's code, the command line prints one line with the hook, its file and line, the client and the round."""

import re
import traceback
from pathlib import Path
from types import FunctionType
from typing import Any

import lightning as L
import pytest
from lightning.pytorch.demos.boring_classes import BoringDataModule, BoringModel, RandomDataset
from torch.utils.data import Dataset

import flcog
from flcog.commands.refusals import mistakes_in_one_line, refusal
from flcog.core.trees import map_leaves
from flcog.server import aggregate


class Model(BoringModel):
    pass


class Data(BoringDataModule):
    pass


class Watcher(L.Callback):
    pass


class Rows(RandomDataset):
    pass


def broken(base: type, hook: str, *arguments: Any) -> Any:
    """An instance of a subclass of ``base`` whose hook looks up a missing key."""

    def fail(self: Any, *arguments: Any, **options: Any) -> None:
        {}["x"]

    method = FunctionType(fail.__code__.replace(co_name=hook, co_qualname=hook), globals())
    return type(base.__name__, (base,), {hook: method, "__module__": __name__})(*arguments)


def fails(tmp_path: Path, part: Any, **options: Any) -> Exception:
    """The exception of a run with this module, data, callback or method."""
    model = part if isinstance(part, L.LightningModule) else BoringModel()
    data = part if isinstance(part, L.LightningDataModule | Dataset) else BoringDataModule()
    trainer = flcog.FederatedTrainer(
        rounds=1,
        local_steps=2,
        logger=False,
        accelerator="cpu",
        default_root_dir=str(tmp_path),
        enable_progress_bar=False,
        enable_model_summary=False,
        callbacks=[part] if isinstance(part, L.Callback | flcog.Callback) else None,
        **options,
    )
    with pytest.raises(Exception) as caught:
        trainer.fit(model, data)
    return caught.value


IN_A_CLIENT = r", in client \d, round 1, local step 1 of 2"
HOOKS: dict[tuple[type, str], str] = {
    **dict.fromkeys(((Model, "training_step"), (Model, "backward"), (Model, "optimizer_step")), IN_A_CLIENT),
    **dict.fromkeys(((Model, "forward"), (Data, "on_after_batch_transfer")), IN_A_CLIENT),
    **dict.fromkeys(((Model, "configure_optimizers"), (Model, "setup"), (Data, "setup"), (Data, "train_dataloader")), ""),
    **dict.fromkeys(((Model, "on_train_epoch_end"), (Model, "validation_step"), (Watcher, "on_train_epoch_end")), ""),
    (Watcher, "on_train_batch_end"): IN_A_CLIENT,
}


@pytest.mark.parametrize(("base", "hook"), HOOKS, ids=lambda part: getattr(part, "__name__", part))
def test_the_hook_its_line_the_client_and_the_round_are_named(tmp_path: Path, base: type, hook: str) -> None:
    error = fails(tmp_path, broken(base, hook))
    place = rf"\(\S*test_errors_in_hooks.py, line \d+\), in {base.__name__}.{hook}{HOOKS[base, hook]}"
    line = refusal(error)
    assert line and re.fullmatch(rf"KeyError: 'x' {place} \(FLCOG_TRACEBACK=1 shows the traceback\)", line), line


@pytest.mark.parametrize(
    ("base", "hook", "where"),
    [
        (Model, "training_step", IN_A_CLIENT),
        (Model, "configure_optimizers", ""),
        (Model, "validation_step", ""),
        (Watcher, "on_train_batch_end", IN_A_CLIENT),
        (Data, "setup", ""),
    ],
)
def test_a_hook_with_other_parameters(tmp_path: Path, base: type, hook: str, where: str) -> None:
    part = type(base.__name__, (base,), {hook: lambda self, a, b, c, d, e, f: None})()
    getattr(type(part), hook).__qualname__ = f"{base.__qualname__}.{hook}"
    line = refusal(fails(tmp_path, part))
    assert line and re.fullmatch(
        rf"TypeError: {base.__name__}\.{hook}\(\) missing .*, in {base.__name__}.{hook}{where} \(FLCOG_TRACEBACK=1 .*", line
    ), line


def test_an_item_that_cannot_be_read(tmp_path: Path) -> None:
    line = refusal(fails(tmp_path, broken(Rows, "__getitem__", 32, 64)))
    assert line and re.fullmatch(r"the train set: item \d+ cannot be read: KeyError: 'x' \(\S*hooks.py, line \d+\)", line), line


class ReadsRound(flcog.Method):
    def loss(self, apply: Any, params: Any, batch: Any, task_loss: Any, ctx: Any) -> Any:
        return ctx.round * task_loss


def test_a_field_that_a_context_lacks(tmp_path: Path) -> None:
    """The error belongs to the hook that reads the field, and Python proposes no field of tuples."""
    error = fails(tmp_path, ReadsRound(), executor="loop")
    line, said = refusal(error), "a Context has no 'round': the server knows it as cohort.round and can send it by broadcast"
    place = r"\(\S*test_errors_in_hooks.py, line \d+\), in ReadsRound.loss"
    assert line and re.fullmatch(rf"AttributeError: {said} {place}{IN_A_CLIENT} \(FLCOG_TRACEBACK=1 .*", line), line
    assert f"AttributeError: {said}\n" in "".join(traceback.format_exception(error))


def test_a_fault_of_flcog_keeps_its_traceback(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*arguments: Any, **options: Any) -> None:
        {}["x"]

    # The function counts as a part of flcog's own file.
    code = fail.__code__.replace(co_filename=aggregate.__file__)
    monkeypatch.setattr(aggregate.Aggregate, "combine", FunctionType(code, vars(aggregate)))
    error = fails(tmp_path, Model())
    assert refusal(error) is None
    with pytest.raises(KeyError, match="x"), mistakes_in_one_line():
        raise error


def test_a_variable_asks_for_the_traceback(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An error in the user's hook is one line, unless FLCOG_TRACEBACK=1 asks for the traceback, which then names the client."""
    model = broken(Model, "training_step")
    error = fails(tmp_path, model)
    with pytest.raises(SystemExit), mistakes_in_one_line():
        raise error
    monkeypatch.setenv("FLCOG_TRACEBACK", "1")
    with pytest.raises(KeyError) as caught, mistakes_in_one_line():
        raise error
    assert any("in client" in note for note in caught.value.__notes__)


@pytest.mark.parametrize(
    ("module", "file"),
    [
        ("other.loss", "/home/me/.local/lib/python3.11/site-packages/other/loss.py"),
        ("other.loss", "/usr/lib/python3/dist-packages/other/loss.py"),
        ("torch._inductor.runtime.compile_tasks.cab", "/tmp/torchinductor_me/ab/cab.py"),
    ],
)
def test_code_of_a_package_that_flcog_calls_is_no_hook(module: str, file: str) -> None:
    """A fault in an installed package, or in code that torch generates, keeps its traceback."""
    names: dict[str, Any] = {"__name__": module}
    exec(compile("def fail(leaf): return {}[leaf]", file, "exec"), names)
    with pytest.raises(KeyError) as caught:
        map_leaves(names["fail"], "x")
    assert refusal(caught.value) is None
