"""Mimic: attackers send an honest client's update, and overrepresent it."""

from dataclasses import dataclass

import torch
from torch import Tensor

from flcog.callbacks.attacks.parts import AttackerView, OmniscientAttack
from flcog.core.checks import at_least
from flcog.core.types import Slot


@dataclass(frozen=True)
class Mimic(OmniscientAttack):
    """Lets all attackers send the update of one honest client, which no rule can tell from an honest one.

    They choose the client farthest along the direction of the largest differences between honest updates, by a step of power iteration in
    each of the first ``warmup`` rounds (t = 0, 1, ...), and copy it from then on::

        mu <- (t mu + mean) / (t + 1)
        z  <- normalised(t z + normalised(sum_k <u_k - mu, z> (u_k - mu)))
        u  =  u_i,   i = argmax_k <u_k, z>

    In a round without the chosen client they copy the farthest client of the round. Omniscient: the attackers know the uploads of all
    honest clients.

    Karimireddy et al., Byzantine-Robust Learning on Heterogeneous Datasets via Bucketing, ICLR 2022, https://arxiv.org/abs/2006.09365.

    Args:
        warmup: the number of rounds before the choice is final, at least 1, as in the authors' program.

    Example:
        >>> Mimic(count=5).warmup
        1
    """

    warmup: int = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        at_least(self, 1, "warmup")

    def forge(self, view: AttackerView, server: Slot) -> tuple[Tensor, Slot]:
        mean, t = view.honest.mean(0), int(server.get("rounds", 0))
        if t and server["z"].shape != mean.shape:  # other methods begin or end to send messages
            server, t = {}, 0
        z = server["z"] if t else torch.randn(len(mean), generator=view.cohort.rng(self.name)).to(mean)
        mu = (t * server["mean"] + mean) / (t + 1) if t else mean
        if t < self.warmup:
            apart = view.honest - mu
            step = (apart @ z) @ apart
            z = t * z + step / step.norm().clamp(min=1e-30)
            z = z / z.norm().clamp(min=1e-30)
        target = None if t < self.warmup else int(server["target"])
        chosen = view.clients.index(target) if target in view.clients else int((view.honest @ z).argmax())
        new = view.clients[chosen] if target is None else target
        return view.honest[chosen], {"rounds": torch.tensor(t + 1), "z": z, "mean": mu, "target": torch.tensor(new)}
