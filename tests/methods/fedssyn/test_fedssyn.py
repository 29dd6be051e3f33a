"""Fedssyn: which data clients exchange, where the data are kept, and that a run can be stopped, inspected and resumed."""

import dataclasses
import math
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from contracts.case import Case
from filelock import FileLock
from harness import RAGGED, SIZES, TINY_LABELS, TinyData, classifier, fit, make_trainer
from reference import fedavg
from torch import Tensor, nn

import flcog
import flcog.callbacks
from flcog.callbacks import BetaVAE, Fedssyn, RoundsToTarget
from flcog.callbacks.fedssyn import synthesis_cache
from flcog.callbacks.fedssyn.generators.base import DataGenerator, Log, Sampler, matching_labels, subset_of
from flcog.callbacks.fedssyn.shuffling import JointInputs, SampleExchange, capacity, even_split
from flcog.data import Samples, Splits

pytestmark = pytest.mark.filterwarnings("error")


TINY_VAE = BetaVAE(latent=2, hidden=8, epochs=2, batch_size=8, lr=0.01)


NONE = Fedssyn(share="none")


# These cases check that the rounds train on exactly the exchanged data. The tests below compare the data with the paper.
CASES: dict[str, Case] = {
    "Fedssyn": Case(Fedssyn(generator=TINY_VAE, num_images=6), fedavg.run, neutral=NONE, random=True),
    "Fedssyn-local": Case(
        Fedssyn(generator=TINY_VAE, share="local", p=0.4), fedavg.run, neutral=NONE, options=RAGGED, random=True
    ),
    "Fedssyn-real": Case(Fedssyn(share="real", p=0.5), fedavg.run, neutral=NONE, random=True),
}


trained: list[int] = []
"""The number of samples in each training of a ``Stamp``."""


@dataclasses.dataclass(frozen=True)
class Stamp(DataGenerator):
    """Makes random rows, so that no two samples are equal. Raises KeyboardInterrupt after ``fail_at`` trainings."""

    fail_at: int | None = dataclasses.field(default=None, repr=False)

    def train(self, inputs: Tensor, labels: Tensor, num_classes: int, log: Log) -> Sampler:
        if self.fail_at is not None and len(trained) == self.fail_at:
            raise KeyboardInterrupt
        trained.append(len(inputs))
        log(1, {"loss": float(inputs.mean())})
        return lambda labels: torch.rand(len(labels), *inputs.shape[1:])


@pytest.fixture(autouse=True)
def _forget() -> None:
    trained.clear()


class Images(flcog.FederatedDataModule):
    """Grey 8x8 images as bytes, 20 for each of four clients."""

    num_classes = 3
    class_names = ("a", "b/c", "d")

    def __init__(self, **options: Any) -> None:
        super().__init__(num_clients=4, batch_size=8, **options)

    def load(self) -> Splits:
        rng = torch.Generator().manual_seed(0)
        return Splits(Samples(torch.randint(256, (80, 8, 8, 1), generator=rng, dtype=torch.uint8), torch.arange(80) % 3))


class Flat(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(64, 3)

    def forward(self, inputs: Tensor) -> Tensor:
        return self.head(inputs.flatten(1))


def exchanged(method: Fedssyn, data: flcog.FederatedDataModule | None = None) -> tuple[Any, SampleExchange]:
    """A trainer after the exchange of data, and the result of the exchange."""
    trainer = make_trainer(None, method)
    trainer.prepare(classifier(), data or TinyData())
    return trainer, trainer.run.engine.exchanges["Fedssyn"]


def test_options_that_would_have_no_effect_are_refused() -> None:
    with pytest.raises(ValueError, match="keep_own=false leaves clients only synthetic data, and share=real generates none"):
        Fedssyn(share="real", keep_own=False)
    with pytest.raises(ValueError, match="before round 1 and for all rounds: leave out start_round and stop_round"):
        exchanged(Fedssyn(generator=Stamp(), stop_round=2))


# The exchanged data -----------------------------------------------------------------------------------------------------------------


def test_everything_sent_is_dealt_out_evenly_once() -> None:
    trainer, exchange = exchanged(Fedssyn(generator=Stamp(), num_images=6))
    federation, before = trainer.run.federation, TinyData().federation
    kept = exchanged(Fedssyn(generator=Stamp(), num_images=6, share="local"))[1].federation.train.inputs
    assert exchange.received.sizes.tolist() == [6] * 8
    first = len(before.train)
    assert sorted(exchange.received.indices) == list(range(first, first + 48)) and len(federation.train) == first + 48
    for client, size in enumerate(SIZES):
        own = federation.partition.client(client)
        assert own[:size].tolist() == before.partition.client(client).tolist()
        assert own[size:].tolist() == exchange.received.client(client).tolist()
        # A client also receives samples of others, because the samples of all clients are shuffled.
        rows = (federation.train.inputs[own[size:], None] == kept[first:]).all(-1).nonzero()[:, 1]
        assert len(set((rows // 6).tolist())) > 2
        assert exchange.shares[client] == 6 / (size + 6)
    assert torch.equal(federation.train.inputs[:first], before.train.inputs)
    rows = federation.train.inputs[first:]
    assert len(rows.unique(dim=0)) == 48
    assert federation.split.hash == before.partition.hash  # the hash that papers cite is still the real samples' split


def test_labels_follow_the_subset() -> None:
    data = TinyData()
    federation, seed = data.federation, 5
    for rho in (0.3, 0.75, 1.0):
        for client, size in enumerate(SIZES):
            rows = subset_of(federation, client, rho, seed)
            assert len(rows) == len(set(rows)) == max(1, round(rho * size))
            assert set(rows) <= set(federation.partition.client(client))
            labels = federation.train.targets[rows]
            made = matching_labels(labels, 4 * len(rows), 3)
            assert torch.equal(made.bincount(minlength=3), 4 * labels.bincount(minlength=3))
            odd = matching_labels(labels, 7, 3)
            shares = labels.bincount(minlength=3) / len(labels) * 7
            assert len(odd) == 7 and ((odd.bincount(minlength=3) - shares).abs() < 1).all()
    exchanged(Fedssyn(generator=Stamp(), rho=0.5))
    assert trained == [round(0.5 * size) for size in SIZES]


def test_by_default_a_client_makes_the_mean_number_of_samples() -> None:
    _, exchange = exchanged(Fedssyn(generator=Stamp()))
    assert exchange.received.sizes.tolist() == [10] * 8 and sum(SIZES) == 80


@pytest.mark.parametrize("p", [0.06, 0.3, 0.5, 1.0])
def test_no_client_has_more_than_p(p: float) -> None:
    trainer, exchange = exchanged(Fedssyn(generator=Stamp(), num_images=9, p=p))
    limits = [9 if p == 1 else min(9, math.floor(p * size / (1 - p) + 1e-9)) for size in SIZES]
    assert exchange.received.sizes.sum() == sum(limits)  # nothing sent is lost
    assert (exchange.shares <= p + 1e-12).all()
    assert len(np.unique(exchange.received.indices)) == sum(limits)
    assert trainer.run.ledger.up["Fedssyn"] == sum(limits) * (6 * 4 + 8)


def test_even_split_against_pouring_one_by_one() -> None:
    rng = np.random.default_rng(0)
    for _ in range(50):
        capacities = rng.integers(0, 9, 5)
        total = int(rng.integers(0, capacities.sum() + 1))
        counts = np.zeros(5, int)
        for _ in range(total):
            counts[min((k for k in range(5) if counts[k] < capacities[k]), key=lambda k: (counts[k], k))] += 1
        assert even_split(total, capacities).tolist() == counts.tolist()
    assert capacity(np.array([94]), 0.06, np.array([99])).tolist() == [6]


def test_clients_may_train_on_what_they_receive_alone() -> None:
    """Clients train on the same images, dealt out in the same way, and on no other samples."""
    both, others = (exchanged(Fedssyn(generator=Stamp(), num_images=6, keep_own=keep))[1] for keep in (True, False))
    trainer, exchange = exchanged(Fedssyn(generator=Stamp(), num_images=6, keep_own=False))
    federation = trainer.run.federation
    assert (exchange.shares == 1).all() and exchange.own.sizes.tolist() == [0] * 8
    assert federation.partition.hash == exchange.received.hash == both.received.hash == others.received.hash
    assert exchange.before.hash == federation.split.hash == TinyData().federation.partition.hash
    trainer.train_round()
    assert {int(index) for work in trainer.works[0] for index in work.order} <= set(range(80, 128))


def test_local_data_stay_where_they_are() -> None:
    trainer, exchange = exchanged(Fedssyn(generator=Stamp(), num_images=6, share="local"))
    first = len(TinyData().federation.train)
    for client in range(8):
        assert exchange.received.client(client).tolist() == list(range(first + 6 * client, first + 6 * client + 6))
    assert trainer.run.ledger.up["Fedssyn"] == trainer.run.ledger.down["Fedssyn"] == 0
    shuffled, _ = exchanged(Fedssyn(generator=Stamp(), num_images=6))
    ours, theirs = (each.run.federation.train.inputs for each in (trainer, shuffled))
    assert torch.equal(ours.unique(dim=0), theirs.unique(dim=0)) and not torch.equal(ours, theirs)  # dealt out differently


@pytest.mark.parametrize("p", [0.25, 1.0, None])
def test_real_data_change_hands_and_none_is_lost(p: float | None) -> None:
    trainer, exchange = exchanged(Fedssyn(share="real", p=p, num_images=5))
    before = TinyData().federation.partition
    assert sorted(trainer.run.federation.partition.indices) == sorted(before.indices)
    assert trainer.run.federation.partition.sizes.tolist() == list(SIZES)
    for client, size in enumerate(SIZES):
        fraction = 5 / (size + 5) if p is None else p
        assert exchange.received.sizes[client] == round(fraction * size)
        assert set(exchange.own.client(client)) <= set(before.client(client))
    assert trainer.run.ledger.down["Fedssyn"] == exchange.received.sizes.sum() * 32
    assert not trained


def test_shuffling_all_data_makes_clients_alike() -> None:
    counts = []
    for share in ("none", "real"):
        trainer = make_trainer(None, Fedssyn(share=share, p=1.0))  # type: ignore[arg-type]
        trainer.prepare(classifier(), TinyData())
        rows = torch.stack([trainer.run.federation.label_counts(k) for k in range(8)])
        counts.append((rows / rows.sum(1, keepdim=True) - torch.tensor(TINY_LABELS) / 80).square().sum(1).mean())
    assert counts[1] < 0.4 * counts[0]


def test_what_is_sent_is_counted_once(tmp_path: Path) -> None:
    """Each client's traffic is 2 M_s + 2 R M_c, as in table A.2 of the paper."""
    trainer = fit(
        tmp_path, Fedssyn(generator=Stamp(), num_images=6), RoundsToTarget(0.0), clients_per_round=1.0, eval_every=1, rounds=2
    )
    model, data = sum(p.numel() for p in trainer.run.params.values()) * 8, 6 * (6 * 4 + 8)
    assert trainer.run.ledger.up == trainer.run.ledger.down == {"Fedssyn": 8 * data, "model": 2 * 8 * model}
    assert trainer.history[1]["comm/total_bytes"] == 8 * (2 * data + 2 * 2 * model)
    assert sum(row["comm/up_bytes"] for row in trainer.history) == trainer.run.ledger.total_up
    assert trainer.history[0]["to_accuracy_0/up_bytes"] == 8 * (data + model)
    again = fit(
        tmp_path, Fedssyn(generator=Stamp(), num_images=6), RoundsToTarget(0.0), clients_per_round=1.0, eval_every=1, rounds=3,
        ckpt_path=str(trainer.run_dir),
    )  # fmt: skip
    assert again.ledger.up == {"Fedssyn": 8 * data, "model": 3 * 8 * model}


def test_data_on_disk_are_not_copied() -> None:
    stored = np.arange(12, dtype=np.uint8).reshape(6, 2)
    joined = JointInputs(stored, np.full((2, 2), 99, np.uint8))
    whole = np.concatenate([stored, np.full((2, 2), 99)])
    assert len(joined) == 8 and joined.shape == (8, 2) and joined.dtype == np.uint8
    for rows in ([7, 0, 3, 6, 0], slice(1, None), slice(0, 3), [2]):
        assert joined[rows].tolist() == whole[rows].tolist()
    targets = torch.tensor([0, 1, 0, 1, 0, 1])
    samples = Samples(joined, torch.cat([targets, targets[:2]]))  # type: ignore[arg-type]
    assert samples.gather(torch.tensor([6, 1])).tolist() == [[99, 99], [2, 3]]


# Where the data are kept ------------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_killed_run_goes_on_with_the_client_it_was_at(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def run(folder: str, fail_at: int | None = None) -> flcog.FederatedTrainer:
        return fit(tmp_path / folder, Fedssyn(generator=Stamp(fail_at), num_images=6), rounds=1)

    whole = run("whole")
    trained.clear()
    with pytest.raises(KeyboardInterrupt):
        run("killed", fail_at=3)
    assert len(list(tmp_path.glob("killed/synthetic/*/client-*.npz"))) == 3
    assert "making 8 of 8 sets" in capsys.readouterr().out
    trained.clear()
    resumed = run("killed")
    assert len(trained) == 5 and "making 5 of 8 sets" in capsys.readouterr().out
    assert torch.equal(resumed.federation.train.inputs, whole.federation.train.inputs)
    assert all(torch.equal(resumed.params[name], value) for name, value in whole.params.items())
    resumed.test(classifier(), TinyData(), ckpt_path=str(resumed.run_dir))  # neither this test nor another run generates data
    run("killed")
    fit(tmp_path / "killed", Fedssyn(generator=Stamp(), num_images=6, share="local", p=0.2), rounds=1)
    assert len(trained) == 5
    assert not [path for path in tmp_path.glob("killed/synthetic/*/.*") if path.suffix != ".lock"]
    for other in (Fedssyn(generator=Stamp(), num_images=7), Fedssyn(generator=Stamp(), num_images=6, rho=0.5)):
        trained.clear()
        fit(tmp_path / "killed", other, rounds=1)
        assert len(trained) == 8
    trained.clear()
    fit(tmp_path / "killed", Fedssyn(generator=Stamp(), num_images=6), rounds=1, seed=1)
    fit(tmp_path / "killed", Fedssyn(generator=Stamp(), num_images=6), rounds=1, data=TinyData(client_test=0.3))
    assert len(trained) == 16


def test_processes_divide_the_sets(tmp_path: Path) -> None:
    """While another process makes the set of a client, this one makes the others, and then waits for it."""
    federation, synthesis = Images().federation, synthesis_cache.Synthesis(TINY_VAE, 0.75, 5, 3)
    alone, _ = synthesis_cache.synthetic_sets(synthesis, federation, None)
    folder = synthesis_cache.folder_of(synthesis.about(federation), tmp_path)
    folder.mkdir()
    with ThreadPoolExecutor(1) as pool:
        with FileLock(folder / ".client-0001.lock"):
            going = pool.submit(synthesis_cache.synthetic_sets, synthesis, federation, tmp_path)
            while len(list(folder.glob("*.npz"))) < 3:
                assert not going.done()
        together, _ = going.result()
    for (inputs, labels), (others, other_labels) in zip(alone, together, strict=True):
        assert torch.equal(inputs, others) and torch.equal(labels, other_labels)


def test_one_changed_sample_makes_other_data(tmp_path: Path) -> None:
    federation, targets = TinyData().federation, torch.arange(300) % 3
    inputs = torch.arange(1200, dtype=torch.float32).view(300, 4)
    changed = inputs.clone()
    changed[1, 2] += 1

    def fingerprint(inputs: Any) -> str:
        return synthesis_cache.fingerprint(dataclasses.replace(federation, train=Samples(inputs, targets)))

    assert fingerprint(inputs) == fingerprint(inputs.clone()) != fingerprint(changed)
    assert fingerprint(inputs.numpy()) != fingerprint(changed.numpy())
    file = tmp_path / "inputs.npy"
    np.save(file, inputs.numpy())
    before = fingerprint(np.load(file, mmap_mode="r"))
    assert before == fingerprint(inputs.numpy())
    np.save(file, changed.numpy())
    assert before != fingerprint(np.load(file, mmap_mode="r"))


def test_images_are_what_was_made(tmp_path: Path) -> None:
    from PIL import Image

    trainer = make_trainer(
        tmp_path, Fedssyn(generator=Stamp(), num_images=4, directory=str(tmp_path / "kept")), clients_per_round=1
    )
    trainer.prepare(flcog.Classifier(Flat()), Images())
    exchange = trainer.run.engine.exchanges["Fedssyn"]
    images, left, total = synthesis_cache.export_images(exchange.folder, trainer.run.federation)
    assert exchange.folder.parent == tmp_path / "kept" and left == total == 16
    with np.load(exchange.folder / "client-0002.npz") as arrays:
        for row, label in enumerate(arrays["labels"]):
            name = ("a", "b_c", "d")[label]
            pixels = np.asarray(Image.open(images / "client-0002" / name / f"{row:05d}.png"))
            assert (pixels == arrays["inputs"][row, :, :, 0]).all()
