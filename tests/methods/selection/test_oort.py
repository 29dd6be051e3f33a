"""Oort selects clients by the losses of their earlier trainings."""

import copy

import numpy as np
import pytest
import torch
from contracts.case import Case
from harness import RAGGED, SGD, classifier, train
from reference import fedavg
from torch.nn.functional import cross_entropy

from flcog.callbacks import Oort, OverSelect, SystemModel
from flcog.callbacks.selection.oort import scores
from flcog.method import ClientPool, RoundRecord

CASES: dict[str, Case] = {
    "Oort": Case(Oort(pacer_step=1, pacer_delta=0.2), fedavg.run, random=True),
}


def test_it_remembers_the_losses_of_the_last_training() -> None:
    module = classifier(SGD)
    network = copy.deepcopy(module.model).double()
    trainer = train(Oort(), module=module, rounds=1)
    expected = torch.zeros(8)
    for client in trainer.recorded[0]:
        local, losses = copy.deepcopy(network), []
        optimizer = SGD(local.parameters())
        for inputs, targets in client.batches:
            optimizer.zero_grad()
            loss = cross_entropy(local(inputs), targets)
            loss.backward()
            optimizer.step()
            losses.append(float(loss.detach()))
        expected[client.id] = np.mean(losses)
    state = trainer.servers["Oort"]
    torch.testing.assert_close(state["loss"].float(), expected, rtol=1e-6, atol=1e-6)
    assert (state["last"] == torch.where(expected > 0, 0, -1)).all()


def test_the_scores_by_hand() -> None:
    """Utilities 0 to 20 for 21 clients: the 95 % quantile is 19, and the scale is 20."""
    found = scores(np.arange(21.0), np.full(21, 4), round=10)
    bonus = np.sqrt(0.1 * np.log(10) / 4)
    assert found == pytest.approx(np.minimum(np.arange(21), 19) / 20 + bonus)
    assert scores(np.array([3.0, 3.0]), np.array([1, 9]), round=10) == pytest.approx(np.sqrt(0.1 * np.log(10) / np.array([1, 9])))


def state_of(loss: list[float], last: list[int]) -> dict[str, torch.Tensor]:
    return {"loss": torch.tensor(loss), "last": torch.tensor(last, dtype=torch.int32), "seconds": torch.zeros(len(loss))}


def test_new_clients_are_explored_first_and_fewer_of_them_later() -> None:
    pool = ClientPool(0, torch.ones(100, dtype=torch.int64), 100, 0)
    rng = torch.Generator().manual_seed(0)
    last = [3] * 50 + [-1] * 50
    for round, share in ((0, 0.9), (10, 0.9 * 0.98**10), (200, 0.2)):
        chosen = Oort().select(state_of([1.0] * 100, last), pool_of(pool, round), 20, rng).clients
        assert len(chosen) == 20 and sum(client >= 50 for client in chosen) == int(20 * share)
    assert len(Oort().select(state_of([0.0] * 100, [-1] * 100), pool, 20, rng).clients) == 20
    few = Oort().select(state_of([1.0] * 100, [3] * 98 + [-1] * 2), pool_of(pool, 5), 20, rng).clients
    assert len(few) == 20 and {98, 99} < set(few)


def pool_of(pool: ClientPool, round: int) -> ClientPool:
    return ClientPool(round, pool.sizes, pool.num_samples, pool.key)


def test_high_utilities_are_taken_and_low_ones_are_cut_off() -> None:
    pool = ClientPool(50, torch.tensor([1, 1, 10, 1] * 10), 130, 0)
    rng, counts = torch.Generator().manual_seed(0), np.zeros(40)
    state = state_of([1.0, 5.0, 1.0, 9.0] * 10, [40] * 40)
    for _ in range(300):
        counts[Oort(exploration=0, least_exploration=0, cutoff=0.85).select(state, pool, 10, rng).clients] += 1
    # The utilities are 1, 5, 10 and 9. Ten clients have utility 10, and clients with 9 score above 85 % of these.
    assert counts[0::4].sum() == counts[1::4].sum() == 0 and counts[2::4].sum() > counts[3::4].sum() > 0


def test_slow_clients_are_taken_less_often() -> None:
    """All utilities are equal, and clients need 1, 2, 3 or 4 seconds. T = 2, so scores are in proportion to 1, 1, 4/9 and 1/4."""
    pool = ClientPool(50, torch.ones(40, dtype=torch.int64), 40, 0)
    state = state_of([1.0] * 40, [40] * 40) | {"seconds": torch.tensor([1.0, 2.0, 3.0, 4.0] * 10)}
    rng, counts = torch.Generator().manual_seed(0), np.zeros(40)
    method = Oort(exploration=0, least_exploration=0, cutoff=0.2, preferred=0.3)
    for _ in range(2000):
        counts[method.select(state, pool, 1, rng).clients] += 1
    shares = [counts[k::4].sum() / 2000 for k in range(4)]
    total = 2 + 4 / 9 + 1 / 4
    assert shares == pytest.approx([1 / total, 1 / total, 4 / 9 / total, 1 / 4 / total], abs=0.035)


def test_late_clients_count_with_the_mean_loss_and_their_time() -> None:
    record = RoundRecord(3, [0, 1, 2], [0, 2], [1.0, 3.0], {0: 5.0, 1: 9.0, 2: 6.0})
    state = Oort().update(Oort().init_selection(4), record)
    assert state["loss"].tolist() == [1, 2, 3, 0] and state["last"].tolist() == [3, 3, 3, -1]
    assert state["seconds"].tolist() == [5, 9, 6, 0]


def test_the_pacer_follows_the_pseudo_code_of_the_paper() -> None:
    """Every W rounds: if sum(U(R - 2W : R - W)) > sum(U(R - W : R)), T grows by a step."""
    window, rng = 3, np.random.default_rng(0)
    method = Oort(preferred=0.3, pacer_step=window, pacer_delta=0.25)
    state, utilities, preferred, seen = method.init_selection(6), [0.0], 0.3, set()
    for done in range(1, 40):
        trained = rng.choice(6, size=rng.integers(0, 4), replace=False).tolist()
        losses, sizes = rng.exponential(size=len(trained)).tolist(), rng.integers(1, 9, size=len(trained)).tolist()
        utilities.append(float(np.dot(losses, sizes)))
        if done >= 2 * window and done % window == 0 and preferred < 1:
            before, last = utilities[done - 2 * window + 1 : done - window + 1], utilities[done - window + 1 : done + 1]
            preferred = min(1.0, preferred + 0.25 * (sum(before) > sum(last)))
        state = method.update(state, RoundRecord(done - 1, trained, trained, losses, dict.fromkeys(trained, 1.0), sizes))
        assert state["preferred"] == pytest.approx(preferred)
        seen.add(preferred)
    assert seen == {0.3, 0.55, 0.8, 1.0}


def test_the_pacer_sees_the_samples_of_a_run() -> None:
    trainer = train(Oort(pacer_step=5, pacer_delta=0.1), rounds=1, **RAGGED)
    state, sizes = trainer.servers["Oort"], trainer.datamodule.federation.sizes
    assert (
        state["utility"] == pytest.approx(float((sizes * state["loss"].double().numpy()).sum()), rel=1e-6)
        and state["rounds"] == 1
    )


def test_it_learns_the_times_of_a_run() -> None:
    trainer = train(
        SystemModel(seconds_per_step=2.0, download=None, upload=None), OverSelect(factor=1.4), Oort(), rounds=1, **RAGGED
    )
    times = {client.id: 2.0 * len(client.batches) for client in trainer.recorded[0]}
    assert len(times) == 7 and {k: t for k, t in enumerate(trainer.servers["Oort"]["seconds"].tolist()) if t} == times
