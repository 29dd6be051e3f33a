"""Clients in two other processes, each with the data of its own clients alone, compute the same bits as clients in this process."""

from collections.abc import Iterator, Sequence

import pytest
import torch
from harness import RecordingTrainer
from remote import Host, prepared

from contracts.registry import CASES, client_states, run
from flcog.callbacks import ClipUpdate, LowPrecision
from flcog.method import Method, Params

pytestmark = pytest.mark.filterwarnings("error")

EXTRA: dict[str, Sequence[Method]] = {"": (), "stages": (ClipUpdate(norm=0.5), LowPrecision())}
"""Methods that follow a case's own, by name."""

EXCHANGING = sorted(name for name, case in CASES.items() if case.method.overrides("prepare_data"))
QUICK = ("SCAFFOLD", "FedDisco", "FedRep", "FlexLoRA", "FedCOG")


@pytest.fixture(scope="module")
def hosts() -> Iterator[list[Host]]:
    hosts = [Host(), Host()]
    yield hosts
    for host in hosts:
        host.close()


def states_of(trainer: RecordingTrainer) -> Params:
    leaves, _ = torch.utils._pytree.tree_flatten_with_path(dict(sorted(trainer.run.engine.clients.snapshot().items())))
    return {torch.utils._pytree.keystr(path): leaf for path, leaf in leaves}


def assert_same(remote: RecordingTrainer, local: RecordingTrainer) -> None:
    assert remote.rows == local.rows
    for ours, theirs in (
        (remote.state, local.state),
        (states_of(remote), client_states(local)),
    ):
        assert ours.keys() == theirs.keys()
        assert all(torch.equal(value, theirs[name]) for name, value in ours.items())


def cases() -> list[object]:
    quick = {next(name for name in CASES if type(CASES[name].method).__name__ == kind) for kind in QUICK}
    return [pytest.param(name, marks=() if name in quick else pytest.mark.slow) for name in CASES if name not in EXCHANGING]


@pytest.mark.parametrize("name", cases())
def test_clients_elsewhere_compute_the_same(hosts: list[Host], name: str) -> None:
    local = run(CASES[name], CASES[name].method)
    remote = prepared(hosts, name, [CASES[name].method])
    remote.rows = [remote.train_round() for _ in range(remote.settings.rounds)]
    assert_same(remote, local)
    assert all(isinstance(row["train/loss"], float) for row in remote.rows)


@pytest.mark.parametrize("name", EXCHANGING)
def test_exchanges_of_everybodys_data_are_refused(hosts: list[Host], name: str) -> None:
    with pytest.raises(
        AssertionError, match="reads the data of all clients before round 1, which clients in other processes keep"
    ):
        prepared(hosts, name, [CASES[name].method])


def test_observers_that_read_all_data_are_refused(hosts: list[Host]) -> None:
    remote = prepared(hosts, next(iter(CASES)), [])
    with pytest.raises(ValueError, match="the clients run in other processes and keep their data: remove"):
        remote.run.federation  # noqa: B018
