"""Times clients in Lightning's loops and ``lightning.Trainer`` in pairs of processor time: ``python benchmarks/faithful.py``."""

import logging
import statistics
import sys
import time
import warnings
from collections.abc import Callable
from typing import Any

import lightning as L
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import flcog

ROUNDS, CLIENTS, STEPS, BATCH = 2, 10, 15, 20


class Lit(L.LightningModule):
    """A small network, so that the loops take most of the time."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(20, width), nn.ReLU(), nn.Linear(width, 5))

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        loss = nn.functional.cross_entropy(self.net(batch[0]), batch[1])
        self.log("train_loss", loss)
        return loss

    def on_train_batch_start(self, batch: Any, batch_idx: int) -> None:
        pass

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), lr=0.1, momentum=0.9)


QUIET: dict[str, Any] = {"accelerator": "cpu", "logger": False} | dict.fromkeys(
    ("enable_progress_bar", "enable_model_summary", "enable_checkpointing"), False
)


def points(count: int) -> TensorDataset:
    return TensorDataset(torch.randn(count, 20), torch.randint(5, (count,)))


def by_lightning(width: int) -> Callable[[], None]:
    """As many epochs as rounds, each with the steps of all clients."""
    trainer = L.Trainer(max_epochs=ROUNDS, **QUIET)
    return lambda: trainer.fit(Lit(width), DataLoader(points(CLIENTS * STEPS * BATCH), batch_size=BATCH))


def by_flcog(width: int) -> Callable[[], Any]:
    trainer = flcog.FederatedTrainer(rounds=ROUNDS, clients_per_round=CLIENTS, local_epochs=1, eval_every=0, **QUIET)
    data = flcog.datamodules.TorchDataset(points(CLIENTS * STEPS * BATCH), num_clients=CLIENTS, batch_size=BATCH)
    trainer.prepare(Lit(width), data)
    return lambda: [trainer.train_round() for _ in range(ROUNDS)]


def seconds(make: Callable[[int], Callable[[], Any]], width: int) -> float:
    run, began = make(width), time.process_time()
    run()
    return time.process_time() - began


def main(pairs: int = 9) -> None:
    warnings.simplefilter("ignore")
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    torch.set_num_threads(1)
    for width in (32, 512):
        seconds(by_lightning, width), seconds(by_flcog, width)
        times = [(seconds(by_lightning, width), seconds(by_flcog, width)) for _ in range(pairs)]
        theirs, ours = (statistics.median(part) for part in zip(*times, strict=True))
        ratio = statistics.median(own / other for other, own in times)
        steps = ROUNDS * CLIENTS * STEPS
        print(
            f"width {width}: {1e3 * theirs / steps:.2f} ms a step, flcog {1e3 * ours / steps:.2f} ms, ratio {ratio:.2f} in {pairs} pairs"
        )


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
