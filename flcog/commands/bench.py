"""The command ``flcog bench``: seconds per round of a config's run, against a bare PyTorch loop of the same SGD steps."""

import copy
import math
import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from flcog.apply import masked_mean
from flcog.commands.profile import check_folder, profile_round
from flcog.core.fabric import num_cores
from flcog.core.randomness import fold_each
from flcog.core.trees import Tree, map_leaves, rows
from flcog.data import Samples
from flcog.engine.batching import BLOCK_BYTES, Batching


def bench(trainer: Any, model: Any, datamodule: Any, repeats: int = 5, seconds: float = 60.0, profile: str | None = None) -> None:
    """Time the config's rounds against a bare PyTorch loop of the same SGD steps.

    Evaluation, trackers and checkpoints are left out of both sides: what is compared is training. The bare loop is what one writes by
    hand: a deep copy of the model and a new optimiser for each client, its batches gathered once and sliced, contiguous tensors, a sum
    of state dicts. It runs on every core of the machine, in one process; that freed memory is kept for reuse helps it as it helps us.

    Both run in turn until the median of their ratio is known to 5 %, or until the time is up, which a noisy machine is told of.

    Images are also read for an epoch as the engine reads them, and by a ``DataLoader`` over torchvision's transforms.

    Args:
        repeats: how often each is run at least.
        seconds: after so many, no further round begins.
        profile: a file for a trace of one more round, as torch's profiler writes it; a table of where its time goes is printed.
    """
    if repeats < 1:
        raise ValueError(f"repeats must be at least 1; got {repeats}")
    if profile is not None:
        check_folder(profile)
    trainer.prepare(model, datamodule)
    processes, baseline = trainer.run.processes, BareLoop(trainer) if trainer.run.processes.is_first else None
    _time_round(trainer, baseline, 0)  # to warm up
    pairs: list[tuple[float, float]] = []
    began, going_on = time.perf_counter(), True
    while going_on:
        pairs.append(_time_round(trainer, baseline, 1 + len(pairs)))
        time_is_up = time.perf_counter() - began >= seconds
        going_on = processes.agree(len(pairs) < repeats or not (time_is_up or _settled(pairs)))
    if baseline is not None:
        _print(trainer, pairs)
        bench_reading(trainer, repeats)
    if profile is not None:
        profile_round(trainer, profile)


def _time_round(trainer: Any, baseline: "BareLoop | None", repeat: int) -> tuple[float, float]:
    """Seconds of one round of ours, and of the bare loop's (0 where this process does not run it)."""
    began = time.perf_counter()
    trainer.train_round()
    synchronise(trainer)
    ours, bare = time.perf_counter() - began, 0.0
    if baseline is not None:
        threads = torch.get_num_threads()
        torch.set_num_threads(num_cores())
        began = time.perf_counter()
        baseline.round(repeat)
        _wait_for_device(trainer)
        bare = time.perf_counter() - began
        torch.set_num_threads(threads)
    synchronise(trainer)
    return ours, bare


STABLE = 0.05
"""How well the median of the ratio is to be known."""


def uncertainty(values: Sequence[float]) -> float:
    """Half of the interval within which the median lies, relative to it, by McGill, Tukey and Larsen, 1978: 1.57 times the quartiles'
    distance, over the root of their number."""
    if len(values) < 2:
        return math.inf
    low, middle, high = np.quantile(values, [0.25, 0.5, 0.75])
    return float(1.57 * (high - low) / middle / len(values) ** 0.5)


def _settled(pairs: Sequence[tuple[float, float]]) -> bool:
    return uncertainty([ours / bare for ours, bare in pairs if bare]) <= STABLE


def _print(trainer: Any, pairs: Sequence[tuple[float, float]]) -> None:
    engine, ratios = trainer.run.engine, [ours / bare for ours, bare in pairs]
    threads, doubt = torch.get_num_threads(), uncertainty(ratios)
    print(f"executor {engine.executor.name}, {engine.processes.count} process(es), {threads} thread(s) each, {len(pairs)} rounds")
    ratio = statistics.median(ratios)
    for name, value in (
        ("flcog", statistics.median(ours for ours, _ in pairs)),
        ("bare", statistics.median(b for _, b in pairs)),
    ):
        print(f"{name:<6} {value:.4f} s a round")
    print(f"ratio  {ratio:.3f} +- {doubt * ratio:.3f}")
    if doubt > STABLE:
        spread = f"{len(ratios)} rounds lie between {min(ratios):.3f} and {max(ratios):.3f}"
        print(f"this machine is noisy: {spread}; free it, or give more --seconds")


def bench_reading(trainer: Any, repeats: int, most: int = 5000) -> None:
    """Print the seconds to read (up to ``most`` of) an epoch's images, augmented if the data module augments; nothing for other data."""
    from torchvision import transforms

    federation = trainer.run.federation
    samples = federation.train
    if getattr(samples.inputs, "ndim", 0) != 4 or samples.inputs.dtype not in (torch.uint8, np.uint8):
        return
    count = min(most, len(samples))
    size, batch_size = samples.inputs.shape[1], trainer.run.engine.batching.batch_size
    augmented = [transforms.RandomCrop(size, 4), transforms.RandomHorizontalFlip()] if federation.augment is not None else []
    loader = DataLoader(
        _Pictures(samples, transforms.Compose([*augmented, transforms.ToTensor()]), count), batch_size, shuffle=True
    )
    ours, theirs = [], []
    for repeat in range(repeats):
        order = np.random.default_rng(repeat).permutation(count)
        keys = fold_each(repeat, order)
        began = time.perf_counter()
        block = max(1, BLOCK_BYTES // trainer.run.engine.reader.bytes_per_sample)
        for first in range(0, count, block):
            indices = torch.from_numpy(order[first : first + block]).to(trainer.fabric.device)
            federation.load(samples, indices, trainer.fabric.device, keys[first : first + block])
        _wait_for_device(trainer)
        ours.append(time.perf_counter() - began)
        began = time.perf_counter()
        for _ in loader:
            pass
        theirs.append(time.perf_counter() - began)
    print(
        f"reading {count} images{', augmented' if augmented else ''}: {statistics.median(ours):.4f} s; "
        f"by a DataLoader over torchvision's transforms: {statistics.median(theirs):.4f} s"
    )


class _Pictures(Dataset):
    """Samples one by one, as PIL images through torchvision's transforms: how tutorials read them."""

    def __init__(self, samples: Samples, transform: Callable[[Any], Tensor], count: int) -> None:
        self.samples, self.transform, self.count = samples, transform, count

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        image = np.asarray(self.samples.inputs[index])
        return self.transform(Image.fromarray(image.squeeze(-1) if image.shape[-1] == 1 else image)), self.samples.targets[index]


def synchronise(trainer: Any) -> None:
    """Wait for the device and for the other processes."""
    _wait_for_device(trainer)
    trainer.fabric.barrier()


def _wait_for_device(trainer: Any) -> None:
    if trainer.fabric.device.type == "cuda":
        torch.cuda.synchronize()


class BareLoop:
    """FedAvg with nothing around it, on the trainer's model, data and optimiser settings; methods play no part."""

    def __init__(self, trainer: Any) -> None:
        self.trainer = trainer
        self.server = copy.deepcopy(trainer.run.model.module)
        self.device = trainer.fabric.device
        federation, self.batching = trainer.run.federation, trainer.run.engine.batching
        everything = torch.arange(len(federation.train), device=self.device)
        batch = federation.load(federation.train, everything, self.device)
        self.inputs, self.targets = (map_leaves(Tensor.contiguous, part) for part in batch)

    def round(self, round: int) -> None:
        trainer, partition = self.trainer, self.trainer.run.federation.partition
        clients = trainer.sample(round)
        sizes = [len(partition.client(k)) for k in clients]
        total = {name: torch.zeros_like(value) for name, value in self.server.state_dict().items()}
        for client, size in zip(clients, sizes, strict=True):
            model = copy.deepcopy(self.server)
            optimizer = model.configure_optimizers()
            inputs, targets, starts, batch_sizes = self._shuffled(torch.from_numpy(partition.client(client)), size)
            for start, batch_size in zip(starts, batch_sizes, strict=True):
                optimizer.zero_grad()
                own = slice(start, start + batch_size)
                outputs = model(rows(inputs, own))
                masked_mean(model.per_example_loss(outputs, rows(targets, own)), None).backward()
                optimizer.step()
            for name, value in model.state_dict().items():
                total[name] += (value * (size / sum(sizes))).to(value.dtype)
        self.server.load_state_dict(total)

    def _shuffled(self, indices: Tensor, size: int) -> tuple[Tree, Tree, list[int], list[int]]:
        batching: Batching = self.batching
        starts, sizes, passes = batching.layout(size, batching.num_steps(size))
        order = torch.cat([indices[torch.randperm(size)] for _ in range(passes)])[: int(starts[-1] + sizes[-1])].to(self.device)
        return rows(self.inputs, order), rows(self.targets, order), starts.tolist(), sizes.tolist()
