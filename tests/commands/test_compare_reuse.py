"""``flcog compare`` reuses a cell that another table under the same root has finished."""

import csv
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from harness import ROOT

import flcog
from flcog.commands.cli import main
from flcog.commands.compare.folder import SAME_RUN
from flcog.commands.compare.plan import Cell, cells, select
from flcog.commands.compare.resolved import identity, resolve, resolved, settings_of
from flcog.commands.compare.table_file import read_table

QUICKSTART = str(ROOT / "configs/quickstart.yaml")
FEDPROX = str(ROOT / "configs/methods/fedprox.yaml")


def table(folder: Path, name: str, **content: Any) -> Path:
    path = folder / f"{name}.yaml"
    path.write_text(
        yaml.safe_dump({"configs": [QUICKSTART], "rows": {"FedAvg": None, "FedProx": {"configs": [FEDPROX]}}} | content)
    )
    return path


def identities(folder: Path, *extra: str, **content: Any) -> list[str]:
    runs = cells(read_table(table(folder, "identities", **content)), folder / "out", extra)
    configs = resolve(runs)
    return [identity(configs[cell.name]) for cell in runs]


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """The folders of the started runs. Each run ends at once with two rounds."""
    folders: list[Path] = []

    class Process:
        def __init__(self, command: list[str], **_: Any) -> None:
            folders.append(Path(command[command.index("--trainer.default_root_dir") + 1]))
            run = folders[-1] / "20260101-000000"
            run.mkdir(parents=True)
            with (run / "metrics.csv").open("w", newline="") as file:
                csv.writer(file).writerows([["round", "test/accuracy", "time/round"], [1, 0.5, 1.0], [2, 0.25, 1.0]])

            config = resolved(Cell("", "", 0, run, []), command[command.index("fit") + 1 :])
            (run / "config.yaml").write_text(yaml.safe_dump(json.loads(json.dumps(config))))

        def wait(self) -> int:
            return 0

    monkeypatch.setattr("flcog.commands.compare.training.subprocess.Popen", Process)
    return folders


@pytest.fixture
def compare(tmp_path: Path) -> Callable[..., None]:
    def run(name: str, *more: str, **content: Any) -> None:
        main(["compare", str(table(tmp_path, name, **content)), "--out", str(tmp_path / "runs" / name), *more])

    return run


@pytest.mark.slow
def test_what_another_table_has_finished_is_taken(
    compare: Callable[..., None], started: list[Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    compare("one", rows={"FedAvg": None}, columns={"x": None})
    assert started == [tmp_path / "runs/one/x/FedAvg/seed0"]
    compare("two")
    assert started[1:] == [tmp_path / "runs/two/FedProx/seed0"]
    said = capsys.readouterr().out
    assert "FedAvg · seed 0: the same run as " in said and "| FedAvg | 50.00 | 25.00 |" in said
    assert yaml.safe_load((tmp_path / f"runs/two/FedAvg/seed0/{SAME_RUN}").read_text()) == {
        "folder": "../../../one/x/FedAvg/seed0"
    }
    # The finished run is still used when the command is repeated, and with --show after all runs were moved together.
    compare("two")
    assert len(started) == 2 and "2 runs, 2 of them finished before" in capsys.readouterr().out
    shutil.move(tmp_path / "runs", tmp_path / "elsewhere")
    main(["compare", str(tmp_path / "two.yaml"), "--out", str(tmp_path / "elsewhere/two"), "--show"])
    assert "| FedAvg | 50.00 | 25.00 |" in capsys.readouterr().out
    # A cell is trained if the run that it used was deleted.
    shutil.rmtree(tmp_path / "elsewhere/one")
    main(["compare", str(tmp_path / "two.yaml"), "--out", str(tmp_path / "elsewhere/two")])
    assert started[2:] == [tmp_path / "elsewhere/two/FedAvg/seed0"]


@pytest.mark.slow
def test_a_table_that_was_changed_does_not_keep_what_it_took(
    compare: Callable[..., None], started: list[Path], tmp_path: Path
) -> None:
    compare("one", rows={"FedAvg": None})
    compare("two", rows={"FedAvg": None})
    compare("two", rows={"FedAvg": None}, arguments={"trainer.rounds": 7})
    assert started == [tmp_path / "runs/one/FedAvg/seed0", tmp_path / "runs/two/FedAvg/seed0"]


@pytest.mark.slow
def test_two_rows_that_are_the_same_are_run_once(compare: Callable[..., None], started: list[Path]) -> None:
    compare("one", rows={"FedAvg": None, "plain": {"arguments": {"trainer.rounds": 20}}})
    assert len(started) == 1


@pytest.mark.slow
def test_another_version_of_flcog_runs_anew(
    compare: Callable[..., None], started: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    compare("one", rows={"FedAvg": None})
    monkeypatch.setattr(flcog, "__version__", "0.0.0")
    compare("two", rows={"FedAvg": None})
    assert len(started) == 2


@pytest.mark.slow
def test_what_makes_a_run_the_same(tmp_path: Path) -> None:
    plain, prox = identities(tmp_path)
    assert plain and plain != prox
    same = (
        ["--trainer.logger", "false"],
        ["--trainer.rounds", "20"],  # the same as in the config
        ["--trainer.callbacks+=Checkpoint", "--trainer.callbacks.keep_every_n_rounds", "2"],
    )
    for words in same:
        assert identities(tmp_path, *words)[0] == plain, words
    others = (
        ["--trainer.executor", "loop"],
        ["--trainer.precision", "64-true"],
        ["--data.batch_size", "16"],
        ["--trainer.callbacks+=ClassAccuracy"],  # adds columns to metrics.csv
    )
    found = [identities(tmp_path, *words)[0] for words in others]
    assert len({plain, *found}) == 5
    rows = {"FedProx": {"configs": [FEDPROX]}}
    assert identities(tmp_path, rows=rows) == [prox] != identities(tmp_path, "--trainer.callbacks.mu", "0.5", rows=rows)


SHARED = (
    (("feddisco", "FedDyn", "CIFAR-10 NIID-1"), ("feddisco-settings", "FedDyn", "K=10")),
    (("feddisco-settings", "FedDyn", "rho=10"), ("feddisco-imbalanced", "FedDyn", "")),
    (("fedcog", "FedCOG", "CIFAR-10 NIID-1"), ("fedcog-settings", "FedCOG", "tau=400"), ("fedcog-steps", "100 steps", "")),
    (("fedssyn", "FedAvg", "N=10, 0.1"), ("fedssyn-methods", "FedAvg", "CIFAR-10, 0.1"), ("fedssyn-grid", "FedAvg", "p=0.5")),
    (("fedwalk-heterogeneity", "FedAvg", "Dir(10)"), ("fedwalk-leashes", "FedAvg", "IID")),
)


@pytest.mark.parametrize("arms", SHARED, ids=lambda arms: arms[0][0])
def test_tables_of_a_paper_share_what_they_have_in_common(arms: tuple[tuple[str, str, str], ...], tmp_path: Path) -> None:
    found = set()
    for name, row, column in arms:
        table = select(read_table(ROOT / f"configs/tables/{name}.yaml"), [row, *([column] if column else [])])
        cell = cells(table, tmp_path, [])[0]
        found.add(identity(resolve([cell])[cell.name]))
    assert len(found) == 1


def test_initial_weights_are_settings(tmp_path: Path) -> None:
    """A file of other weights makes another run; the same weights under another name have the same settings."""
    files = [tmp_path / name for name in ("a.pt", "b.pt", "c.pt")]
    for file, value in zip(files, (0.0, 0.0, 1.0), strict=True):
        torch.save({"weight": torch.full((2, 2), value)}, file)
    a, b, c = (resolved(Cell("", "", 0, tmp_path, []), ["-c", QUICKSTART, "--init_from", str(file)]) for file in files)
    none = resolved(Cell("", "", 0, tmp_path, []), ["-c", QUICKSTART])
    assert a is not None and b is not None and c is not None and none is not None
    assert settings_of(a) == settings_of(b) and identity(a) == identity(b)
    assert len({identity(config) for config in (none, a, c)}) == 3 and "init_from" not in settings_of(none)


def test_seeds_and_what_they_draw(tmp_path: Path) -> None:
    first, second = identities(tmp_path, rows={"A": None}, seeds=[0, 1])
    zero, one = identities(tmp_path, rows={"A": None}, seeds=[0, 1], vary=["seed", "partition_seed"])
    # Seed 0 draws the same split that all seeds share if only the seed varies.
    assert zero == first and len({first, second, one}) == 3


def test_a_run_that_would_be_refused_is_left_to_say_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    runs = cells(read_table(table(tmp_path, "bad", rows={"A": {"arguments": {"trainer.runds": 3}}})), tmp_path, [])
    assert resolve(runs) == {} and not any(capsys.readouterr())
    assert not any(cell.identity for cell in runs) and isinstance(runs[0], Cell)


@pytest.mark.slow
def test_a_dry_run_describes_the_cells_and_writes_nothing(
    compare: Callable[..., None], started: list[Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    compare("one", rows={"FedAvg": None}, seeds=[0], columns={"short": {"arguments": {"trainer.rounds": 4}}})
    columns = {"short": {"arguments": {"trainer.rounds": 4}}, "long": {"arguments": {"trainer.rounds": 9}}}
    rows = {
        "FedAvg": None,
        "FedProx": {"configs": [FEDPROX], "columns": {"long": {"trainer.callbacks.mu": 3}}},
        "bad": {"arguments": {"trainer.ronds": 1}},
    }
    compare("two", rows={"FedAvg": None}, seeds=[0], columns=columns)
    before = sorted(path for path in tmp_path.rglob("*"))
    capsys.readouterr()
    with pytest.raises(SystemExit, match=r"^2$"):
        compare("two", "--dry-run", seeds=[0, 1], columns=columns, rows=rows)
    assert sorted(path for path in tmp_path.rglob("*")) == before and len(started) == 2
    said, error = capsys.readouterr()
    reason = "there is no option --trainer.ronds. Did you mean '--trainer.rounds'?"
    assert error == f"flcog: error: 4 of 12 runs cannot be trained, the first, bad · long · seed 0: {reason}\n"
    common, *arms, total = said.strip().split("\n\n")
    assert "trainer.local_steps: " in common and "trainer.rounds" not in common and "mu:" not in common
    texts = {text.partition("\n")[0]: text.partition("\n")[2] for text in arms}
    reused = f"reused, finished in {tmp_path / 'runs/one/short/FedAvg/seed0'}"
    # Each round of the stand-in takes one second, and each of its runs writes two rounds.
    assert texts["FedAvg · short"] == (
        f"  unlike other cells of its row:\n    trainer.rounds: 4\n  seed 0: {reused}\n"
        "  seed 1: to be trained; about 0:04, at 1 s a round as in earlier runs of this row"
    )
    assert "unlike other cells of its row and of its column:\n    trainer.callbacks.0.mu: 3" in texts["FedProx · long"]
    assert "seed 0: to be trained; about 0:09, at 1 s a round as in earlier runs of FedAvg" in texts["FedProx · long"]
    assert texts["bad · short"] == f"  cannot be trained: {reason}\n  seed 0: cannot be trained\n  seed 1: cannot be trained"
    assert total == ("12 runs: 2 are reused, 4 cannot be trained, 6 are to be trained, about 0:39 one after another")


def test_a_dry_run_refuses_the_runs_that_the_command_refuses(
    compare: Callable[..., None], started: list[Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A damaged run is trained again, with or without other settings, as is a cell that took another table's run with other settings."""
    changed: dict[str, Any] = {"rows": {"FedAvg": None}, "arguments": {"trainer.rounds": 7}}
    compare("one", rows={"FedAvg": None})
    for words in (["--dry-run"], [], ["--dry-run", "--", "--trainer.rounds", "7"], ["--", "--trainer.rounds", "7"]):
        with pytest.raises(SystemExit, match=r"^2$"):
            compare("one", *words, **({"rows": {"FedAvg": None}} if "--" in words else changed))
        said = capsys.readouterr()
        assert said.err.endswith(
            "runs/one/FedAvg/seed0 holds this arm with other settings (trainer.rounds 20 instead of 7): choose another --out, or "
            "delete it\n"
        )
        assert "reused" not in said.out
    compare("two", rows={"FedAvg": None})
    compare("two", "--dry-run", **changed)
    assert "1 runs: 0 are reused, 1 are to be trained" in capsys.readouterr().out
    assert (tmp_path / f"runs/two/FedAvg/seed0/{SAME_RUN}").is_file(), "the dry run deletes nothing"
    next((tmp_path / "runs/one").glob("*/seed0/*/metrics.csv")).write_text("damaged")
    compare("one", "--dry-run", **changed)
    assert "1 runs: 0 are reused, 1 are to be trained" in capsys.readouterr().out and len(started) == 1


def test_a_dry_run_constructs_the_methods(compare: Callable[..., None], capsys: pytest.CaptureFixture[str]) -> None:
    """The parser accepts the number, and the run would refuse it at its turn in the night."""
    rows = {"FedAvg": None, "FedProx": {"configs": [FEDPROX], "arguments": {"trainer.callbacks.mu": -1.0}}}
    with pytest.raises(SystemExit, match=r"^2$"):
        compare("one", "--dry-run", rows=rows, seeds=[0])
    reason = "1 of 2 runs cannot be trained, the first, FedProx · seed 0: FedProx: mu must be at least 0; got -1.0"
    assert reason in capsys.readouterr().err


@pytest.mark.parametrize("tune", [{}, {"tune": {"model.optimizer.lr": [0.01, 0.1]}}], ids=["plain", "tuned"])
@pytest.mark.parametrize("option", ["--dry-run", "--show"])
def test_an_option_that_no_run_accepts_is_refused(
    option: str, tune: dict[str, Any], compare: Callable[..., None], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit, match=r"^2$"):
        compare("one", option, "--", "--trainer.ruonds", "4", rows={"FedAvg": tune or None}, seeds=[0])
    said = capsys.readouterr()
    assert said.err.endswith("FedAvg · seed 0: there is no option --trainer.ruonds. Did you mean '--trainer.rounds'?\n")
    assert said.err.startswith("flcog: error: ") and said.out == ""


@pytest.mark.parametrize("finished", [False, True])
def test_an_option_that_no_run_accepts_starts_no_run(
    finished: bool, compare: Callable[..., None], started: list[Path], capsys: pytest.CaptureFixture[str]
) -> None:
    if finished:
        compare("one", rows={"FedAvg": None}, seeds=[0])
    with pytest.raises(SystemExit, match=r"^2$"):
        compare("one", "--", "--trainer.ruonds", "4", rows={"FedAvg": None}, seeds=[0])
    assert capsys.readouterr().err.endswith("there is no option --trainer.ruonds. Did you mean '--trainer.rounds'?\n")
    assert len(started) == finished


@pytest.mark.slow
def test_a_dry_run_names_the_run_of_another_table(
    compare: Callable[..., None], started: list[Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    compare("one", rows={"FedAvg": None})
    compare("two", "--dry-run")
    said = capsys.readouterr().out
    assert f"seed 0: reused, the same run as {tmp_path / 'runs/one/FedAvg/seed0'}" in said
    assert "2 runs: 1 are reused, 1 are to be trained" in said and len(started) == 1
    with pytest.raises(SystemExit):
        compare("two", "--dry-run", "--show")


def test_an_error_in_the_grid_comes_before_the_plan(compare: Callable[..., None], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match=r"^2$"):
        compare("one", "--dry-run", rows={"A": {"tune": {"model.optimizer.lr": [7.0, 8.0]}}})
    said = capsys.readouterr()
    assert "tune of row A lacks the row's own values of model.optimizer.lr" in said.err and said.out == ""


@pytest.mark.slow
def test_a_dry_run_lists_the_grid(compare: Callable[..., None], started: list[Path], capsys: pytest.CaptureFixture[str]) -> None:
    rows = {"FedAvg": {"arguments": {"model.optimizer.lr": 0.02}, "tune": {"model.optimizer.lr": [0.01, 0.02]}}}
    compare("one", "--dry-run", rows=rows, seeds=[0])
    *_, head, first, second = capsys.readouterr().out.strip().splitlines()
    assert head == "With --tune, 2 runs on seed 1 come before the others:" and not started
    assert first.startswith("  FedAvg, lr=0.01 · seed 1: to be trained; ") and second.startswith("  FedAvg, lr=0.02 · seed 1: ")
