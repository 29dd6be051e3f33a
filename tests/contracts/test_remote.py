"""Clients in two other processes compute the same bits as clients in this process; each process has only its clients' data."""

import copy
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path

import pytest
import torch
from harness import TESTS, RecordingTrainer, TinyData, fit, without_times
from remote import Host, connected, prepared

from contracts.registry import CASES, client_states, run
from contracts.test_user_methods import Median
from flcog.callbacks import ClipUpdate, FedDisco, LowPrecision, StopAfter
from flcog.data import Exchange
from flcog.method import Method, Params
from flcog.wire.packing import pack, unpack

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("error")]

EXTRA: dict[str, Sequence[Method]] = {
    "": (),
    "stages": (ClipUpdate(norm=0.5), LowPrecision()),
    "labels": (FedDisco(target="global"),),
}
"""Methods that are listed after the case's own method, by name."""

EVERYBODY = sorted(name for name, case in CASES.items() if getattr(case.method, "reads_all_data", False))


@pytest.fixture(scope="module")
def hosts() -> Iterator[list[Host]]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(TESTS))
        patch.setenv("OMP_NUM_THREADS", "1")
        hosts = [Host(), Host()]
        assert all(host.ask("ready") for host in hosts)
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


def one_of(kind: str) -> str:
    return next(name for name in CASES if type(CASES[name].method).__name__ == kind)


def trained_elsewhere(hosts: list[Host], name: str, *more: Method, extra: str = "") -> RecordingTrainer:
    """A run of a case with further methods, which is that of clients in this process."""
    local = run(CASES[name], CASES[name].method, *more)
    remote = prepared(hosts, name, [CASES[name].method, *more], extra)
    remote.rows = [remote.train_round() for _ in range(remote.settings.rounds)]
    assert_same(remote, local)
    return remote


@pytest.mark.parametrize("name", [name for name in CASES if name not in EVERYBODY])
def test_clients_elsewhere_compute_the_same(hosts: list[Host], name: str) -> None:
    remote = trained_elsewhere(hosts, name)
    assert all(isinstance(row.get("train/loss", 0.0), float) for row in remote.rows)


@pytest.mark.parametrize("kind", ["SCAFFOLD", "FedDisco", "FedCOG", "FedRep", "FFALoRA"])
def test_stages_act_where_the_clients_are(hosts: list[Host], kind: str) -> None:
    trained_elsewhere(hosts, one_of(kind), *EXTRA["stages"], extra="stages")


@pytest.mark.parametrize("name", ["Fedssyn-real", "SCAFFOLD"])
def test_label_counts_are_summed_where_the_clients_are(hosts: list[Host], name: str) -> None:
    """They are also right after an exchange of samples, which changes the counts."""
    remote = trained_elsewhere(hosts, name if name in CASES else one_of(name), *EXTRA["labels"], extra="labels")
    assert remote.ledger.up["FedDisco"] > 0


def test_a_users_aggregator_gets_all_replies_in_the_order_of_tasks(hosts: list[Host]) -> None:
    trained_elsewhere(hosts, one_of("SCAFFOLD"), Median())


def test_a_server_keeps_none_of_the_exchanged_data(hosts: list[Host]) -> None:
    for kept in (True, False):
        name = "Fedssyn" if kept else "Fedssyn-local"
        remote = prepared(hosts, name, [CASES[name].method])
        exchange = remote.run.engine.exchanges["Fedssyn"]
        assert type(exchange) is Exchange
        assert any("of a client's samples come from the exchange" in note for note in remote.notes)


@pytest.mark.parametrize("kind", ["Ditto", "FedRep", "FineTune", "Local"])
def test_models_are_evaluated_where_the_clients_are(hosts: list[Host], kind: str) -> None:
    name = one_of(kind)
    data = partial(TinyData, client_test=0.3, client_val=0.2)
    local = run(CASES[name], CASES[name].method, data=data(), rounds=1)
    remote = prepared(hosts, name, [CASES[name].method], data=data)
    remote.train_round()
    assert remote.evaluate() == pytest.approx(local.evaluate(), nan_ok=True)


def test_states_go_to_a_checkpoint_and_come_back(hosts: list[Host]) -> None:
    name = one_of("SCAFFOLD")
    remote = prepared(hosts, name, [CASES[name].method])
    remote.train_round()
    clients, before = remote.run.engine.clients, states_of(remote)
    saved, server = unpack(pack(clients.snapshot())), remote.run.server.copy(1)
    after = [remote.train_round(), states_of(remote)]
    clients.restore(saved)
    assert all(torch.equal(value, before[key]) for key, value in states_of(remote).items())
    remote.run.server.params, remote.run.server.servers, remote.run.server.round = server.params, server.servers, 1
    again = [remote.train_round(), states_of(remote)]
    assert again[0]["train/loss"] == after[0]["train/loss"]
    assert all(torch.equal(value, again[1][key]) for key, value in after[1].items())


@pytest.mark.parametrize("kind", ["SCAFFOLD", "Fedssyn", "Ditto"])
def test_a_fit_resumes_with_the_states_of_clients_elsewhere(hosts: list[Host], tmp_path: Path, kind: str) -> None:
    """The resumed run takes the clients' states from the checkpoint and equals a run with clients in this process.

    The hosts make new clients for it, so that only the checkpoint has the clients' states.
    """
    name, data = one_of(kind), partial(TinyData, client_test=0.3)
    methods, data = [CASES[name].method], None if kind == "Fedssyn" else data
    options = CASES[name].options | {"rounds": 3, "eval_every": 1}
    here = {"module": CASES[name].module(CASES[name].optimizer), "data": (data or CASES[name].data)()}
    local = fit(tmp_path / "local", *methods, **here, **options)
    first, arguments = connected(hosts, tmp_path, name, [*methods, StopAfter(2)], "", data, **options)
    first.fit(*arguments)
    assert first.round == 2
    resumed, arguments = connected(hosts, tmp_path, name, methods, "", data, **options)
    resumed.fit(*arguments, ckpt_path=str(first.run_dir))
    resumed.rows, local.rows = without_times(resumed.history), without_times(local.history)
    assert_same(resumed, local)
    saved = client_states(resumed)
    assert saved.keys() == client_states(local).keys() and all(
        torch.equal(saved[key], v) for key, v in states_of(resumed).items()
    )
    tested, arguments = connected(hosts, tmp_path, name, methods, "", data, **options)
    assert tested.test(*arguments, ckpt_path=str(first.run_dir)) == {
        column: value for column, value in resumed.history[-1].items() if column.startswith("test/")
    }


def test_a_second_fit_begins_without_states(hosts: list[Host], tmp_path: Path) -> None:
    name = one_of("SCAFFOLD")
    trainer, (module, data) = connected(hosts, tmp_path, name, [CASES[name].method], rounds=1)
    rows = []
    for _ in range(2):
        trainer.fit(copy.deepcopy(module), data)
        rows.append((without_times(trainer.history), states_of(trainer)))
    assert rows[0][0] == rows[1][0]
    assert all(torch.equal(value, rows[1][1][key]) for key, value in rows[0][1].items())


@pytest.mark.parametrize("name", EVERYBODY)
def test_methods_that_read_everybodys_data_are_refused(hosts: list[Host], name: str) -> None:
    says = "reads the data of all clients before round 1, which clients in other processes keep: remove it"
    with pytest.raises(AssertionError, match=says):
        prepared(hosts, name, [CASES[name].method])
    connected = prepared(hosts, next(iter(CASES)), [])
    connected.methods.append(CASES[name].method)
    with pytest.raises(ValueError, match=says):
        connected.prepare(CASES[name].module(CASES[name].optimizer), CASES[name].data())
