"""Clients' states between rounds take bounded space on disk and in memory, keep their values, and survive a kill at any moment."""

import random
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, Literal

import pytest
import torch
from harness import fit, train, without_times
from torch import Tensor

from flcog.callbacks import SCAFFOLD, Checkpoint, Ditto
from flcog.run import client_states
from flcog.run.client_states import SavedClientStates

SIZE = 1000


def state(value: int) -> dict[str, Any]:
    return {"Keeps": {"x": torch.full((SIZE,), float(value))}}


def values(states: SavedClientStates) -> dict[int, int]:
    """The number that each client keeps, in a tensor that repeats it many times."""
    kept: dict[int, Tensor] = {client: own["Keeps"]["x"] for client, own in states.by_client.items()}
    assert all((x == x[0]).all() for x in kept.values())
    return {client: int(x[0]) for client, x in kept.items()}


def loaded(directory: Path, files: dict[int, str], rank: int = 0, processes: int = 1) -> SavedClientStates:
    states = SavedClientStates(directory, rank)
    states.load(files, processes)
    return states


@pytest.fixture
def cache_of(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """Sets the bytes of states that stay in memory."""
    return partial(monkeypatch.setattr, client_states, "CACHE_BYTES")


@pytest.mark.slow
def test_the_folder_holds_at_most_twice_the_live_states_and_no_kill_loses_one(tmp_path: Path) -> None:
    draw, states, expected = random.Random(0), SavedClientStates(tmp_path, 0), dict[int, int]()
    pinned: tuple[dict[int, str], dict[int, int]] = ({}, {})
    for round in range(1, 41):
        before = dict(states.files), dict(expected)
        for client in draw.sample(range(40), 15):
            expected[client] = round * 100 + client
            states.put(client, state(expected[client]))
        states.save(round)
        # A run that is killed here resumes from the previous checkpoint.
        assert values(loaded(tmp_path, before[0])) == before[1]
        if round == 20:
            pinned = dict(states.files), dict(expected)
        referred = set(states.files.values())
        states.prune(referred | set(pinned[0].values()))
        assert values(loaded(tmp_path, states.files)) == expected == values(states)
        held = sum(len(torch.load(tmp_path / name)["clients"]) for name in referred)
        assert held <= 2 * len(expected), f"round {round}"
        if round == 30:  # resumed
            states = loaded(tmp_path, states.files)
    assert values(loaded(tmp_path, pinned[0])) == pinned[1], "a kept checkpoint keeps its files"


def test_what_is_on_disk_leaves_memory_and_what_is_not_stays(tmp_path: Path, cache_of: Callable[[int], None]) -> None:
    cache_of(3 * SIZE * 4)
    states, only_in_memory = SavedClientStates(tmp_path, 0), SavedClientStates(None, 0)
    for client in range(10):
        for each in (states, only_in_memory):
            each.put(client, state(client))
            each.fetch([])
    assert len(states._memory) == 10, "nothing was saved"
    states.save(1)
    only_in_memory.save(1)
    assert list(states._memory) == [7, 8, 9] and len(only_in_memory._memory) == 10
    states.fetch([0, 1, 2, 3])
    assert list(states._memory) == [0, 1, 2, 3], "a cohort stays together"
    states.put(5, state(50))
    states.fetch([6])
    assert 5 in states._memory
    assert values(states) == {client: 50 if client == 5 else client for client in range(10)}
    assert states.get(11) == {} and states.clients == list(range(10))


def test_a_run_that_goes_on_from_an_earlier_round_leaves_later_files_alone(tmp_path: Path) -> None:
    states = SavedClientStates(tmp_path, 0)
    states.put(1, state(1))
    states.save(1)
    earlier = loaded(tmp_path, states.files)
    states.put(2, state(2))
    states.save(2)
    earlier.put(3, state(3))
    earlier.save(2)
    assert values(loaded(tmp_path, states.files)) == {1: 1, 2: 2}
    assert values(loaded(tmp_path, earlier.files)) == {1: 1, 3: 3}


def test_processes_read_their_own_clients(tmp_path: Path) -> None:
    states = SavedClientStates(tmp_path, 0)
    for client in (4, 5, 6):
        states.put(client, state(client))
    states.save(1)
    assert [values(loaded(tmp_path, states.files, rank, 2)) for rank in (0, 1)] == [{4: 4, 6: 6}, {5: 5}]


@pytest.mark.parametrize("executor", ["loop", "vmap"])
@pytest.mark.slow
def test_states_that_are_read_back_give_the_same_numbers(
    executor: Literal["loop", "vmap"], tmp_path: Path, cache_of: Callable[[int], None]
) -> None:
    options: dict[str, Any] = {"rounds": 6, "executor": executor}
    whole = train(SCAFFOLD(), Ditto(), **options)
    cache_of(0)
    first = fit(tmp_path, SCAFFOLD(), Ditto(), Checkpoint(keep_every_n_rounds=2), **options)
    assert not first.states._memory
    assert first.run_dir is not None
    kept = first.run_dir / "checkpoints/round-000002.ckpt"
    resumed = fit(tmp_path, SCAFFOLD(), Ditto(), ckpt_path=str(kept), **options)
    for trainer in (first, resumed):
        assert all(torch.equal(trainer.run.params[name], value) for name, value in whole.params.items())
        for a, b in zip(
            *map(torch.utils._pytree.tree_leaves, (trainer.run.clients.by_client, whole.states.by_client)), strict=True
        ):
            assert torch.equal(a, b)
    assert without_times(first.history) == without_times(resumed.history)
