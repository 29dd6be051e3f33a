"""Attacks that know the uploads of all clients, and replace the attackers' uploads at the server."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import NormalDist
from typing import Literal

import torch
from torch import Tensor

from flcog.callbacks.robust.parts import Combine, distances
from flcog.core.checks import option
from flcog.core.types import Slot
from flcog.method import Attack, Cohort, UploadChange, UploadMatrix

STRENGTHS = tuple(0.1 * 2**i for i in range(11))
"""The strengths from 0.1 to 102.4 that an optimised attack tries."""


@dataclass(frozen=True, kw_only=True)
class OmniscientAttack(Attack, UploadChange, ABC, protocol=True):
    """An attack that knows the uploads of all clients of the round. It acts at the server, where the attackers' uploads are replaced."""

    def change(self, uploads: UploadMatrix, server: Slot, cohort: Cohort, combine: Combine) -> tuple[UploadMatrix, Slot]:
        known = self.attackers(cohort.seed, cohort.num_clients)
        evil = torch.tensor([client in known for client in uploads.clients], device=uploads.values.device)
        if not evil.any() or evil.all():
            return uploads, server

        def attacked(forged: Tensor) -> UploadMatrix:
            return uploads._replace(values=torch.where(evil.unsqueeze(1), forged, uploads.values))

        honest = [client for client in uploads.clients if client not in known]
        view = AttackerView(uploads.values[~evil], honest, int(evil.sum()), cohort, lambda forged: combine(attacked(forged)))
        forged, new = self.forge(view, server)
        return attacked(forged), new

    @abstractmethod
    def forge(self, view: "AttackerView", server: Slot) -> tuple[Tensor, Slot]:
        """The upload of all attackers [d], and the attack's new state at the server. *Plain Python.*"""


@dataclass(frozen=True)
class AttackerView:
    """A round as omniscient attackers see it.

    They know the other clients' uploads [n - f, d], these clients, the number f of attackers, and ``combine``, the server's result if
    all attackers send an upload.
    """

    honest: Tensor
    clients: Sequence[int]
    count: int
    cohort: Cohort
    combine: Callable[[Tensor], Tensor]

    def std(self) -> Tensor:
        """Each coordinate's standard deviation over the honest uploads; ``torch.std`` along the rows takes five times as long."""
        return (self.honest - self.honest.mean(0)).square_().sum(0).div_(max(1, len(self.honest) - 1)).sqrt_()

    def strongest(self, forge: Callable[[float], Tensor]) -> Tensor:
        """The forged upload that moves the server's result farthest from the honest mean."""
        mean = self.honest.mean(0)
        distances = [float((self.combine(forge(strength)) - mean).norm()) for strength in STRENGTHS]
        return forge(STRENGTHS[distances.index(max(distances))])


@dataclass(frozen=True)
class ALittleIsEnough(OmniscientAttack):
    """Lets attackers send the honest mean, moved by z standard deviations of the honest updates.

    ::

        u = mean - z std,   z = Phi^-1((n - f - s) / (n - f)),   s = floor(n / 2 + 1) - f

    The default z counts the n clients and f attackers of the round: the attackers and the s honest clients farthest away are a majority.
    Omniscient: the attackers know the uploads of all honest clients.

    Baruch et al., A Little Is Enough: Circumventing Defenses For Distributed Learning, NeurIPS 2019, https://arxiv.org/abs/1902.06156.

    Args:
        z: the number of standard deviations; None computes it.
        optimised: whether attackers choose the strength from 0.1 to 102.4 that moves the server's result farthest, in the place of
            ``z``. They then know the rule, too, and it is computed eleven times more in each round.

    Example:
        >>> round(default_strength(25, 5), 3)
        0.253
    """

    z: float | None = None
    optimised: bool = False

    def forge(self, view: AttackerView, server: Slot) -> tuple[Tensor, Slot]:
        mean, std = view.honest.mean(0), view.std()
        if self.optimised:
            return view.strongest(lambda z: mean - z * std), server
        z = default_strength(len(view.honest) + view.count, view.count) if self.z is None else self.z
        return mean - z * std, server


def default_strength(clients: int, attackers: int) -> float:
    """The paper's z. It is 0 at least, and finite if attackers are the majority."""
    needed = max(1, clients // 2 + 1 - attackers)
    honest = clients - attackers
    return NormalDist().inv_cdf(max(0.5, (honest - needed) / honest))


@dataclass(frozen=True)
class InnerProductManipulation(OmniscientAttack):
    """Lets attackers send a multiple of the opposite of the honest mean.

    ::

        u = -epsilon mean

    A small epsilon slows training and is hard to detect; a large one turns the mean around. Omniscient: the attackers know the uploads of
    all honest clients.

    Xie et al., Fall of Empires: Breaking Byzantine-Tolerant SGD by Inner Product Manipulation, UAI 2019, https://arxiv.org/abs/1903.03936,
    use 0.1 and 100.

    Args:
        epsilon: > 0.
        optimised: whether attackers choose the strength from 0.1 to 102.4 that moves the server's result farthest, in the place of
            ``epsilon``. They then know the rule, too, and it is computed eleven times more in each round.
    """

    epsilon: float = option(0.1, "> 0")
    optimised: bool = False

    def forge(self, view: AttackerView, server: Slot) -> tuple[Tensor, Slot]:
        mean = view.honest.mean(0)
        return (view.strongest(lambda epsilon: -epsilon * mean) if self.optimised else -self.epsilon * mean), server


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
    """

    warmup: int = option(1, ">= 1")

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


@dataclass(frozen=True)
class MinMax(OmniscientAttack):
    """Lets attackers move the honest mean as far as possible, at most as far from any honest update as two of those are apart.

    ::

        u = mean + gamma p,   gamma = max { gamma : max_i ||u - u_i|| <= max_{i,j} ||u_i - u_j|| }

    The direction p is -std of the honest updates, the unit vector -mean / ||mean||, or -sign(mean). gamma solves a quadratic equation for
    each honest update; the paper searches it. Omniscient: the attackers know the uploads of all honest clients.

    Shejwalkar and Houmansadr, Manipulating the Byzantine: Optimizing Model Poisoning Attacks and Defenses for Federated Learning,
    NDSS 2021, https://doi.org/10.14722/ndss.2021.24498.

    Args:
        direction: ``std``, ``unit`` or ``sign``.
    """

    direction: Literal["std", "unit", "sign"] = "std"

    def forge(self, view: AttackerView, server: Slot) -> tuple[Tensor, Slot]:
        mean = view.honest.mean(0)
        if self.direction == "std":
            p = -view.std()
        elif self.direction == "unit":
            p = -mean / mean.norm().clamp(min=1e-30)
        else:
            p = -mean.sign()
        apart = mean - view.honest
        square, half, rest = p.square().sum(), apart @ p, apart.square().sum(1) - distances(view.honest).max().square()
        gamma = ((half.square() - square * rest).clamp(min=0).sqrt() - half) / square.clamp(min=1e-30)
        return mean + gamma.min() * p, server
