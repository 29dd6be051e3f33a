"""A resume continues the same experiment: changes are refused or reported, and a run's earlier settings stay on record."""

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from harness import NUM_CLASSES, NUM_FEATURES, ROOT, TinyData, classifier, fit, make_trainer
from lightning.pytorch.callbacks import EarlyStopping, ModelCheckpoint
from torch import nn

import flcog
from flcog.callbacks import SCAFFOLD, FedProx
from flcog.commands.cli import main
from flcog.core.arguments import flat, plain
from flcog.run.directory import update_yaml

SETTINGS: dict[str, Any] = {"rounds": 2, "local_steps": 4}


def begin(root: Path, *methods: flcog.Callback, **options: Any) -> Path:
    run = fit(root, *methods, **(SETTINGS | options)).run_dir
    assert run is not None
    return run


def Wide() -> nn.Module:
    return flcog.models.MLP(NUM_FEATURES, (9,), NUM_CLASSES)


def test_a_runs_record_tells_runs_that_differ_only_in_their_seed(tmp_path: Path) -> None:
    def recorded(name: str, *callbacks: Any, **options: Any) -> str:
        run = begin(tmp_path / name, ModelCheckpoint(), *callbacks, **options)
        return str(yaml.safe_load((run / "run.yaml").read_text())["experiment"])

    one = recorded("a", seed=0)
    assert recorded("b", seed=1) == one
    others = [
        recorded("c", module=classifier(partial(torch.optim.SGD, lr=0.2))),
        recorded("d", local_steps=3),
        recorded("e", data=TinyData(order=(1, 0, 2, 3, 4, 5, 6, 7))),
        recorded("g", FedProx(mu=0.1)),
        recorded("h", EarlyStopping("train/loss")),
        recorded("i", rounds=3),
    ]
    assert len({one, *others}) == 1 + len(others)


def rates(lr: float, **options: Any) -> Any:
    return partial(torch.optim.SGD, lr=lr, **options)


@pytest.mark.parametrize(
    ("other", "refusal"),
    [
        (
            {"data": lambda: TinyData(order=(1, 0, 2, 3, 4, 5, 6, 7))},
            r"a run with 8 clients \(partition \w{8}\); this one has 8 \(partition \w{8}\): use the same data.num_clients, partitioner",
        ),
        ({"data": lambda: TinyData(order=(0, 1, 2, 3, 4, 5))}, r"a run with 8 clients .*; this one has 6 \(partition"),
        ({"data": lambda: TinyData(client_test=0.2)}, "use the same data.num_clients, partitioner, partition_seed, client_test"),
        ({"module": lambda: classifier(network=Wide)}, r"holds another model: .* is \(8, 6\) there, \(9, 6\) here"),
        ({"methods": lambda: [SCAFFOLD()]}, r"by another run: methods was \['FedProx'\], is \['SCAFFOLD'\]"),
        ({"seed": 3}, "by another run: seed was 0, is 3"),
    ],
)
def test_another_experiment_is_refused_whatever_the_user_says(tmp_path: Path, other: dict[str, Any], refusal: str) -> None:
    run = begin(tmp_path, FedProx(mu=0.1), module=classifier())
    before = {path.name: path.read_bytes() for path in run.rglob("*") if path.is_file()}
    made = {"module": classifier, "data": TinyData, "methods": lambda: [FedProx(mu=0.1)], **other}
    methods, module, data = (made.pop(name)() for name in ("methods", "module", "data"))
    with pytest.raises(ValueError, match=refusal) as error:
        options = SETTINGS | {"rounds": 3, "resume_changed": True} | made
        fit(tmp_path, *methods, module=module, data=data, ckpt_path=str(run), **options)
    assert "\n" not in str(error.value)
    assert {path.name: path.read_bytes() for path in run.rglob("*") if path.is_file()} == before


CHANGES: list[tuple[dict[str, Any], list[str]]] = [
    ({"local_steps": 5}, ["trainer.local_steps was 4, is 5"]),
    ({"local_steps": None, "local_epochs": 1.0}, ["trainer.local_steps was 4, is None", "trainer.local_epochs was None, is 1.0"]),
    ({"clients_per_round": 4}, ["trainer.clients_per_round was 5, is 4"]),
    ({"precision": "32-true"}, ["trainer.precision was 64-true, is 32-true"]),
    ({"methods": [FedProx(mu=0.2)]}, ["FedProx.mu was 0.1, is 0.2"]),
    ({"methods": [FedProx(mu=0.1, start_round=1)]}, ["FedProx.start_round was 0, is 1"]),
    ({"optimizer": rates(0.2)}, ["model.optimizer.lr was 0.1, is 0.2"]),
    ({"optimizer": rates(0.1, momentum=0.5)}, ["model.optimizer.momentum was 0, is 0.5"]),
    ({"schedule": flcog.schedules.Exponential(0.5)}, ["model.lr_schedule was None, is Exponential", "gamma was None, is 0.5"]),
    ({"data": {"batch_size": 3}}, ["data.batch_size was 4, is 3"]),
    ({"data": {"drop_last": True}}, ["data.drop_last was False, is True"]),
]


@pytest.mark.parametrize(("changed", "lines"), CHANGES)
def test_every_other_change_is_said_and_must_be_meant(tmp_path: Path, changed: dict[str, Any], lines: list[str]) -> None:
    run = begin(tmp_path, FedProx(mu=0.1))
    changed = dict(changed)
    methods, data = changed.pop("methods", [FedProx(mu=0.1)]), changed.pop("data", {})
    optimizer, schedule = changed.pop("optimizer", rates(0.1)), changed.pop("schedule", None)

    def resume(**more: Any) -> flcog.FederatedTrainer:
        module = classifier(optimizer)
        module.lr_schedule = schedule
        options = SETTINGS | {"rounds": 3} | changed | more
        return fit(tmp_path, *methods, module=module, data=TinyData(**data), ckpt_path=str(run), **options)

    with pytest.raises(ValueError, match=r"was written with other settings: .* set trainer.resume_changed to true") as error:
        resume()
    assert all(line in str(error.value) for line in lines) and str(error.value).count(" was ") == len(lines) + 1
    trainer = resume(resume_changed=True)
    assert trainer.run.round == 3
    assert [note for note in trainer.notes if note.startswith("changed: ")] and all(
        any(line in note for note in trainer.notes) for line in lines
    )
    assert resume().round == 3, "the run is now the changed one"


def test_where_and_how_long_a_run_is_computed_is_no_change(tmp_path: Path) -> None:
    run = begin(tmp_path, FedProx(mu=0.1))
    elsewhere = run.parent / "moved"
    run.rename(elsewhere)
    observer = flcog.Callback()
    trainer = fit(
        tmp_path / "other", FedProx(mu=0.1), observer, ckpt_path=str(elsewhere), **(SETTINGS | {"rounds": 4, "executor": "vmap"})
    )
    assert trainer.run.round == 4 and not [note for note in trainer.notes if note.startswith("changed")]


def test_last_is_the_newest_run_with_these_methods(tmp_path: Path) -> None:
    mine, other = begin(tmp_path, FedProx(mu=0.1)), begin(tmp_path, SCAFFOLD())
    trainer = fit(tmp_path, FedProx(mu=0.1), ckpt_path="last", **(SETTINGS | {"rounds": 3}))
    assert trainer.run_dir is not None and trainer.run_dir.samefile(mine)
    with pytest.raises(
        ValueError,
        match=r"no run under .* of a run with these methods \(of the newest, .*, methods was \['FedProx'\], is \[\]\); give a file",
    ):
        make_trainer(tmp_path).test(classifier(), TinyData(), ckpt_path="last")
    assert make_trainer(tmp_path, SCAFFOLD()).test(classifier(), TinyData(), ckpt_path=str(other))


def test_what_a_file_said_before_is_kept(tmp_path: Path) -> None:
    path = tmp_path / "config.yaml"
    for content in ({"a": 1}, {"a": 1}, {"a": 2}, {"a": 1}, {"a": 3}):
        update_yaml(path, content)
    kept = {file.name: yaml.safe_load(file.read_text())["a"] for file in tmp_path.iterdir()}
    assert kept == {"config.yaml": 3, "config-1.yaml": 1, "config-2.yaml": 2}


@pytest.mark.usefixtures("command_line")
@pytest.mark.slow
def test_from_the_command_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    quickstart = str(ROOT / "configs/quickstart.yaml")
    monkeypatch.chdir(tmp_path)
    fit = ["fit", "-c", quickstart, "--trainer.logger", "false", "--trainer.local_steps", "1", "--trainer.clients_per_round", "2"]
    fit += ["--trainer.eval_every", "0", "--trainer.callbacks+=FedProx", "--trainer.callbacks.mu", "0.1", "--trainer.rounds"]
    main([*fit, "1"])
    (run,) = Path("runs").iterdir()
    config = (run / "config.yaml").read_bytes()
    changed = [*fit, "2", "--ckpt_path", "last", "--model.optimizer.lr", "0.05", "--trainer.callbacks.mu", "0.2"]
    with pytest.raises(SystemExit):
        main(changed)
    complaint = capsys.readouterr().err.strip()
    assert complaint.startswith("flcog: error: ") and "\n" not in complaint
    assert "FedProx.mu was 0.1, is 0.2; model.optimizer.lr was 0.02, is 0.05. Put them back" in complaint
    assert sorted(path.name for path in run.glob("*.yaml")) == ["config.yaml", "run.yaml"]
    main([*changed, "--trainer.resume_changed", "true"])
    assert "model.optimizer.lr was 0.02, is 0.05" in capsys.readouterr().out
    assert (run / "config-1.yaml").read_bytes() == config and (run / "run-1.yaml").is_file()
    assert "resume_changed" not in (run / "config.yaml").read_text()
    with pytest.raises(SystemExit):
        main([*changed, "--data.partition_seed", "1"])
    assert "this one has 10 (partition" in capsys.readouterr().err


def test_whatever_an_object_keeps_is_told_in_a_few_numbers_and_strings() -> None:
    class Node:
        def __init__(self, other: Any = None, array: Any = None, **_: Any) -> None:
            self.other, self.array = other or self, array

    assert flat(plain({"lr": np.float64(0.5), "order": (1, 2), "net": partial(Node, array=3), "kinds": {"b", "a"}})) == {
        "lr": 0.5,
        "order": [1, 2],
        "net.array": 3,
        "kinds": ["a", "b"],
        "net": Node.__qualname__,
    }
    assert len(flat(plain(Node()))) < 20, "an object that knows itself is not followed for ever"
    assert plain(np.zeros((2**20, 1))) == "float64 (1048576, 1)", "what may be the size of a disk is not read"
    assert plain(np.zeros(3)) == plain(torch.zeros(3).double()) != plain(np.ones(3))
    assert isinstance(plain(np.array(["a", None], dtype=object)), str)
