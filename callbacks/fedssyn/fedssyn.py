"""Fedssyn: clients share synthetic data once, shuffled, before the first round."""

import shlex
import sys
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from matplotlib.figure import Figure
from torch import Tensor

from flcog.callbacks.fedssyn.generators.base import DataGenerator, Form
from flcog.callbacks.fedssyn.generators.beta_vae import BetaVAE
from flcog.callbacks.fedssyn.generators.private_training import PrivateTraining
from flcog.callbacks.fedssyn.shuffling import SampleExchange, answer_of_shuffle, mix_real, share_real, share_synthetic
from flcog.callbacks.fedssyn.synthesis_cache import Synthesis, export_images, synthetic_sets, training_logs
from flcog.callbacks.parts.image_grid import image_grid
from flcog.core.checks import option
from flcog.core.files import RUN_REMEDY, short, write_table
from flcog.core.randomness import fold
from flcog.core.trees import num_bytes
from flcog.data import LABELLED, Exchange, Federation, Partition
from flcog.method import Ask, DataExchange, DataHost, ExchangeSummary, Run


@dataclass(frozen=True, kw_only=True)
class Fedssyn(DataExchange):
    """Lets each client send synthetic data once, before the first round; shuffled, they become part of all clients' data.

    Client i, with samples D_i, trains a class-conditional generator on a random fraction rho of them and draws n~ labelled
    samples with the class frequencies of that fraction. The server shuffles the samples of all N clients and splits them evenly::

        D^_i = D_i + (D~_1 + ... + D~_N)_si,     |(.)_si| = n~,     p = n~ / (n_i + n~)

    All methods of the run train on D^_i in all rounds. The mean squared distance of the clients' gradients from their average
    falls to (1 - p)^2 of its value without the exchange. The ledger counts the exchange before round 1, each image once up and
    once down: over R rounds a client and the server exchange 2 M_s + 2 R M_c bytes. The synthetic data are only as private as
    their generator: see :class:`PrivateTraining`. ``flcog synthesize`` stops after generating the images, so that people can look
    at them and delete images that must not be sent.

    ``directory`` stores the synthetic sets under a hash of everything that they depend on. A killed run therefore continues with
    the client that was interrupted, and runs that differ only in ``share`` or ``p`` use the same sets. The sets depend on the
    seed and the client, not on the number of processes. A checkpoint records each client's samples: a run cannot resume from it
    after images were deleted or generated again.

    Li et al. 2024, Synthetic data shuffling accelerates the convergence of federated learning under data heterogeneity,
    https://arxiv.org/abs/2306.13263; https://github.com/lyn1874/fedssyn.

    Args:
        share: the use of the synthetic data. ``shuffled`` is Fedssyn; ``local`` leaves each client its own synthetic data;
            ``real`` generates none, and shuffles a fraction p of each client's own samples instead, for comparison and for tasks
            other than classification (between processes these must be in memory or in a cache); ``none`` exchanges nothing.
        generator: :class:`DDPM` (the paper's for photographs), :class:`BetaVAE` (its for dSprites, also for tables; the default)
            or :class:`ConditionalGAN`.
        rho: fraction of its samples on which a client trains the generator, in (0, 1].
        num_images: n~, the number of samples that each client generates, >= 1; None for the clients' mean number of samples, as
            in the paper.
        p: largest synthetic part of a client's data, in (0, 1]. Clients then send and receive fewer samples. None: no limit.
            With share=real it is the shuffled fraction, n~ / (n_i + n~) by default.
        directory: the folder of the synthetic sets; None for ``synthetic`` under ``trainer.default_root_dir``.
        keep_own: whether clients also train on their own samples; if not, they train only on the synthetic samples they receive.
            With :class:`~flcog.callbacks.Centralized` after it, that is the paper's line of centralised synthetic data (Figure 3).
    """

    share: Literal["shuffled", "local", "real", "none"] = "shuffled"
    # None, not BetaVAE(): the YAML parser would pass a default object's values on to the class that a config names instead.
    generator: DataGenerator | None = None
    rho: float = option(0.75, "(0, 1]")
    num_images: int | None = option(None, ">= 1")
    p: float | None = option(None, "(0, 1]")
    directory: str | None = None
    keep_own: bool = True

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.generator is None:
            object.__setattr__(self, "generator", BetaVAE())
        if not self.keep_own and self.share in ("real", "none"):
            raise ValueError(
                f"Fedssyn: keep_own=false leaves clients only synthetic data, and share={self.share} generates none: set "
                "share=shuffled or local"
            )

    @property
    def tasks(self) -> tuple[str, ...]:  # type: ignore[override]
        """Only generators need classes."""
        return LABELLED if self.share in ("real", "none") else ("classification",)

    @property
    def plain_batches(self) -> bool:  # type: ignore[override]
        """Only generators need inputs that are a single tensor; real samples are shared unchanged."""
        return self.share not in ("real", "none")

    @property
    def is_private(self) -> bool:  # type: ignore[override]
        return getattr(self.generator, "privacy", None) is not None

    @property
    def public_noise(self) -> str:
        privacy: PrivateTraining | None = getattr(self.generator, "privacy", None)
        return "" if privacy is None or privacy.secret else "set generator.privacy.secret to true"

    @property
    def exchanges_data(self) -> bool:
        return self.share != "none"

    def ask_clients(self, ask: Ask, sizes: Tensor, rng: torch.Generator) -> ExchangeSummary:
        self._check_rounds()
        count, shuffle = self._count(sizes.numpy()), np.random.default_rng(fold(rng.initial_seed(), "shuffle"))
        if self.share == "real":
            return share_real(ask, sizes.numpy(), count, self.p, shuffle)
        return share_synthetic(ask, sizes.numpy(), count, self.p, self.share == "local", shuffle)

    def answer(self, step: str, messages: Mapping[int, Any], host: DataHost) -> dict[int, Any]:
        if step == "generate":
            Form.of(host.federation.train)  # refuses inputs that cannot be generated
            assert self.generator is not None
            synthesis = Synthesis(self.generator, self.rho, next(iter(messages.values())), host.seed)
            shared = host.workspace and host.workspace / "synthetic"
            root = shared if self.directory is None else Path(self.directory)
            sets, folder = synthetic_sets(synthesis, host.federation, root, list(messages))
            host.memory |= {"sets": dict(zip(messages, sets, strict=True)), "folder": folder}
            return {client: len(labels) for client, (_, labels) in host.memory["sets"].items()}
        return answer_of_shuffle(step, messages, host, self.keep_own)

    def prepare_data(self, federation: Federation, rng: torch.Generator, workspace: Path | None) -> Exchange:
        """Where all clients are in this process, real samples change hands by indices, so that none is copied."""
        if self.share != "real":
            return super().prepare_data(federation, rng, workspace)
        self._check_rounds()
        before, shuffle = federation.partition, np.random.default_rng(fold(rng.initial_seed(), "shuffle"))
        own, received = mix_real(before, self._count(before.sizes), self.p, shuffle)
        clients = [np.concatenate([own.client(k), received.client(k)]) for k in range(federation.num_clients)]
        changed = replace(federation, partition=Partition.from_clients(clients), whole=federation.split)
        sample = num_bytes(federation.train.gather(torch.zeros(1, dtype=torch.int64))) + 8  # and its label
        sent = (len(received.indices) * sample,) * 2
        return SampleExchange(changed, sent, before=before, own=own, received=received)

    def on_fit_start(self, run: Run) -> None:
        exchange = run.method_record(self.name).exchange
        if not run.processes.is_first or not isinstance(exchange, SampleExchange) or run.directory is None:
            return
        what = {"shuffled": "shuffled synthetic", "local": "their own synthetic", "real": "shuffled real"}[self.share]
        shares = exchange.shares
        print(f"{self.name}: clients train on {shares.min():.1%} to {shares.max():.1%} {what} samples", flush=True)
        if self.share == "real":
            return
        rows = [] if exchange.folder is None else training_logs(exchange.folder)
        if rows:
            write_table(run.directory / "synthetic.csv", rows, remedy=RUN_REMEDY)
            spent = [row["epsilon"] for row in rows if "epsilon" in row]
            if spent:
                privacy = self.generator.privacy  # type: ignore[union-attr]
                assert privacy is not None
                print(f"{self.name}: privacy spent on a client: {privacy.report(max(spent))}", flush=True)
                run.trackers.log_figure("synthetic/epsilon", epsilon_figure(rows, privacy), run.round)
        if Form.of(run.federation.train).images:
            figure = received_figure(run.federation, exchange)
            run.trackers.log_figure("synthetic/images", figure, run.round)

    def _check_rounds(self) -> None:
        if self.start_round or self.stop_round is not None:
            raise ValueError("Fedssyn exchanges data before round 1 and for all rounds: leave out start_round and stop_round")

    def _count(self, sizes: np.ndarray) -> int:
        """The number n~ of samples that each client generates."""
        return self.num_images or round(int(sizes.sum()) / len(sizes))


def received_figure(federation: Federation, exchange: SampleExchange, max_clients: int = 10, max_images: int = 12) -> Figure:
    """The first synthetic images that each client trains on, one row for each client."""
    clients = range(min(max_clients, federation.num_clients))
    form, rows = Form.of(federation.train), []
    for client in clients:
        chosen = torch.from_numpy(exchange.received.client(client)[:max_images]).to(federation.train.targets.device)
        rows.append(form.encode(federation.train.gather(chosen)).permute(0, 2, 3, 1).cpu())
    return image_grid(rows, [f"client {client}" for client in clients], columns=max_images, cell=0.75)


def epsilon_figure(rows: list[dict[str, float]], privacy: PrivateTraining) -> Figure:
    """The epsilon that each client's training spent, by epoch."""
    figure = Figure(figsize=(5, 3.2), layout="constrained")
    axes = figure.subplots()
    for client in sorted({row["client"] for row in rows}):
        own = [row for row in rows if row["client"] == client and "epsilon" in row]
        axes.plot([row["epoch"] for row in own], [row["epsilon"] for row in own], linewidth=1)
    axes.set(xlabel="epoch", ylabel="epsilon, by Opacus' Renyi accountant")
    axes.set_title("" if privacy.secret else "seeded noise: it protects nothing", fontsize=9)
    return figure


def synthesize(trainer: Any, model: Any, datamodule: Any) -> None:
    """Generate the synthetic images that Fedssyn's clients would send, and stop: look at them, delete some, then run fit.

    >>> from flcog.callbacks import COMMANDS
    >>> "synthesize" in [command.name for command in COMMANDS]
    True
    """
    trainer.prepare(model, datamodule, keep_files=True)
    run = trainer.run
    chosen = [method for method in run.methods if isinstance(method, Fedssyn)]
    exchange = run.method_record(chosen[0].name).exchange if chosen else None
    if not isinstance(exchange, SampleExchange) or exchange.folder is None:
        raise ValueError("there is nothing to synthesize: add Fedssyn to trainer.callbacks, with share=shuffled or local")
    if not run.processes.is_first:
        return
    images, left, total = export_images(exchange.folder, run.federation)
    print(f"{left:,} of {total:,} synthetic images are in {short(images)}, by client and class")
    print("Delete the images that must not be sent. This command shares the others:")
    print(f"  {shlex.join(['flcog', *['fit' if word == 'synthesize' else word for word in sys.argv[1:]]])}")
    print(f"To start over, delete {short(exchange.folder)}.")
