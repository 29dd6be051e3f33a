"""PowerOfChoice selects the clients with the highest losses among some candidates."""

import itertools
import math
from collections.abc import Sequence
from functools import partial

import numpy as np
import pytest
import torch
from contracts.case import Case
from harness import SIZES, TinyData, classifier, make_trainer, train
from reference import fedavg
from torch.nn.functional import cross_entropy

from flcog.callbacks import ClientDropout, PowerOfChoice, WeightedSelection
from flcog.core.randomness import fold
from flcog.method import ClientPool

CASES: dict[str, Case] = {
    "PowerOfChoice": Case(PowerOfChoice(candidates=7), fedavg.run, random=True),
}


def test_the_highest_losses_of_all_are_taken() -> None:
    trainer = make_trainer(None, PowerOfChoice(candidates=8), clients_per_round=3)
    trainer.prepare(classifier(), TinyData())
    for round in range(3):
        network = classifier().model.double()
        network.load_state_dict({name.removeprefix("model."): value for name, value in trainer.params.items()})
        data, losses = trainer.run.federation, []
        for client in range(8):
            rows = data.partition.client(client)
            inputs = data.load(data.train, torch.from_numpy(rows), torch.device("cpu"))[0].double()
            losses.append(float(cross_entropy(network(inputs), data.train.targets[rows]).detach()))
        trainer.train_round()
        assert [client.id for client in trainer.recorded[round]] == sorted(np.argsort(losses)[-3:].tolist())


@pytest.mark.parametrize(
    ("losses", "selected"),
    [
        ([1.0, 4.0, 2.0, 3.0], [1, 3]),
        ([math.nan, 4.0, 2.0, 3.0], [1, 3]),
        ([1.0, math.nan, 2.0, 3.0], [2, 3]),
        ([math.nan, 4.0, math.nan, math.nan], [1]),
        ([math.nan] * 4, None),
    ],
)
def test_candidates_without_a_loss_are_left_out(losses: list[float], selected: list[int] | None) -> None:
    """Without any loss, the first of the candidates train."""
    asked: list[int] = []

    def ask(clients: Sequence[int]) -> list[float]:
        asked.extend(clients)
        return [losses[client] for client in clients]

    sizes = torch.tensor([1, 2, 3, 10])
    pool = ClientPool(0, sizes, 16, fold(0, 0, "cohort"), sample_ends=partial(np.cumsum, sizes.numpy()), ask=ask)
    found = PowerOfChoice(candidates=4).select({}, pool, 2, torch.Generator()).clients
    assert found == (sorted(asked[:2]) if selected is None else selected)


def test_candidates_are_drawn_in_proportion_to_their_sizes() -> None:
    sizes = torch.tensor([1, 2, 3, 10])
    counts = dict.fromkeys(itertools.combinations(range(4), 2), 0.0)
    for round in range(4000):
        pool = ClientPool(round, sizes, 16, fold(0, round, "cohort"), sample_ends=partial(np.cumsum, sizes.numpy()))
        counts[tuple(pool.draw_by_size(2))] += 1 / 4000
    shares = [size / 16 for size in sizes.tolist()]
    for (a, b), found in counts.items():
        expected = shares[a] * shares[b] / (1 - shares[a]) + shares[b] * shares[a] / (1 - shares[b])
        assert abs(found - expected) < 4 * (expected / 4000) ** 0.5


def test_the_ledger_counts_what_candidates_download_and_report() -> None:
    options = {"rounds": 2, "clients_per_round": 3, "local_steps": 1}
    plain, chosen = train(**options), train(PowerOfChoice(candidates=7), **options)
    model = plain.ledger.down["model"] // 6
    assert chosen.ledger.down["PowerOfChoice"] == 2 * (7 - 3) * model and chosen.ledger.up["PowerOfChoice"] == 2 * 7 * 4
    assert chosen.ledger.down["model"] == plain.ledger.down["model"]
    dropping = train(PowerOfChoice(candidates=7), ClientDropout(probability=0.5), **options)
    assert dropping.ledger.total_down == 2 * 7 * model, "a candidate has downloaded the model before it drops out"


def test_sizes_decide_without_losses() -> None:
    """Clients that are drawn in proportion to their sizes have more samples on average than uniformly drawn clients."""
    trainer = train(WeightedSelection(), rounds=20, clients_per_round=2, local_steps=1)
    mean = np.mean([client.num_samples for round in trainer.recorded for client in round])
    assert mean > sum(SIZES) / 8 + 0.5
