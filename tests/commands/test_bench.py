"""``flcog bench``: a configuration's rounds, computed in several ways and timed in turn with a bare loop, and a trace of one round."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from benchmarks.bench_jobs import prepared, reference
from engine.test_patches import Pictures
from fake_device import computing_there, waits
from harness import ROOT, TinyData, assert_close, classifier, make_trainer, train

import flcog
from flcog.callbacks import FedProx
from flcog.commands.bench.bare import BareLoop, batches_of
from flcog.commands.bench.batches import Batches
from flcog.commands.bench.command import bench, profile_round, uncertainty, variations
from flcog.commands.cli import main
from flcog.models import MLP, SimpleCNN


def test_clients_make_the_batches_that_the_engine_would() -> None:
    """The batches have the engine's sizes, contain each sample once per pass, and differ in the next round."""
    trainer, batches, _ = prepared(local_epochs=2)
    partition, engine = trainer.run.federation.partition, trainer.run.engine
    for k in range(batches.num_clients):
        own = trainer.run.federation.train.inputs[partition.client(k)]
        made = [inputs for inputs, _ in batches.of(3, k)]
        _, sizes, passes = engine.batching.layout(len(own), engine.batching.num_steps(len(own)))
        assert [len(inputs) for inputs in made] == sizes.tolist() and passes == 2
        for half in torch.cat(made).split(len(own)):
            assert torch.equal(half.sort(0).values, own.sort(0).values)
    again, other = (torch.cat([inputs for inputs, _ in batches.of(round, 3)]) for round in (3, 4))
    assert torch.equal(again, torch.cat([inputs for inputs, _ in batches.of(3, 3)])) and not torch.equal(again, other)


def test_passes_that_drop_their_last_batch() -> None:
    batches = Batches([torch.arange(7.0)], [0, 7], {7: ([0, 3, 7, 10], [3, 3, 3, 3], 2)})
    made = [leaf.tolist() for (leaf,) in batches.of(0, 0)]
    order = batches.order(0, 0).tolist()
    assert made == [order[0:3], order[3:6], order[7:10], order[10:13]]


def test_the_bare_loop_is_fedavg() -> None:
    trainer, batches, structure = prepared()
    bare = BareLoop(trainer, batches, structure)
    expected = reference(trainer, batches, rounds=2)
    for round in range(2):
        bare.round(round, trainer.sample(round))
    assert_close({name.removeprefix("model."): value for name, value in bare.server.state_dict().items()}, expected, rtol=1e-5)


def test_a_module_with_steps_of_its_own_has_no_bare_loop() -> None:
    class Own(flcog.Classifier):
        def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
            return self(batch[0]).square().mean()

    trainer = make_trainer(None)
    trainer.prepare(Own(MLP(6, (8,), 3)), TinyData())
    with pytest.raises(ValueError, match="Own has its own training_step"):
        BareLoop(trainer, *batches_of(trainer))


@pytest.mark.slow
def test_an_accelerator_is_timed_too() -> None:
    with computing_there():
        waits.clear()
        trainer = make_trainer(None, precision="32-true", clients_per_round=2, local_steps=1)
        bench(trainer, flcog.Classifier(SimpleCNN(1, 3)), Pictures(4, batch_size=5), repeats=1, seconds=0)
    assert waits["the end of all work"] > 0


def table(text: str) -> list[list[str]]:
    return [[cell.strip() for cell in line.split("|")[1:-1]] for line in text.splitlines() if line.startswith("|")]


@pytest.mark.slow
def test_every_combination_is_timed_in_turn(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trainer = make_trainer(None, FedProx(mu=0.1), precision="32-true")
    vary = {"executor": ["loop", "vmap"], "chunk_size": [1, 2], "tf32": [None, False]}
    bench(trainer, classifier(), TinyData(), repeats=2, seconds=0, vary=vary, save=str(tmp_path / "speed/tiny.yaml"))
    saved = yaml.safe_load((tmp_path / "speed/tiny.yaml").read_text())
    assert len(saved["seconds"]) == 9 and all(len(seconds) == 2 for seconds in saved["seconds"].values())
    assert saved["packages"]["torch"] and saved["machine"]["cpus"] and "flcog_commit" in saved
    printed = capsys.readouterr().out
    header, _, *rows, bare = table(printed)
    assert header == ["executor", "chunk_size", "tf32", "ran as", "a round", "of bare", "of the first", "first round"]
    clients = {"1": "1 client at a time", "2": "2 clients at a time"}
    for executor in ("loop", "vmap"):
        for chunk_size in ("1", "2"):
            for tf32 in ("null", "false"):
                assert [executor, chunk_size, tf32, f"{executor}, {clients[chunk_size]}"] in [row[:4] for row in rows]
    assert len(rows) == 8 and bare[0] == "bare" and "2 rounds in turn" in printed
    assert "FedProx: in flcog's rounds alone" in printed


def test_a_bench_is_settled_once_its_median_is_known_to_a_twentieth() -> None:
    quiet, noisy = [1.0, 1.01, 0.99, 1.0, 1.02], [1.0, 2.0, 0.5, 1.5, 0.8]
    assert uncertainty(quiet) < 0.05 < uncertainty(noisy)
    assert uncertainty(noisy * 100) < 0.1 * uncertainty(noisy) * 1.01  # it falls with the square root of the number of rounds
    assert uncertainty([1.0]) == float("inf")


def test_methods_are_timed_against_none(capsys: pytest.CaptureFixture[str]) -> None:
    clip = {"class_path": "flcog.callbacks.ClipUpdate", "init_args": {"norm": 0.5}}
    trainer = make_trainer(None, FedProx(mu=0.1))
    bench(trainer, classifier(), TinyData(), repeats=1, seconds=0, vary={"callbacks": ["none", "Quantize", clip]})
    _, _, *rows = table(capsys.readouterr().out)
    assert [row[0] for row in rows] == ["none", "Quantize", "ClipUpdate(norm=0.5)", "bare"] and rows[0][4] == "1.000"
    contestants = variations(trainer, {"callbacks": ["none", "Quantize", clip]})
    assert [[m.name for m in each.trainer.methods] for each in contestants] == [
        ["FedProx"],
        ["FedProx", "Quantize"],
        ["FedProx", "ClipUpdate"],
    ]


@pytest.mark.usefixtures("command_line")
@pytest.mark.slow
def test_from_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = tmp_path / "vary.yaml"
    config.write_text("vary:\n  executor: [loop, vmap]\n")
    few = ["--trainer.local_steps", "1", "--trainer.clients_per_round", "2", "--repeats", "1", "--seconds", "0"]
    main(["bench", "-c", str(ROOT / "configs" / "quickstart.yaml"), "-c", str(config), "--vary.compile", "[false]", *few])
    out = capsys.readouterr().out
    assert re.search(r"^start: the first round can begin \d+\.\d s after the command", out, re.MULTILINE)
    header, _, *rows = table(out)
    assert header[:2] == ["executor", "compile"] and [row[:2] for row in rows] == [
        ["loop", "false"],
        ["vmap", "false"],
        ["bare", ""],
    ]


def test_a_setting_that_the_trainer_does_not_have() -> None:
    with pytest.raises(ValueError, match=r"vary.comple: the trainer has no such setting; choose among callbacks, .*compile"):
        bench(make_trainer(None), classifier(), TinyData(), vary={"comple": [True]})


class Interrupted(flcog.Method):
    """Ctrl-C ends its third round, after the first round and one timed round."""

    def server_step(self, server: Any, params: Any, delta: Any, messages: Any, cohort: Any) -> Any:
        if cohort.round == 2:
            raise KeyboardInterrupt
        return delta, server


def test_ctrl_c_prints_what_was_measured(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(KeyboardInterrupt):
        bench(make_trainer(None, Interrupted()), classifier(), TinyData(), repeats=5, seconds=0)
    printed = capsys.readouterr()
    assert "| of bare |" in printed.out
    assert "first round of flcog: " in printed.err and "round 1 took flcog " in printed.err


def test_a_round_is_traced_and_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trainer = train(rounds=1)
    profile_round(trainer, str(tmp_path / "trace.json"))
    names = {event.get("name") for event in json.loads((tmp_path / "trace.json").read_text())["traceEvents"]}
    assert {"aten::addmm", "aten::index_select"} <= names and trainer.round == 2
    printed = capsys.readouterr().out
    assert "one round took" in printed and "aten::addmm" in printed and str(tmp_path / "trace.json") in printed
