"""Fedssyn: what is exchanged, from what it is made, and that it can be stopped, looked at and gone on with."""

import copy
import dataclasses
import itertools
import math
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jsonargparse
import numpy as np
import pytest
import torch
import torch.nn.functional as F
import yaml
from contracts.case import Case
from harness import RAGGED, ROOT, SIZES, TINY_LABELS, TinyData, classifier, fit, make_trainer, train
from reference import fedavg
from torch import Tensor, nn

import flcog
import flcog.callbacks
from flcog.callbacks import BetaVAE, ConditionalGAN, Fedssyn, PrivateTraining, RoundsToTarget
from flcog.callbacks.fedssyn import synthesis_cache
from flcog.callbacks.fedssyn.generators import beta_vae
from flcog.callbacks.fedssyn.generators.base import DataGenerator, Form, Log, Sampler, matching_labels, require, subset_of
from flcog.callbacks.fedssyn.generators.beta_vae import Autoencoder, Posterior, class_means
from flcog.callbacks.fedssyn.generators.conditional_gan import Critic
from flcog.callbacks.fedssyn.generators.ddpm import DDPM, MovingAverage
from flcog.callbacks.fedssyn.generators.private_training import Budget
from flcog.callbacks.fedssyn.generators.private_training import train as train_generator
from flcog.callbacks.fedssyn.shuffling import Exchange, Joined, capacity, even_split
from flcog.data import Samples, Splits
from flcog.models import MLP
from flcog.run import checkpoint

pytestmark = pytest.mark.filterwarnings("error")


TINY_VAE = BetaVAE(latent=2, hidden=8, epochs=2, batch_size=8, lr=0.01)


NONE = Fedssyn(share="none")


# Which data the clients get is compared with the paper in test_fedssyn.py. Here: that the rounds run on exactly those.
CASES: dict[str, Case] = {
    "Fedssyn": Case(Fedssyn(generator=TINY_VAE, num_images=6), fedavg.run, neutral=NONE, random=True),
    "Fedssyn-local": Case(
        Fedssyn(generator=TINY_VAE, share="local", p=0.4), fedavg.run, neutral=NONE, options=RAGGED, random=True
    ),
    "Fedssyn-real": Case(Fedssyn(share="real", p=0.5), fedavg.run, neutral=NONE, random=True),
}


trained: list[int] = []
"""Samples of each training of a ``Stamp``."""


@dataclasses.dataclass(frozen=True)
class Stamp(DataGenerator):
    """Makes samples that can be told apart: random rows. Fails at its ``fail_at``-th training."""

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
    """Bytes of 8x8 grey pixels, 20 for each of four clients."""

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


def exchanged(method: Fedssyn, data: flcog.FederatedDataModule | None = None) -> tuple[Any, Exchange]:
    """The federation after the exchange, and what became of it."""
    trainer = make_trainer(None, method)
    trainer.prepare(classifier(), data or TinyData())
    return trainer, trainer.federation.exchanged["Fedssyn"]


# What is exchanged ------------------------------------------------------------------------------------------------------------------


def test_everything_sent_is_dealt_out_evenly_once() -> None:
    trainer, exchange = exchanged(Fedssyn(generator=Stamp(), num_images=6))
    federation, before = trainer.federation, TinyData().federation
    assert exchange.sent.tolist() == [6] * 8 and exchange.received.sizes.tolist() == [6] * 8
    first = len(before.train)
    assert sorted(exchange.received.indices) == list(range(first, first + 48)) and len(federation.train) == first + 48
    for client, size in enumerate(SIZES):
        own = federation.partition.client(client)
        assert own[:size].tolist() == before.partition.client(client).tolist()
        assert own[size:].tolist() == exchange.received.client(client).tolist()
        # From others too: it is shuffled over all.
        assert len({(row - first) // 6 for row in own[size:]}) > 2
        assert exchange.shares[client] == 6 / (size + 6)
    assert torch.equal(federation.train.inputs[:first], before.train.inputs)
    rows = federation.train.inputs[first:]
    assert len(rows.unique(dim=0)) == 48
    assert federation.split.hash == before.partition.hash  # what papers cite is the real samples' split


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
    assert exchange.sent.tolist() == [10] * 8 and sum(SIZES) == 80


@pytest.mark.parametrize("p", [0.06, 0.3, 0.5, 1.0])
def test_no_client_has_more_than_p(p: float) -> None:
    trainer, exchange = exchanged(Fedssyn(generator=Stamp(), num_images=9, p=p))
    limits = [9 if p == 1 else min(9, math.floor(p * size / (1 - p) + 1e-9)) for size in SIZES]
    assert exchange.sent.tolist() == limits
    assert exchange.received.sizes.sum() == sum(limits)  # nothing sent is lost
    assert (exchange.shares <= p + 1e-12).all()
    assert len(np.unique(exchange.received.indices)) == sum(limits)
    assert trainer.ledger.up["Fedssyn"] == sum(limits) * (6 * 4 + 8)


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


def test_local_data_stay_where_they_are() -> None:
    trainer, exchange = exchanged(Fedssyn(generator=Stamp(), num_images=6, share="local"))
    first = len(TinyData().federation.train)
    for client in range(8):
        assert exchange.received.client(client).tolist() == list(range(first + 6 * client, first + 6 * client + 6))
    assert trainer.ledger.up["Fedssyn"] == trainer.ledger.down["Fedssyn"] == 0
    shuffled, _ = exchanged(Fedssyn(generator=Stamp(), num_images=6))
    assert torch.equal(shuffled.federation.train.inputs, trainer.federation.train.inputs)  # the same images, dealt out otherwise


@pytest.mark.parametrize("p", [0.25, 1.0, None])
def test_real_data_change_hands_and_none_is_lost(p: float | None) -> None:
    trainer, exchange = exchanged(Fedssyn(share="real", p=p, num_images=5))
    before = TinyData().federation.partition
    assert sorted(trainer.federation.partition.indices) == sorted(before.indices)
    assert trainer.federation.partition.sizes.tolist() == list(SIZES)
    for client, size in enumerate(SIZES):
        fraction = 5 / (size + 5) if p is None else p
        assert exchange.received.sizes[client] == round(fraction * size)
        assert set(exchange.own.client(client)) <= set(before.client(client))
    assert trainer.ledger.down["Fedssyn"] == exchange.received.sizes.sum() * 32
    assert not trained


def test_shuffling_all_data_makes_clients_alike() -> None:
    counts = []
    for share in ("none", "real"):
        trainer = make_trainer(None, Fedssyn(share=share, p=1.0))  # type: ignore[arg-type]
        trainer.prepare(classifier(), TinyData())
        rows = torch.stack([trainer.federation.label_counts(k) for k in range(8)])
        counts.append((rows / rows.sum(1, keepdim=True) - torch.tensor(TINY_LABELS) / 80).square().sum(1).mean())
    assert counts[1] < 0.4 * counts[0]


def test_what_is_sent_is_counted_once(tmp_path: Path) -> None:
    """2 M_s + 2 R M_c for each client, Table A.2."""
    trainer = fit(
        tmp_path, Fedssyn(generator=Stamp(), num_images=6), RoundsToTarget(0.0), clients_per_round=1.0, eval_every=1, rounds=2
    )
    model, data = sum(p.numel() for p in trainer.params.values()) * 8, 6 * (6 * 4 + 8)
    assert trainer.ledger.up == trainer.ledger.down == {"Fedssyn": 8 * data, "model": 2 * 8 * model}
    assert trainer.history[1]["comm/total_bytes"] == 8 * (2 * data + 2 * 2 * model)
    assert sum(row["comm/up_bytes"] for row in trainer.history) == trainer.ledger.total_up
    assert trainer.history[0]["to_accuracy_0/up_bytes"] == 8 * (data + model)
    again = fit(
        tmp_path, Fedssyn(generator=Stamp(), num_images=6), RoundsToTarget(0.0), clients_per_round=1.0, eval_every=1, rounds=3,
        ckpt_path=str(trainer.run_dir),
    )  # fmt: skip
    assert again.ledger.up == {"Fedssyn": 8 * data, "model": 3 * 8 * model}


def test_data_on_disk_are_not_copied() -> None:
    stored = np.arange(12, dtype=np.uint8).reshape(6, 2)
    joined = Joined(stored, np.full((2, 2), 99, np.uint8))
    whole = np.concatenate([stored, np.full((2, 2), 99)])
    assert len(joined) == 8 and joined.shape == (8, 2) and joined.dtype == np.uint8
    for rows in ([7, 0, 3, 6, 0], slice(1, None), slice(0, 3), [2]):
        assert joined[rows].tolist() == whole[rows].tolist()
    targets = torch.tensor([0, 1, 0, 1, 0, 1])
    samples = Samples(joined, torch.cat([targets, targets[:2]]))  # type: ignore[arg-type]
    assert samples.gather(torch.tensor([6, 1])).tolist() == [[99, 99], [2, 3]]


# Where it is kept -------------------------------------------------------------------------------------------------------------------


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
    resumed.test(classifier(), TinyData(), ckpt_path=str(resumed.run_dir))  # neither this nor a further run makes anything
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


def test_the_numbers_do_not_depend_on_the_processes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    federation = Images().federation
    synthesis = synthesis_cache.Synthesis(TINY_VAE, 0.75, 5, 3)
    alone, _ = synthesis_cache.synthetic_sets(synthesis, federation, None)
    before = torch.random.get_rng_state()
    seen: list[dict[int, Any]] = []

    def gather(parts: list[Any], mine: dict[int, Any]) -> None:
        seen.append(mine)
        parts[:] = seen if len(seen) == 2 else [mine, {k: mine[0] for k in range(4) if k not in mine}]

    monkeypatch.setattr(torch.distributed, "all_gather_object", gather)
    for rank in (0, 1):
        monkeypatch.setattr(synthesis_cache, "_process", lambda rank=rank: (rank, 2))
        together, _ = synthesis_cache.synthetic_sets(synthesis, federation, tmp_path)
    assert [sorted(part) for part in seen] == [[0, 2], [1, 3]]
    for (inputs, labels), (others, other_labels) in zip(alone, together, strict=True):
        assert torch.equal(inputs, others) and torch.equal(labels, other_labels)
    assert torch.equal(torch.random.get_rng_state(), before)


def test_one_changed_sample_makes_other_data(tmp_path: Path) -> None:
    federation, targets = TinyData().federation, torch.arange(300) % 3
    inputs = torch.arange(1200, dtype=torch.float32).view(300, 4)
    changed = inputs.clone()
    changed[1, 2] += 1

    def fingerprint(inputs: Any) -> str:
        return synthesis_cache.fingerprint(dataclasses.replace(federation, train=Samples(inputs, targets)))

    assert fingerprint(inputs) == fingerprint(inputs.clone()) != fingerprint(changed)
    assert fingerprint(inputs.numpy()) != fingerprint(changed.numpy())
    # Inputs on disk are not all read: that their file was written anew tells.
    file = tmp_path / "inputs.npy"
    np.save(file, inputs.numpy())
    before = fingerprint(np.load(file, mmap_mode="r"))
    assert before == fingerprint(np.load(file, mmap_mode="r"))
    np.save(file, changed.numpy())
    os.utime(file, (0, 0))  # clocks may be too coarse for a test
    assert before != fingerprint(np.load(file, mmap_mode="r"))


def test_a_run_does_not_go_on_with_other_data(tmp_path: Path) -> None:
    def run(rounds: int, **options: Any) -> flcog.FederatedTrainer:
        method = Fedssyn(generator=Stamp(), num_images=4, **options)
        return fit(
            tmp_path, method, rounds=rounds, clients_per_round=2, module=flcog.Classifier(Flat()), data=Images(),
            ckpt_path="last" if rounds > 1 else None, resume_changed=bool(options),
        )  # fmt: skip

    first = run(1)
    folder = first.federation.exchanged["Fedssyn"].folder
    image = next(synthesis_cache.export_images(folder, first.federation)[0].glob("client-0002/*/*.png"))
    aside = image.rename(tmp_path / "deleted.png")
    assert first.run_dir is not None
    last = first.run_dir / "checkpoints" / "last.ckpt"
    expected = (
        f"{last} was written by a run in which Fedssyn gave the clients other data: what lies in {folder} was changed or made"
    )
    for options in ({}, {"p": 0.1}):  # changed settings are refused by themselves, and other data even where they are meant
        with pytest.raises(ValueError, match=re.escape(expected)) as error:
            run(2, **options)
        assert "\n" not in str(error.value)
    aside.rename(image)
    with pytest.raises(
        ValueError, match=r"gave the clients other data: a setting was changed; put that back, or start a new run$"
    ):
        run(2, share="none")
    assert run(2).round == 2
    image.unlink()
    saved = checkpoint.read(last)
    del saved["exchanged"]  # as before it was kept
    checkpoint.write(last, saved)
    assert run(3).round == 3


def test_images_are_what_was_made(tmp_path: Path) -> None:
    from PIL import Image

    trainer = make_trainer(
        tmp_path, Fedssyn(generator=Stamp(), num_images=4, directory=str(tmp_path / "kept")), clients_per_round=1
    )
    trainer.prepare(flcog.Classifier(Flat()), Images())
    exchange = trainer.federation.exchanged["Fedssyn"]
    images, left, total = synthesis_cache.export_images(exchange.folder, trainer.federation)
    assert exchange.folder.parent == tmp_path / "kept" and left == total == 16
    with np.load(exchange.folder / "client-0002.npz") as arrays:
        for row, label in enumerate(arrays["labels"]):
            name = ("a", "b_c", "d")[label]
            pixels = np.asarray(Image.open(images / "client-0002" / name / f"{row:05d}.png"))
            assert (pixels == arrays["inputs"][row, :, :, 0]).all()


def test_exchanges_are_refused_where_they_make_no_sense(tmp_path: Path) -> None:
    idle = train(Fedssyn(generator=Stamp(), start_round=3))
    assert not trained and not idle.federation.exchanged
    (tmp_path / "file").write_text("")
    bad: list[tuple[Callable[[], Any], str]] = [
        (lambda: Fedssyn(share="all"), "Fedssyn: share must be shuffled, local, real or none; got 'all'"),  # type: ignore[arg-type]
        (lambda: Fedssyn(rho=0.0), "Fedssyn: rho must lie in (0, 1]; got 0.0"),
        (lambda: Fedssyn(p=1.5), "Fedssyn: p must lie in (0, 1], or null; got 1.5"),
        (lambda: Fedssyn(num_images=0), "Fedssyn: num_images must be at least 1, or null; got 0"),
        (
            lambda: Fedssyn(generator="vae"),  # type: ignore[arg-type]
            "Fedssyn: generator must be a DDPM, a BetaVAE or a ConditionalGAN; got 'vae'",
        ),
        (
            lambda: train(Fedssyn(generator=Stamp(), start_round=1)),
            "Fedssyn exchanges data before round 1 and for all rounds: leave out start_round and stop_round",
        ),
        (
            lambda: train(Fedssyn(), data=TinyData(targets="regression"), module=flcog.Regressor(MLP(6, (8,), 1))),
            "Fedssyn is defined for classification, not for regression data: remove it",
        ),
        (
            lambda: train(Fedssyn(generator=DDPM())),
            "DDPM makes images, and this data set holds rows of a table: use BetaVAE or ConditionalGAN",
        ),
        (
            lambda: fit(tmp_path, Fedssyn(generator=Stamp(), directory=str(tmp_path / "file"))),
            f"cannot write {tmp_path / 'file'}",
        ),
        (lambda: BetaVAE(latent=0), "BetaVAE: latent must be at least 1; got 0"),
        (lambda: BetaVAE(std=0.0), "BetaVAE: std must be positive; got 0.0"),
        (lambda: BetaVAE(beta=-1.0), "BetaVAE: beta must be at least 0; got -1.0"),
        (lambda: ConditionalGAN(lr=0.0), "ConditionalGAN: lr must be positive; got 0.0"),
        (lambda: DDPM(multipliers=()), "DDPM: multipliers must be one or more numbers of at least 1; got ()"),
        (lambda: DDPM(attention=5), "DDPM: attention counts resolutions, 0 to the 4 of multipliers; got 5"),
        (lambda: DDPM(sampling_steps=2000), "DDPM: sampling_steps must be at most diffusion_steps=1000; got 2000"),
        (lambda: DDPM(ema=1.0), "DDPM: ema must lie in [0, 1); got 1.0"),
        (
            lambda: PrivateTraining(delta=0.0),
            "PrivateTraining: delta must lie in (0, 1); got 0.0: take one well below 1 / samples",
        ),
        (lambda: PrivateTraining(noise_multiplier=0.0), "PrivateTraining: noise_multiplier must be positive; got 0.0"),
        (
            lambda: Form.of(Samples(torch.zeros(3, 5, dtype=torch.long), torch.zeros(3))),
            "torch.int64 inputs (token ids) cannot be generated: use a method that needs no synthetic data",
        ),
        (
            lambda: require("no_such_package", "DDPM"),
            "DDPM needs no_such_package, which is not installed: pip install 'flcog[generate]'",
        ),
    ]
    for make, message in bad:
        with pytest.raises(ValueError) as error:
            make()
        assert str(error.value).startswith(message) and "\n" not in str(error.value)


# Generators -------------------------------------------------------------------------------------------------------------------------


def test_values_survive_the_way_to_a_generator_and_back() -> None:
    for stored in (
        torch.randint(256, (5, 4, 6, 3), dtype=torch.uint8),
        torch.randint(2, (5, 4, 6, 1), dtype=torch.uint8),  # dSprites
        torch.rand(5, 4, 6, 1),
        torch.randn(5, 7),
    ):
        form = Form.of(Samples(stored, torch.zeros(5)))
        values = form.encode(stored)
        assert values.dtype == torch.float32
        if stored.ndim == 4:
            assert values.shape == (5, stored.shape[3], 4, 6) and values.min() >= 0 and values.max() <= 1
        decoded = form.decode(values)
        assert decoded.dtype == stored.dtype and torch.allclose(decoded.float(), stored.float(), atol=1e-6)


@pytest.mark.parametrize("shape", [(1, 8, 8), (3, 11, 9), (6,)], ids=str)
@pytest.mark.parametrize(
    "generator",
    [
        BetaVAE(latent=2, hidden=8, channels=4, epochs=1),
        BetaVAE(latent=2, hidden=8, channels=4, epochs=1, conditional=True, capacity=3.0),
        ConditionalGAN(latent=4, width=4, epochs=1),
        DDPM(
            width=8,
            multipliers=(1, 2),
            blocks=1,
            attention=1,
            head_dim=4,
            diffusion_steps=6,
            sampling_steps=3,
            epochs=1,
            flip=True,
        ),
    ],
    ids=["vae", "conditional vae", "gan", "ddpm"],
)
def test_a_generator_makes_what_it_was_given(generator: DataGenerator, shape: tuple[int, ...]) -> None:
    if isinstance(generator, DDPM) and shape != (3, 11, 9):
        pytest.skip("once is enough for the slowest, and it makes no rows")
    inputs, labels = torch.rand(9, *shape), torch.arange(9) % 3
    figures: list[dict[str, float]] = []
    sample = generator.train(inputs, labels, 4, lambda epoch, f: figures.append(f))
    with torch.no_grad():
        made = sample(torch.tensor([0, 2, 2, 3]))
    assert made.shape == (4, *shape) and made.isfinite().all() and made[1:3].unique(dim=0).shape[0] == 2
    assert len(figures) == 1 and math.isfinite(figures[0]["loss"])


def test_a_diffusion_model_can_be_private() -> None:
    generator = DDPM(
        width=4, multipliers=(1, 1), blocks=1, attention=1, head_dim=4, diffusion_steps=4, sampling_steps=2, epochs=1, batch_size=2,
        privacy=PrivateTraining(noise_multiplier=5.0, physical_batch_size=1),
    )  # fmt: skip
    figures: list[dict[str, float]] = []
    sample = generator.train(torch.rand(4, 1, 4, 4), torch.tensor([0, 1, 0, 1]), 2, lambda epoch, f: figures.append(f))
    with torch.no_grad():
        assert sample(torch.tensor([0, 1])).isfinite().all()
    assert figures[0]["epsilon"] > 0


def test_a_generator_that_diverged_is_no_source_of_data() -> None:
    with pytest.raises(ValueError, match=r"^client 0's generator has diverged: .* Lower generator.lr$"):
        train(Fedssyn(generator=BetaVAE(latent=2, hidden=8, epochs=30, lr=1e20)))


def test_generators_learn_the_classes() -> None:
    """A table whose classes lie at -2 and 2: so do the samples."""
    torch.manual_seed(0)
    labels = torch.arange(60) % 2
    inputs = (4.0 * labels - 2)[:, None] + 0.1 * torch.randn(60, 3)
    for generator in (
        BetaVAE(latent=2, hidden=16, epochs=40, batch_size=30, lr=0.02, beta=0.2, std=0.2),
        ConditionalGAN(latent=4, width=16, epochs=60, batch_size=30, lr=0.01),
    ):
        sample = generator.train(inputs, labels, 2, lambda epoch, figures: None)
        with torch.no_grad():
            made = sample(torch.tensor([0] * 50 + [1] * 50))
        assert made[:50].mean() < -1 and made[50:].mean() > 1, generator


def test_the_divergence_is_torchs_own() -> None:
    posterior = Posterior(torch.randn(5, 3), torch.randn(5, 3))
    normal = torch.distributions.Normal(posterior.mean, (0.5 * posterior.log_variance).exp())
    expected = torch.distributions.kl_divergence(normal, torch.distributions.Normal(0.0, 1.0)).sum(1)
    torch.testing.assert_close(posterior.divergence, expected)
    draws = Posterior(torch.full((20000, 1), 3.0), torch.full((20000, 1), math.log(4.0))).draw()
    assert abs(draws.mean() - 3) < 0.05 and abs(draws.std() - 2) < 0.05


def test_the_autoencoder_is_that_of_burgess() -> None:
    network = Autoencoder((1, 64, 64), 10, 32, 256, 0)
    convolutions = [module for module in network.modules() if isinstance(module, nn.Conv2d | nn.ConvTranspose2d)]
    assert [(c.in_channels, c.out_channels, c.kernel_size[0], c.stride[0]) for c in convolutions] == (
        [(1, 32, 4, 2)] + [(32, 32, 4, 2)] * 6 + [(32, 1, 4, 2)]
    )
    linears = [(m.in_features, m.out_features) for m in network.modules() if isinstance(m, nn.Linear)]
    assert linears == [(512, 256), (256, 256), (256, 20), (10, 256), (256, 256), (256, 512)]
    # Its loss is the evidence bound: reconstruction summed over pixels.
    images, labels = torch.rand(2, 1, 64, 64), torch.zeros(2, dtype=torch.long)
    torch.manual_seed(3)
    error, divergence = network(images, labels)
    torch.manual_seed(3)
    posterior = network.encode(images, labels)
    outputs = network.decode(posterior.draw(), labels).sigmoid()
    expected = -(images * outputs.log() + (1 - images) * (1 - outputs).log()).sum((1, 2, 3))
    torch.testing.assert_close(error, expected)
    torch.testing.assert_close(divergence, posterior.divergence)


def test_the_capacity_rises(monkeypatch: pytest.MonkeyPatch) -> None:
    losses: list[Any] = []
    monkeypatch.setattr(beta_vae, "train", lambda network, loss, *rest, **options: losses.append((loss, rest)))
    generator = BetaVAE(latent=1, hidden=4, beta=7.0, capacity=10.0, epochs=5)
    generator.train(torch.randn(4, 2), torch.zeros(4, dtype=torch.long), 1, lambda epoch, figures: None)
    loss, rest = losses[0]
    network = lambda inputs, labels: (torch.tensor([1.0]), torch.tensor([4.0]))  # noqa: E731
    assert loss(network, None, None).item() == 1 + 7 * 4
    rest[5](2, {})  # two of five epochs are done: C = 4
    assert loss(network, None, None).item() == 1
    rest[5](5, {})
    assert loss(network, None, None).item() == 1 + 7 * 6


def test_the_schedule_is_the_cosine() -> None:
    generator = DDPM(diffusion_steps=1000)
    alpha_bar = generator.scheduler().alphas_cumprod.double()
    f = lambda t: np.cos((t / 1000 + 0.008) / 1.008 * np.pi / 2) ** 2  # noqa: E731
    betas = np.minimum(1 - f(np.arange(1, 1001)) / f(np.arange(1000)), 0.999)
    np.testing.assert_allclose(alpha_bar.numpy(), np.cumprod(1 - betas), rtol=2e-4, atol=1e-8)
    steps = generator.scheduler().timesteps.tolist()
    assert len(steps) == 250 and steps[0] == 999 and set(np.diff(steps)) == {-4}
    parameters = sum(p.numel() for p in generator.network(3, 32, 10).parameters())
    assert abs(parameters / 14_419_651 - 1) < 0.02


def test_the_sampler_finds_what_the_network_knows(monkeypatch: pytest.MonkeyPatch) -> None:
    """If the network predicts the noise of images that are constant in each class, those images are drawn."""
    generator = DDPM(diffusion_steps=40, sampling_steps=10, epochs=1, lr=1e-9)
    alpha_bar = generator.scheduler().alphas_cumprod
    values = torch.tensor([-0.8, 0.5])
    losses: list[float] = []

    class Oracle(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.zeros(1))

        def forward(self, images: Tensor, step: Tensor, class_labels: Tensor) -> Any:
            a = alpha_bar[step].view(-1, 1, 1, 1)
            noise = (images - a.sqrt() * values[class_labels].view(-1, 1, 1, 1)) / (1 - a).sqrt()
            return type("Output", (), {"sample": noise + 0 * self.weight})

    monkeypatch.setattr(DDPM, "network", lambda self, *shape: Oracle())
    labels = torch.tensor([0, 1] * 4)
    inputs = ((values[labels] + 1) / 2).view(-1, 1, 1, 1).expand(8, 1, 8, 8)
    sample = generator.train(inputs, labels, 2, lambda epoch, figures: losses.append(figures["loss"]))
    made = sample(torch.tensor([1, 0])).detach()
    assert losses[0] < 1e-8  # the loss asks for exactly that noise
    torch.testing.assert_close(made, ((values[[1, 0]] + 1) / 2).view(2, 1, 1, 1).expand(2, 1, 8, 8), atol=1e-4, rtol=0)


class Scale(nn.Module):
    """A network of one weight, which remembers what it was asked."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(1))
        self.weights: list[float] = []
        self.asked: list[tuple[Tensor, Tensor]] = []

    def forward(self, images: Tensor, step: Tensor, class_labels: Tensor) -> Any:
        self.weights.append(self.weight.item())
        self.asked.append((images, step))
        return type("Output", (), {"sample": self.weight * images})


def trained_scale(monkeypatch: pytest.MonkeyPatch, **options: Any) -> Scale:
    """Trained on images that are black on the left and white on the right."""
    network = Scale()
    monkeypatch.setattr(DDPM, "network", lambda self, *shape: network)
    inputs = torch.tensor([0.0, 1.0]).repeat_interleave(4).expand(64, 1, 8, 8)
    torch.manual_seed(0)
    DDPM(epochs=4, batch_size=16, lr=0.05, **options).train(inputs, torch.zeros(64, dtype=torch.int64), 1, lambda *_: None)
    return network


def test_images_are_drawn_from_the_moving_average(monkeypatch: pytest.MonkeyPatch) -> None:
    last, averaged = trained_scale(monkeypatch, ema=0.0), trained_scale(monkeypatch, ema=0.7)
    assert last.weights == averaged.weights and len(last.weights) == 16
    expected = 0.0
    for step, weight in enumerate([*last.weights[1:], last.weight.item()]):
        decay = min(0.7, (1 + step) / (10 + step))
        expected = decay * expected + (1 - decay) * weight
    assert averaged.weight.item() == pytest.approx(expected, rel=1e-6) and abs(expected - last.weight.item()) > 0.02


def test_images_are_mirrored_by_chance(monkeypatch: pytest.MonkeyPatch) -> None:
    for flip in (False, True):
        asked = trained_scale(monkeypatch, flip=flip).asked
        # Early steps have little noise: the right half is the brighter one unless the image is mirrored.
        sides = torch.cat([(images[..., 4:].mean((1, 2, 3)) < 0)[step < 200] for images, step in asked])
        assert len(sides) > 20 and (0.2 < sides.double().mean() < 0.8 if flip else not sides.any())


def test_dropout_is_the_networks() -> None:
    modules = list(DDPM(width=4, multipliers=(1, 2), blocks=1, attention=0, dropout=0.3).network(1, 8, 2).modules())
    assert [module.p for module in modules if isinstance(module, nn.Dropout)].count(0.3) >= 5


def test_the_moving_average_warms_up() -> None:
    weight = nn.Parameter(torch.zeros((), dtype=torch.float64))
    average, expected = MovingAverage([weight], 0.9995), 0.0
    for step in range(60):
        weight.data.fill_(step + 1)
        average.update()
        decay = min(0.9995, (1 + step) / (10 + step))
        expected = decay * expected + (1 - decay) * (step + 1)
    assert average.values[0].item() == pytest.approx(expected, rel=1e-12)
    average.copy_to_parameters()
    assert weight.item() == average.values[0].item()
    # Of the random start next to nothing is left, where a constant decay leaves 97 %.
    start = MovingAverage([nn.Parameter(torch.zeros(()))], 0.9995)
    assert math.prod(min(0.9995, (1 + t) / (10 + t)) for t in range(60)) < 1e-8 and start.steps == 0


# Privacy ----------------------------------------------------------------------------------------------------------------------------


def critic_loss(network: Any, inputs: Tensor, labels: Tensor) -> Tensor:
    """Two passes through the network in one loss, as the GAN's discriminator has."""
    return F.softplus(-network(inputs)[:, 0]) + F.softplus(network(inputs + 1)[:, 0])


@pytest.mark.parametrize("physical", [3, 64])
def test_a_private_step_is_the_sum_of_clipped_gradients(physical: int) -> None:
    network = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1))
    plain, inputs = copy.deepcopy(network), 3 * torch.randn(8, 3)
    gradients = []
    for row in inputs:
        slopes = torch.autograd.grad(critic_loss(plain, row[None], row).sum(), list(plain.parameters()))
        norm = torch.cat([slope.flatten() for slope in slopes]).norm()
        gradients.append([slope * min(1.0, 0.5 / float(norm)) for slope in slopes])
    assert len({float(g[0].norm()) for g in gradients}) == 8
    privacy = PrivateTraining(noise_multiplier=1e-9, max_grad_norm=0.5, physical_batch_size=physical)
    optimizer = torch.optim.SGD(network.parameters(), lr=2.0)
    # A batch of all samples: every sample takes part with probability 1.
    train_generator(network, critic_loss, optimizer, inputs, torch.zeros(8), 1, 8, lambda *_: None, privacy)
    for parameter, start, *slopes in zip(network.parameters(), plain.parameters(), *gradients, strict=True):
        torch.testing.assert_close(parameter, start - 2.0 * sum(slopes) / 8, rtol=1e-4, atol=1e-6)


def vae_loss(network: Any, inputs: Tensor, labels: Tensor) -> Tensor:
    error, divergence = network(inputs, labels)
    return error + 2 * divergence


def gan_loss(network: Any, inputs: Tensor, labels: Tensor) -> Tensor:
    return F.softplus(-network(inputs, labels)) + F.softplus(network(inputs.flip(3), labels))


def unet_loss(network: Any, inputs: Tensor, labels: Tensor) -> Tensor:
    return (network(inputs, 3 + labels, class_labels=labels).sample - inputs.flip(3)).square().flatten(1).mean(1)


UNET = DDPM(width=4, multipliers=(1, 2), blocks=1, attention=1, head_dim=4, dropout=0.0)


@pytest.mark.parametrize(
    ("network", "loss"),
    [
        (lambda: Autoencoder((1, 8, 8), 2, 4, 8, 3), vae_loss),  # transposed convolutions
        (lambda: Critic((1, 8, 8), 4, 3), gan_loss),  # twice through everything, an embedding too
        (lambda: UNET.network(1, 8, 3), unet_loss),
    ],
    ids=["vae", "gan", "ddpm"],
)
def test_image_layers_have_gradients_of_each_sample(network: Any, loss: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Posterior, "draw", lambda self: self.mean + (0.5 * self.log_variance).exp())
    torch.manual_seed(0)
    trained_network, inputs, labels = network(), torch.rand(5, 1, 8, 8), torch.arange(5) % 3
    plain = copy.deepcopy(trained_network)
    gradients = [
        torch.autograd.grad(loss(plain, inputs[[i]], labels[[i]]).sum(), list(plain.parameters()), materialize_grads=True)
        for i in range(5)
    ]
    norms = torch.stack([torch.cat([slope.flatten() for slope in slopes]).norm() for slopes in gradients])
    longest = float(norms.median())  # some are cut
    privacy = PrivateTraining(noise_multiplier=1e-9, max_grad_norm=longest, physical_batch_size=3)
    optimizer = torch.optim.SGD(trained_network.parameters(), lr=1 / longest)
    train_generator(trained_network, loss, optimizer, inputs, labels, 1, 5, lambda *_: None, privacy)
    for (name, parameter), start, *slopes in zip(trained_network.named_parameters(), plain.parameters(), *gradients, strict=True):
        step = sum(slope / max(float(norm), longest) for slope, norm in zip(slopes, norms, strict=True)) / 5
        torch.testing.assert_close(start - parameter, step, rtol=1e-3, atol=1e-5, msg=lambda text, name=name: f"{name}: {text}")


def test_secret_noise_does_not_follow_from_the_seed(tmp_path: Path) -> None:
    def trained_weight(privacy: PrivateTraining) -> tuple[Tensor, Tensor]:
        """A private step without any gradient, which is the noise alone, and a release."""
        torch.manual_seed(3)
        network = nn.Linear(40, 1, bias=False)
        nn.init.zeros_(network.weight)
        inputs = torch.zeros(10, 40)
        optimizer = torch.optim.SGD(network.parameters(), lr=1.0)
        train_generator(network, lambda f, x, y: f(x)[:, 0], optimizer, inputs, inputs, 1, 10, lambda *_: None, privacy)
        return network.weight.detach(), Budget(privacy, extra_releases=1).release(torch.zeros(2, 40))

    public, secret = PrivateTraining(noise_multiplier=3.0), PrivateTraining(noise_multiplier=3.0, secret=True)
    noise, released = trained_weight(public)
    torch.manual_seed(3)
    nn.Linear(40, 1, bias=False)
    torch.rand(10)  # who takes part
    torch.testing.assert_close(noise, -torch.normal(0.0, 3.0, (1, 40)) / 10)
    torch.testing.assert_close(released, 3.0 * torch.randn(40))
    (first, first_released), (second, second_released) = trained_weight(secret), trained_weight(secret)
    for values in ((noise, first, second), (released, first_released, second_released)):
        assert not any(torch.isclose(a, b).any() for a, b in itertools.combinations(values, 2))
        assert all(0.5 < value.std() / values[0].std() < 2 for value in values)

    def run(folder: str, rounds: int = 1) -> Tensor:
        generator = BetaVAE(latent=2, hidden=8, epochs=1, batch_size=4, privacy=secret)
        trainer = fit(
            tmp_path / folder, Fedssyn(generator=generator, num_images=3), rounds=rounds, data=TinyData(order=(3, 5)),
            clients_per_round=2, ckpt_path="last" if rounds > 1 else None,
        )  # fmt: skip
        return trainer.federation.train.inputs[-6:]  # type: ignore[return-value]

    one, other = run("one"), run("other")
    assert not torch.isclose(one, other).all(1).any()
    assert torch.equal(run("one", rounds=2), one)  # made once, and kept


def test_the_private_setting_fits_its_budget() -> None:
    """Of the paper's clients, 75 % of 5,000 images, at every length that the table compares."""
    config = yaml.safe_load((ROOT / "configs/methods/fedssyn-private.yaml").read_text())
    given = config["trainer"]["callbacks+"][0]["init_args"]
    options, size = given["generator"]["init_args"], round(given["rho"] * 5000)
    privacy = PrivateTraining(**options["privacy"])
    budget, rate = Budget(privacy), options["batch_size"] / size
    spent = [budget.epsilon(epochs * round(1 / rate), rate) for epochs in (50, 250, options["epochs"])]
    assert privacy.max_epsilon is not None and 0.95 * privacy.max_epsilon < spent[-1] <= privacy.max_epsilon
    assert spent == pytest.approx([2.6, 6.5, 9.8], abs=0.05)  # as the table says


def test_the_noise_has_the_size_that_is_accounted_for() -> None:
    network = nn.Linear(4000, 1, bias=False)
    start, inputs = network.weight.detach().clone(), torch.zeros(10, 4000)
    privacy = PrivateTraining(noise_multiplier=3.0, max_grad_norm=0.5)
    optimizer = torch.optim.SGD(network.parameters(), lr=1.0)
    train_generator(network, lambda f, x, y: f(x)[:, 0], optimizer, inputs, torch.zeros(10), 1, 10, lambda *_: None, privacy)
    assert float((network.weight.detach() - start).std()) == pytest.approx(3.0 * 0.5 / 10, rel=0.05)


def test_epsilon_is_the_accountants() -> None:
    from opacus.accountants import RDPAccountant

    seen: list[dict[str, float]] = []
    privacy, accountant = PrivateTraining(noise_multiplier=1.3, delta=1e-3), RDPAccountant()
    network, inputs = nn.Linear(2, 1), torch.randn(30, 2)
    optimizer = torch.optim.SGD(network.parameters(), lr=0.1)

    def loss(f: Any, x: Tensor, y: Tensor) -> Tensor:
        return f(x)[:, 0].square()

    budget = train_generator(network, loss, optimizer, inputs, inputs, 3, 10, lambda _, f: seen.append(f), privacy)
    assert seen[0]["epsilon"] < seen[1]["epsilon"] < seen[2]["epsilon"]
    for _ in range(3 * 3):
        accountant.step(noise_multiplier=1.3, sample_rate=10 / 30)
    assert seen[2]["epsilon"] == pytest.approx(accountant.get_epsilon(delta=1e-3), rel=1e-9)
    assert isinstance(budget, Budget)
    few: list[dict[str, float]] = []
    limit = (seen[1]["epsilon"] + seen[2]["epsilon"]) / 2
    limited = dataclasses.replace(privacy, max_epsilon=limit)
    train_generator(network, loss, optimizer, inputs, inputs, 3, 10, lambda _, f: few.append(f), limited)
    assert [f["epsilon"] for f in few] == [f["epsilon"] for f in seen[:2]]
    with pytest.raises(ValueError, match=r"one epoch would spend epsilon .* of max_epsilon=0.01 on a client: raise noise_mult"):
        train_generator(
            network, loss, optimizer, inputs, inputs, 3, 10, lambda *_: None, dataclasses.replace(privacy, max_epsilon=0.01)
        )


def test_private_means_of_latents_are_noisy_and_paid_for() -> None:
    from opacus.accountants import RDPAccountant

    torch.manual_seed(0)
    privacy, accountant = PrivateTraining(noise_multiplier=2.0, delta=1e-5), RDPAccountant()
    budget = Budget(privacy, extra_releases=1)
    accountant.step(noise_multiplier=2.0, sample_rate=1.0)
    expected = accountant.get_epsilon(delta=1e-5)
    assert budget.epsilon() == pytest.approx(expected)  # what is still to come counts
    labels = torch.arange(40000) % 2
    latents = torch.tensor([[0.5, 0.0], [0.0, 30.0]])[labels]
    means = class_means(latents, labels, 2, budget)
    assert budget.epsilon() == pytest.approx(expected) and budget.extra_releases == 0
    # Latents are cut to a norm of sqrt(2), so that no sample weighs more than the noise allows for.
    torch.testing.assert_close(means, torch.tensor([[0.5, 0.0], [0.0, 2**0.5]]), atol=2e-3, rtol=0)
    assert not torch.equal(means, torch.tensor([[0.5, 0.0], [0.0, 2**0.5]]))
    rows: list[Tensor] = []
    budget.release = lambda contributions: rows.append(contributions) or contributions.sum(0)  # type: ignore[method-assign,func-returns-value]
    class_means(latents[:8], labels[:8], 2, budget)
    assert rows[0].flatten(1).norm(dim=1).max() <= 1 + 1e-6


@pytest.mark.parametrize("generator", [BetaVAE(latent=2, hidden=8), ConditionalGAN(latent=2, width=4)], ids=["vae", "gan"])
def test_private_runs_say_what_they_spent(generator: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    privacy = PrivateTraining(noise_multiplier=5.0)
    method = Fedssyn(generator=dataclasses.replace(generator, epochs=2, batch_size=4, privacy=privacy), num_images=3)
    trainer = fit(tmp_path, method, rounds=1, data=TinyData(order=(3, 5)), clients_per_round=2)
    (line,) = [line for line in capsys.readouterr().out.splitlines() if "privacy spent on a client: epsilon" in line]
    assert "by Opacus' Renyi accountant" in line and "noise follows the run's seed" in line and "it protects nothing" in line
    header, *rows = (trainer.run_dir / "synthetic.csv").read_text().splitlines()
    assert header == "client,epoch,loss,epsilon" and len(rows) == 4
    epsilons = [float(row.split(",")[3]) for row in rows]
    assert 0 < epsilons[0] < epsilons[1] and (trainer.run_dir / "figures" / "synthetic-epsilon-000000.png").is_file()


# As a user runs it ------------------------------------------------------------------------------------------------------------------


def test_nothing_heavy_is_imported_unasked() -> None:
    for path in [*(ROOT / "callbacks").glob("*.py"), *(ROOT / "flcog").glob("*.py")]:
        assert not re.search(r"^\s*(import|from) (diffusers|opacus)", path.read_text(), re.MULTILINE), path


@pytest.mark.parametrize("path", sorted((ROOT / "configs" / "methods").glob("*fedssyn*.yaml")), ids=lambda path: path.stem)
def test_configs_are_read(path: Path) -> None:
    config = yaml.safe_load(path.read_text())
    parser = jsonargparse.ArgumentParser()
    parser.add_argument("--config", action="config")
    parser.add_class_arguments(flcog.FederatedTrainer, "trainer", instantiate=False, sub_configs=True)
    written = {"trainer": {"rounds": 1, "local_steps": 1, **config["trainer"]}}
    callbacks = parser.instantiate(parser.parse_string(yaml.safe_dump(written))).trainer.callbacks
    for callback, given in zip(callbacks, written["trainer"]["callbacks+"], strict=True):
        arguments = dict(given.get("init_args", {}))
        if "generator" in arguments:
            # What a config does not mention is the class's own default, nested settings included.
            generator = arguments["generator"]
            values = dict(generator["init_args"])
            if "privacy" in values:
                values["privacy"] = PrivateTraining(**values["privacy"])
            arguments["generator"] = getattr(flcog.callbacks, generator["class_path"].split(".")[-1])(**values)
        assert callback == getattr(flcog.callbacks, given["class_path"].split(".")[-1])(**arguments)
