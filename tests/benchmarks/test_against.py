"""``benchmarks/against.py``: other frameworks train the very same rounds, in turn."""

import copy
import dataclasses
import io
import json
import os
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import against
import pytest
import torch
from against import PEERS, Contender, OneModel, apart, environment, interpreters, job_of, left_out, started
from harness import MOMENTUM, assert_close, distance
from job import ContenderJob, save
from program import program_of

from benchmarks.bench_jobs import prepared, reference
from flcog.commands.bench.batches import Batches


def test_peers_are_named() -> None:
    assert interpreters("pfl, flower=python3") == {"pfl": sys.executable, "flower": "python3"}
    assert list(interpreters("pfl,batched")) == ["pfl", "batched"]
    for wrong, message in {
        "tff": "'tff' is not known; give pfl, flower or batched",
        "": "'' is not known; give pfl, flower or batched",
        "batched=python3": "'batched=python3' is not known; give pfl",
        "pfl=/no/such/python": "found no program /no/such/python for pfl",
    }.items():
        with pytest.raises(ValueError, match=message):
            interpreters(wrong)
    assert "pip install 'pfl[pytorch]', or name another Python: --frameworks pfl=" in left_out("pfl", "python", "No module")
    assert all(Path(against.__file__).with_name(f"{peer.contender}.py").is_file() for peer in PEERS.values())


def test_a_contender_does_not_take_our_processes_for_its_own(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "TORCHELASTIC_RUN_ID", "PYTHONPATH"):
        monkeypatch.setenv(name, "1")
    job = ContenderJob(Batches([], [0], {}), 1, "SGD", {}, "cpu", 1, 1)
    theirs = environment("/another/python", tmp_path, job)
    assert not {"RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "TORCHELASTIC_RUN_ID"} & set(theirs)
    assert Path(theirs["PYTHONPATH"], "batches.py").is_file()
    here = environment(sys.executable, tmp_path, job)
    assert here["PYTHONPATH"] == "1" and here["PFL_PYTORCH_DEVICE"] == "cpu" and here["CUDA_VISIBLE_DEVICES"] == ""


def test_one_model_is_trained_on_as_much_in_large_batches() -> None:
    trainer, batches, structure = prepared()
    clients = trainer.sample(0)
    all_of_them = [torch.cat(leaf) for leaf in zip(*(b for k in clients for b in batches.of(0, k)), strict=True)]
    one = OneModel(trainer, batches, structure)
    one.large = len(all_of_them[0]) // 2 - 1
    large = list(one._large_batches(0, clients))
    assert len(large) == 2 + (sum(len(b[0]) for b in large[:2]) < len(all_of_them[0]))
    for place, expected in enumerate(all_of_them):
        assert torch.equal(torch.cat([leaves[place] for leaves in large]), expected)
    network = copy.deepcopy(one.server.model)
    optimizer = MOMENTUM(network.parameters())
    for inputs, targets in large:
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(network(inputs), targets).backward()
        optimizer.step()
    assert one.round(0, clients) > 0
    assert_close(dict(one.server.model.state_dict()), dict(network.state_dict()), 1e-6)


def test_how_far_apart() -> None:
    before, after = {"a": torch.zeros(2), "b": torch.zeros(1)}, {"a": torch.tensor([3.0, 0.0]), "b": torch.tensor([4.0])}
    assert apart(after, after, before) == 0 and apart(before, after, before) == 1
    assert apart({"a": torch.tensor([3.0, 0.5]), "b": torch.tensor([4.0]), "c": torch.ones(9)}, after, before) == pytest.approx(
        0.1
    )


def test_a_contender_that_fails_says_why(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text("Traceback\nKilled by the system\n\n")
    dead: Any = SimpleNamespace(stdin=io.StringIO(), stdout=io.StringIO())
    with pytest.raises(ValueError, match=r"pfl ended \(Killed by the system\): leave it out of --frameworks"):
        Contender("pfl", dead, log).round(0, [1])
    assert json.loads(dead.stdin.getvalue()) == {"round": 0, "clients": [1], "keep": None}
    failed: Any = SimpleNamespace(stdin=io.StringIO(), stdout=io.StringIO('{"error": "TypeError: a\\n b"}\n'))
    with pytest.raises(ValueError, match=r"pfl ended \(TypeError: a b\)"):
        Contender("pfl", failed, log).heard()


# The frameworks themselves --------------------------------------------------------------------------------------------------------


WHERE = os.environ.get("FLCOG_BENCH_AGAINST", ",".join(PEERS))
"""The Python programs that have the frameworks: ``FLCOG_BENCH_AGAINST=pfl=/path/to/python,flower=/path/to/python pytest -m slow ...``."""


@pytest.mark.slow
@pytest.mark.parametrize("name", PEERS)
def test_a_framework_ends_at_our_model(name: str, tmp_path: Path) -> None:
    """Two rounds of each framework end at the model of plain torch.

    In the second case a batch is a client's whole data set, so the order of samples has no effect, and flcog's own rounds are
    compared too.
    """
    python = interpreters(WHERE).get(name, sys.executable)
    for case, options in {"ragged": {"batch_size": 5}, "whole": {"batch_size": 16, "clients_per_round": 8}}.items():
        trainer, batches, structure = prepared(**options)
        folder = tmp_path / case
        folder.mkdir()
        module, kept = trainer.run.model.module, folder / "model.pt"
        job = dataclasses.replace(job_of(trainer, batches), processes=1 if case == "ragged" else 2)
        save(folder, job, program_of(module, next(batches.of(0, 0)), structure))
        with started(name, python, folder, job) as contender:
            if reason := contender.heard().get("missing"):
                pytest.skip(left_out(name, python, reason))
            for round in range(2):
                assert contender.round(round, trainer.sample(round), keep=kept) > 0
        theirs = {key.removeprefix("module.model."): value for key, value in torch.load(kept).items()}
        expected = reference(trainer, batches, rounds=2)
        assert_close(theirs, expected, rtol=1e-5)
        start = {name.removeprefix("model."): value for name, value in trainer.run.params.items()}
        assert distance(start, expected) > 1e-2
        if case == "whole":
            for _ in range(2):
                trainer.train_round()
            ours = {name.removeprefix("model."): value for name, value in trainer.run.params.items()}
            assert_close(theirs, ours, rtol=1e-5)
