"""Damaged files of a run lead to a message of one line that names the file, never to a traceback or to wrong training."""

import copy
import math
import random
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from harness import BatchNormMLP, TinyData, classifier, fit, make_trainer, without_times

import flcog
from flcog.callbacks import SCAFFOLD, EarlyStopping, FedAvgM, RoundsToTarget
from flcog.run import checkpoint
from flcog.run.checkpoint_contents import check_alike
from flcog.run.metrics_rows import read_rows

LAST = "checkpoints/last.ckpt"


def methods() -> list[flcog.Callback]:
    return [SCAFFOLD(), FedAvgM(), EarlyStopping(), RoundsToTarget(0.99)]


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of two rounds; tests work on copies."""
    torch.manual_seed(0)
    run = fit(tmp_path_factory.mktemp("finished"), *methods(), rounds=2, eval_every=1).run_dir
    assert run is not None
    return run


@pytest.fixture
def run(finished: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(finished, tmp_path / "run"))


def states_file(run: Path) -> Path:
    return max((run / "checkpoints/clients").iterdir())


def resume(run: Path, rounds: int = 3) -> flcog.FederatedTrainer:
    return fit(run.parent / "runs", *methods(), ckpt_path=str(run), rounds=rounds, eval_every=1)


def refused(run: Path) -> str | None:
    """The message that the user reads, or None if the run resumed."""
    try:
        resume(run)
    except ValueError as error:
        assert "\n" not in str(error)
        assert str(run) in str(error), "the line names the file"
        return str(error)
    return None


@pytest.mark.parametrize("of", ["run", "clients"])
def test_every_flipped_bit_is_found_or_means_nothing(run: Path, of: str) -> None:
    path = run / LAST if of == "run" else states_file(run)
    content, whole = path.read_bytes(), checkpoint._load(path)
    found = 0
    for position in random.Random(0).sample(range(len(content)), 60):
        damaged = bytearray(content)
        damaged[position] ^= 1 << position % 8
        path.write_bytes(damaged)
        try:
            loaded = checkpoint._load(path)
        except ValueError as error:
            assert str(path) in str(error) and "\n" not in str(error)
            found += 1
        else:  # the bit was in the archive's padding
            leaves, expected = map(torch.utils._pytree.tree_leaves, (loaded, whole))
            assert all(torch.equal(a, b) if torch.is_tensor(a) else a == b for a, b in zip(leaves, expected, strict=True))
    assert found > 20


NONSENSE = (None, -1, 1.5, 2**70, "x", "../x", [], {"a": 5}, {5: "a"}, [None], torch.tensor(math.nan), b"x", ...)
"""``...`` removes the entry."""


def places(tree: dict[Any, Any], above: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Every entry of nested dictionaries. Of clients and parameters it takes only the first two, because the others are similar."""
    for number, (key, value) in enumerate(tree.items()):
        if number < 2 or not above or above[0] == "observers":
            yield (*above, key)
            if isinstance(value, dict):
                yield from places(value, (*above, key))


def changed(payload: dict[str, Any], place: tuple[Any, ...], value: Any) -> dict[str, Any]:
    payload = copy.deepcopy(payload)
    inner = payload
    for key in place[:-1]:
        inner = inner[key]
    if value is ...:
        del inner[place[-1]]
    else:
        inner[place[-1]] = value
    return payload


@pytest.mark.parametrize("of", ["run", "clients"])
@pytest.mark.slow
def test_whatever_stands_where_something_else_belongs_no_traceback_follows(run: Path, of: str) -> None:
    """The changed file is refused, or the entry has no effect on the model."""
    path = run / LAST if of == "run" else states_file(run)
    payload, model = torch.load(path), resume(Path(shutil.copytree(run, run.parent / "intact"))).params
    attempts = [(place, value) for place in places(payload) for value in NONSENSE]
    for place, value in random.Random(1).sample(attempts, 16):
        copied = Path(shutil.copytree(run, run.parent / "copy"))
        torch.save(changed(payload, place, value), copied / path.relative_to(run))
        if refused(copied) is None:
            params = torch.load(copied / LAST)["params"]
            assert all(torch.equal(params[name], value.double()) for name, value in model.items()), (place, value)
        shutil.rmtree(copied)


@pytest.mark.parametrize(
    ("place", "value", "line"),
    [
        (("round",), -1, r"round must be a number of rounds done; it holds -1: the file is damaged or was changed"),
        (("round",), 2.0, r"round must be a number of rounds done; it holds 2\.0"),
        (("executor",), torch.tensor(math.nan), r"executor must be an executor's name, its number of clients at once .* or None; it holds"),
        (("params", "model.1.bias"), torch.full((8,), math.nan), r"parameter model\.1\.bias has NaN or infinite values"),
        (("params", "model.1.bias"), torch.zeros(8, dtype=torch.int64), r"model\.1\.bias is torch\.int64 there, torch\.float64 here"),
        (("params", "model.1.bias"), torch.zeros(9), r"model\.1\.bias is \(9,\) there, \(8,\) here"),
        (("servers", "FedAvgM", "velocity", "model.1.bias"), torch.zeros(9), r"state\['FedAvgM'\].* is a tensor of float32 \(9,\)"),
        (("servers", "SCAFFOLD"), {}, r"the server's state\['SCAFFOLD'\] is \{\} there, \{'c'\} here"),
        (("clients", 3), "../last.ckpt", r"clients must be names of files in the folder clients"),
        (("clients", 3), "/etc/passwd", r"clients must be names of files in the folder clients"),
        (("clients", 3), "round-000009-rank0.pt", r"round-000009-rank0\.pt"),
        (("observers", "EarlyStopping", "best"), "x", r"the state of EarlyStopping does not fit"),
    ],
)  # fmt: skip
def test_what_is_wrong_with_a_checkpoint_is_said(run: Path, place: tuple[Any, ...], value: Any, line: str) -> None:
    payload = torch.load(run / LAST)
    names = list(payload["params"])
    place = tuple(next(name for name in names if name.endswith("bias")) if part == "model.1.bias" else part for part in place)
    torch.save(changed(payload, place, value), run / LAST)
    with pytest.raises(ValueError, match=line.replace(r"model\.1\.bias", r"\S*bias")):
        resume(run)


@pytest.mark.parametrize("bad", [math.nan, math.inf])
@pytest.mark.parametrize(
    "place", [("servers", "FedAvgM", "velocity"), ("servers", "SCAFFOLD", "c"), ("clients", 0, "SCAFFOLD", "c")]
)
def test_states_that_are_no_numbers_are_refused(run: Path, place: tuple[Any, ...], bad: float) -> None:
    path = run / LAST if place[0] == "servers" else states_file(run)
    payload = torch.load(path)
    if place[0] == "clients":
        place = (place[0], next(iter(payload["clients"])), *place[2:])
    tensors = payload
    for key in place:
        tensors = tensors[key]
    name, tensor = next(iter(tensors.items()))
    tensor.view(-1)[-1] = bad
    torch.save(payload, path)
    owner = "the server's state" if place[0] == "servers" else f"SCAFFOLD's state of client {place[1]}"
    with pytest.raises(ValueError) as error:
        resume(run)
    assert str(error.value).startswith(
        f"{path}: {owner}["
    ) and f"[{name!r}] has NaN or infinite values: the file is damaged" in str(error.value)
    assert "\n" not in str(error.value)


def test_a_state_may_be_infinite_where_it_began_so(tmp_path: Path) -> None:
    path = tmp_path / LAST
    begun = {"never": torch.tensor(math.inf), "loss": torch.tensor(0.0), "head": {}, "best": -math.inf, "times": [0.0]}
    for value in (math.inf, math.nan, 2.0):
        check_alike(path, "state", begun | {"never": torch.tensor(value), "best": value}, begun)
    filled = {"weight": torch.tensor([1.0, math.nan])}
    for wrong, place in (
        ({"loss": torch.tensor(math.inf)}, "state['loss']"),
        ({"times": [math.nan]}, "state['times'][0]"),
        ({"head": filled}, "state['head']['weight']"),
    ):
        with pytest.raises(ValueError, match=re.escape(f"{path}: {place} has NaN or infinite values")):
            check_alike(path, "state", begun | wrong, begun)


def test_buffers_that_are_no_numbers_are_refused(tmp_path: Path) -> None:
    options: dict[str, Any] = {"module": classifier(network=BatchNormMLP), "local_steps": 1}
    run = fit(tmp_path, rounds=1, **options).run_dir
    assert run is not None
    payload = torch.load(run / LAST)
    payload["buffers"]["model.1.running_var"][0] = math.inf
    torch.save(payload, run / LAST)
    for resumed in (fit, lambda *_, **options: make_trainer(tmp_path).test(options["module"], TinyData(), options["ckpt_path"])):
        with pytest.raises(ValueError, match=r"last.ckpt: buffer model\.1\.running_var has NaN or infinite values: the file is"):
            resumed(tmp_path, rounds=2, ckpt_path=str(run), **options)


def test_a_round_beyond_the_rows_is_a_warning(run: Path) -> None:
    payload = torch.load(run / LAST)
    torch.save(payload | {"round": 4}, run / LAST)
    with pytest.warns(UserWarning, match=r"rounds 3 to 4 are missing; it is kept as metrics-1\.csv, and the run continues"):
        trainer = resume(run, rounds=5)
    assert trainer.run.round == 5


def test_a_client_state_of_another_method_or_shape_is_refused(run: Path) -> None:
    path = states_file(run)
    payload = torch.load(path)
    client, states = next(iter(payload["clients"].items()))
    torch.save(changed(payload, ("clients", client), {"Ditto": states["SCAFFOLD"]}), path)
    with pytest.raises(ValueError, match=rf"{path}.* a state of Ditto, which is no method of this run"):
        resume(run)
    torch.save(changed(payload, ("clients", client, "SCAFFOLD", "c"), {}), path)
    with pytest.raises(ValueError, match=rf"{path}: SCAFFOLD's state of client {client}\['c'\] is \{{\}} there"):
        resume(run)


DAMAGE = {
    "half a line": (b"\r\n2,", "the line is cut off"),
    "a word": (b"\r\ntwo,", r"it has 2 values for \d+ columns"),
    "NUL bytes": (b"\r\n\0\0\0\0\r\n", "it has NUL bytes"),
    "Latin-1": (b"\r\n2,\xe9\r\n", "it is not UTF-8"),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_damaged_table_names_file_and_row_and_the_run_goes_on(finished: Path, run: Path, damage: str) -> None:
    whole = resume(Path(shutil.copytree(finished, run.parent / "whole")))
    table, (content, reason) = run / "metrics.csv", DAMAGE[damage]
    first = table.read_bytes().split(b"\r\n2,")[0]
    table.write_bytes(first + (content if damage != "a word" else b"\r\ntwo,0.5\r\n"))
    with pytest.warns(
        UserWarning, match=rf"metrics\.csv: row 2 is damaged \({reason}\), and round 2 is missing; it is kept as metrics-1"
    ):
        resumed = resume(run)
    assert [row["round"] for row in resumed.history] == [1, 3]
    assert without_times(resumed.history) == [row for row in without_times(whole.history) if row["round"] != 2]
    assert all(torch.equal(resumed.params[name], value) for name, value in whole.params.items())


def test_rows_are_read_up_to_the_damage(tmp_path: Path) -> None:
    path = tmp_path / "metrics.csv"
    for content, rows, reason in (
        ("round,x\r\n1,0.5\r\n2,\r\n", [{"round": 1, "x": 0.5}, {"round": 2}], None),
        ("round,x\r\n1,0.5\r\n2,much\r\n3,1\r\n", [{"round": 1, "x": 0.5}], "row 2 is damaged (x is 'much')"),
        ("round,x\r\n-1,0.5\r\n", [], "row 1 is damaged (its round is -1)"),
        ("round,x\r\nnan,0.5\r\n", [], "row 1 is damaged (its round is nan)"),
        ("x,y\r\n1,0.5\r\n", [], "its first line is damaged (it does not name the columns)"),
        ("\0\0\0\0", [], "its first line is damaged (the line is cut off)"),
        ("", [], None),
    ):
        path.write_text(content, newline="")
        assert read_rows(path) == (rows, reason)
