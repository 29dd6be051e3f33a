"""Clients of another process or institution train by the same contract: their module sees the hooks of rounds there."""

from typing import Any

import torch
from engine.test_remote_clients import Inside
from harness import SIZES, TinyData, make_trainer

from faithful.modules import Plain
from flcog.client.remote import RemoteClients


class Rounds(Plain):
    """Records what its hooks of rounds see."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[Any] = []

    def on_train_start(self) -> None:
        self.seen.append("start")

    def on_train_epoch_start(self) -> None:
        self.seen.append((self.current_epoch, {name: value.detach().clone() for name, value in self.named_parameters()}))

    def on_train_epoch_end(self) -> None:
        self.seen.append("end")

    def on_train_batch_end(self, *args: Any) -> None:
        """A hook for which it trains in Lightning's loops."""


def test_hooks_of_rounds_fire_at_hosts_with_the_received_model() -> None:
    trainer, data = make_trainer(None, executor="auto", clients_per_round=len(SIZES)), TinyData()
    modules = [Rounds() for _ in range(3)]
    trainer.connect(RemoteClients([Inside(trainer, modules[1 + first], data, first) for first in (0, 1)]))
    trainer.prepare(modules[0], data)
    received = []
    for _ in range(2):
        received.append(dict(trainer.run.server.params))
        trainer.train_round()
    for module in modules[1:]:
        start, (epoch, first), end, (next_epoch, second) = module.seen
        assert (start, epoch, end, next_epoch) == ("start", 0, "end", 1)
        for seen, sent in zip((first, second), received, strict=True):
            assert all(torch.equal(seen[name], value) for name, value in sent.items())
