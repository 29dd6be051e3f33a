"""DPFedAvg: federated averaging that protects all data of each client, by clipped uploads and Gaussian noise."""

import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from itertools import count
from math import nan
from typing import Any, Literal

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from flcog.callbacks.clip_update import is_float
from flcog.callbacks.parts.noise import draw_key, normal
from flcog.callbacks.privacy.accountant import check_delta, noise_for
from flcog.callbacks.privacy.banded_noise import BandedNoise
from flcog.callbacks.privacy.clipping import clip, layers, total_bound, with_message, without_messages
from flcog.callbacks.privacy.discrete_noise import longest, noisy_whole_numbers, value_of_one
from flcog.callbacks.privacy.guarantee import Guarantee, guarantee_of
from flcog.callbacks.privacy.leaks import EXCLUDED, check_beside, is_withheld
from flcog.core.checks import option, positive_and_finite
from flcog.core.precision import number_dtype
from flcog.core.types import Params, Slot
from flcog.method import (
    ClientView,
    Cohort,
    Context,
    Envelope,
    GlobalModel,
    Messages,
    Normal,
    PrivateSum,
    SealedSum,
    Selection,
    Training,
    method_of,
)


@dataclass(frozen=True)
class DPFedAvg(PrivateSum):
    """Clips everything that a client sends, and adds Gaussian noise to the sums of each round.

    With m the expected number of clients of a round, C the bound and z the noise multiplier::

        u_k <- u_k min(1, C / ||u_k||)
        u    = 1/m [ sum_k u_k + N(0, z^2 C^2 I) ]

    The model's change, the change of BatchNorm's statistics, and each method's messages have bounds C_f of their own, and
    C^2 = sum_f C_f^2. The server clips again after decoding. Weights do not depend on the other clients: each client counts once, or
    min(1, n_k / full_weight) times. The training is then (epsilon, delta)-private for the addition or removal of all data of one
    client; with cohorts of a fixed size, for its replacement. List ``PoissonSampling`` for the smallest epsilon. A round without any
    client takes a step of noise.

    Noise and cohorts come from the operating system's entropy. Gaussian noise in floating-point numbers is a simulation of the
    mechanism: it does not protect against an attack on their last digits. ``docs/privacy.md`` lists everything that is refused or withheld.

    McMahan et al., Learning Differentially Private Recurrent Language Models, ICLR 2018, https://arxiv.org/abs/1710.06963; Andrew et
    al., Differentially Private Learning with Adaptive Clipping, NeurIPS 2021, https://arxiv.org/abs/1905.03871 (``quantile``).

    Args:
        clip: the bound C_f of the model's change and of every sender that ``bounds`` does not name, > 0.
        bounds: the bounds of other senders: ``buffers`` for BatchNorm's statistics, or a method's name for its messages.
        per_layer: whether each layer has a bound of its own, C_f divided by the root of the number of layers.
        quantile: adapts the model's bound to this quantile of the clients' norms, in (0, 1); None for a fixed bound. The noise grows so
            that the noisy counts of clients within the bound are paid for.
        clip_lr: step size of the adaptive bound, > 0.
        count_noise: standard deviation of the noise on these counts, > 0; None for a twentieth of the cohort.
        noise_multiplier: z, >= 0; 0 adds no noise and guarantees nothing. None takes the smallest that keeps to
            ``target_epsilon``, and 1 without it.
        target_epsilon: the budget, > 0: the run stops before a round that exceeds it. None for no budget.
        delta: in (0, 1 / clients); None takes clients^-1.1.
        full_weight: the number of samples from which on a client has the full weight, >= 1; None weighs all clients alike.
        noise_at: ``server``; or ``clients``, where each client adds its part of the noise, and the server the part of missing clients.
            Beside ``SecureAggregation`` it must be ``clients``: the noise is discrete, and nobody adds that of missing clients.
        noise_cohort_size: adds noise as for cohorts of this size, to study large federations with small ones, >= 1. Epsilon is then that
            of a federation that is larger in the same ratio, and its column is ``privacy/epsilon_if_scaled``.
        noise: :class:`BandedNoise` correlates the noise over rounds, for cohorts of a fixed size. None for independent noise.
        repeatable: whether cohorts and noise come from the run's seed. This protects nothing.
    """

    clip: float = option(1.0, "(0, inf)")
    bounds: Mapping[str, float] = field(default_factory=dict)
    per_layer: bool = False
    quantile: float | None = option(None, "(0, 1)")
    clip_lr: float = option(0.2, "> 0")
    count_noise: float | None = option(None, "(0, inf)")
    noise_multiplier: float | None = option(None, "[0, inf)")
    target_epsilon: float | None = option(None, "(0, inf)")
    delta: float | None = option(None, "(0, 1)")
    full_weight: int | None = option(None, ">= 1")
    noise_at: Literal["server", "clients"] = "server"
    noise_cohort_size: int | None = option(None, ">= 1")
    noise: BandedNoise | None = None
    repeatable: bool = False

    excludes = EXCLUDED
    is_private = True

    def __post_init__(self) -> None:
        super().__post_init__()
        positive_and_finite(self, **self.bounds)  # type: ignore[arg-type]
        given = next((name for name in ("full_weight", "quantile", "noise") if getattr(self, name) is not None), None)
        if self.noise_at == "clients" and given is not None:
            needs = "noise_at=clients needs clients of equal weight, a fixed bound and independent noise"
            raise ValueError(f"{self.name}: {needs}; got {given}: set it to null")

    @property
    def secret(self) -> bool:
        return not self.repeatable

    @property
    def public_noise(self) -> str:
        return "set repeatable to false" if self.repeatable else ""

    # The guarantee ----------------------------------------------------------------------------------------------------------------

    def check(self, training: Training) -> None:
        others = [method for method in training.methods if method is not self]
        check_beside(self.name, others, self.noise_at)
        senders = ["buffers", *(method.name for method in others)]
        if unknown := next((name for name in self.bounds if name not in senders), None):
            raise ValueError(
                f"{self.name}: bounds names {unknown}, which sends nothing here; the senders are {', '.join(senders)}"
            )
        selection = method_of(training.methods, Selection)
        if selection is not None and selection.weighs:
            raise ValueError(f"{self.name} divides by the expected cohort itself: set {selection.name}'s unbiased to false")
        guarantee = self._guarantee(training)
        check_delta(guarantee.delta, guarantee.sampling.num_clients)

    def _guarantee(self, training: Training) -> Guarantee:
        return guarantee_of(self.name, training, self.noise_cohort_size, self.delta, self.noise)

    # The budget -------------------------------------------------------------------------------------------------------------------

    def init_server(self, params: Params) -> Slot:
        groups = len(layers(list(params), self.per_layer))
        state: Slot = Guarantee(*[nan] * len(fields(Guarantee))).state()
        state |= {name: torch.tensor(0.0, dtype=torch.float64) for name in ("paid", "repeated")} | {"length": torch.tensor(-1)}
        state |= {} if self.noise is None else {"past": [], "resting": []}
        return state | ({} if self.quantile is None else {"scale": torch.ones(groups, dtype=torch.float64)})

    def begin(self, state: Slot, training: Training) -> Slot:
        guarantee = self._guarantee(training)
        noise = float(state["noise"])  # known after a resume, perhaps for another number of rounds
        if noise == noise:
            recorded = Guarantee.read(state)
            if recorded != replace(guarantee, noise=noise) or self.noise_multiplier not in (None, noise):
                raise ValueError(
                    f"{self.name}: the rounds until now had {recorded.sampling}, delta {recorded.delta:.3g}, bands {recorded.bands:g} and "
                    f"noise multiplier {noise:.4g}, and one epsilon cannot describe rounds with others: put them back, or start a new run"
                )
        else:
            noise = 1.0 if self.noise_multiplier is None else self.noise_multiplier
            if self.noise_multiplier is None and self.target_epsilon is not None:
                noise = noise_for(guarantee.sampling, self.target_epsilon, training.rounds, guarantee.delta)
        guarantee = replace(guarantee, noise=noise)
        state = state | guarantee.state()
        self._noise_of_sums(state)
        if (sealer := method_of(training.methods, SealedSum)) is not None:
            length = longest(self.name, noise * self._shrink(state), guarantee.expected, round(guarantee.largest), sealer)
            state = state | {"length": torch.tensor(length)}
        return state

    def sentence(self, state: Slot, training: Training, round: int) -> str:
        paid, scaled = self.paid(state) + max(0, training.rounds - round), self.noise_cohort_size is not None
        text = Guarantee.read(state).sentence(training.rounds, paid, float(state["repeated"]), self.target_epsilon, scaled)
        return text if self.noise is None else f"{text}; {self.noise.sentence(training.rounds)}"

    def paid(self, state: Slot) -> float:
        return float(state["paid"])

    def pay(self, state: Slot, rounds: float, repeated: bool = False) -> Slot | None:
        again = float(state["repeated"]) + (rounds - self.paid(state) if repeated else 0)
        if self.target_epsilon is not None and Guarantee.read(state).epsilon(rounds, again) > self.target_epsilon:
            return None
        counts = {"paid": rounds, "repeated": again}
        return state | {name: torch.tensor(value, dtype=torch.float64) for name, value in counts.items()}

    def price(self, state: Slot, arrived: int) -> float:
        return float(state["expected"]) / arrived  # divergences are inversely proportional to the variance

    def figures(self, state: Slot) -> dict[str, float]:
        column = "privacy/epsilon" if self.noise_cohort_size is None else "privacy/epsilon_if_scaled"
        found = {column: Guarantee.read(state).epsilon(self.paid(state), int(state["repeated"]))} if state["noise"] > 0 else {}
        if "scale" in state:
            found["privacy/clip"] = self.clip * float(state["scale"].square().mean().sqrt())
        return found

    def withholds(self, column: str) -> bool:
        return is_withheld(column)

    # A round ----------------------------------------------------------------------------------------------------------------------

    def resting(self, state: Slot) -> list[int]:
        return [client for cohort in state.get("resting", []) for client in cohort.tolist()]

    def remember(self, state: Slot, clients: Sequence[int]) -> Slot:
        if self.noise is None:
            return state
        return state | {"resting": [torch.tensor(clients, dtype=torch.int64), *state["resting"]][: self.noise.pause - 1]}

    def shares(self, state: Slot, num_samples: Tensor) -> Tensor:
        counts = torch.ones_like(num_samples) if self.full_weight is None else (num_samples / self.full_weight).clamp(max=1)
        return counts / float(state["expected"])

    def broadcast(self, server: Slot) -> Slot:
        if server["length"] >= 0:  # beside a sealed sum
            return {"length": server["length"]}
        if self.noise_at == "clients":
            return {"noise": (server["noise"] * self._shrink(server) / server["largest"].sqrt()).to(number_dtype())}
        return {"scale": server["scale"].to(number_dtype())} if "scale" in server else {}

    def draw(self, rng: torch.Generator, client: ClientView) -> Slot:
        if self.noise_at == "server":
            return {}
        return {"key": draw_key(rng) if self.repeatable else torch.tensor(secrets.randbits(62))}

    def _shrink(self, state: Slot) -> float:
        """The factor on the noise that ``noise_cohort_size`` asks for."""
        return 1.0 if self.noise_cohort_size is None else float(state["expected"]) / self.noise_cohort_size

    def _bound(self, sender: str) -> float:
        return self.bounds.get(sender, self.clip)

    def _clipped(self, envelope: Envelope, sent: Slot, received: GlobalModel) -> tuple[Envelope, Tensor]:
        return clip(envelope, received.buffers, self._bound, self.per_layer, sent.get("scale"))

    def send(self, envelope: Envelope, ctx: Context) -> tuple[Envelope, Slot]:
        clipped, within_bound = self._clipped(envelope, ctx.broadcast, ctx.received)
        if self.quantile is not None:
            clipped = with_message(clipped, self.name, {"within": within_bound - 0.5})
        if self.noise_at == "clients" and "length" not in ctx.broadcast:
            std = ctx.broadcast["noise"] * total_bound(clipped, self._bound)
            clipped = with_clients_noise(clipped, std, ctx.draws["key"])
        return clipped, ctx.state

    def unit(self, sent: Slot, like: Envelope) -> float:
        size = sum(value.numel() for value in pytree.tree_leaves(like))
        return value_of_one(self.name, total_bound(like, self._bound), int(sent["length"]), size)

    def whole_numbers(self, envelope: Envelope, sent: Slot, key: bytes) -> Tensor:
        values = torch.cat([value.flatten() for value in pytree.tree_leaves(envelope)])
        bound, length = total_bound(envelope, self._bound), int(sent["length"])
        return noisy_whole_numbers(values, bound, self.unit(sent, envelope), length, key)

    def bound(self, envelope: Envelope, sent: Slot, received: GlobalModel) -> Envelope:
        if self.noise_at == "clients":
            return envelope
        counts = envelope.sum.get(self.name)
        clipped, _ = self._clipped(without_messages(envelope, self.name), sent, received)
        return clipped if counts is None else with_message(clipped, self.name, {"within": counts["within"].clamp(-0.5, 0.5)})

    def _noise_of_sums(self, state: Slot) -> tuple[float, float]:
        """The multiplier of the noise on the clipped sums, and the standard deviation of the noise on the counts, in clients."""
        noise = float(state["noise"])
        if self.quantile is None or noise == 0:
            return noise, 0.0
        cohort = self.noise_cohort_size or float(state["expected"])
        on_counts = self.count_noise or cohort / 20
        return noise_beside_counts(self.name, noise, len(state["scale"]), on_counts), on_counts

    def noisy(self, state: Slot, total: Envelope, arrived: int, draw: Normal) -> tuple[Envelope, Slot]:
        sums, (noise, on_counts) = without_messages(total, self.name), self._noise_of_sums(state)
        expected, shrink = float(state["expected"]), self._shrink(state)
        std = noise * total_bound(sums, self._bound, state.get("scale")) * shrink
        if self.noise_at == "clients":  # the part of the clients that might have come
            std *= (1 - arrived / float(state["largest"])) ** 0.5

        added: dict[str, Tensor] = {}

        def noisy(field: str, values: Any, std: float) -> Any:
            def noised(path: Any, value: Tensor) -> Tensor:
                drawn = draw(tuple(value.shape))
                if self.noise is not None:
                    name = field + pytree.keystr(path)
                    drawn = added[name] = self.noise.correlated(name, drawn, state["past"])
                return value + std * drawn.to(value.device)

            return pytree.tree_map_with_path(noised, values)

        of_means = {field: noisy(field, getattr(sums, field), std / expected) for field in ("delta", "buffers", "mean")}
        released = sums._replace(**of_means, sum=noisy("sum", sums.sum, std))
        if (counts := total.sum.get(self.name)) is not None:
            released = with_message(released, self.name, noisy("counts", counts, on_counts * shrink))
        return released, state if self.noise is None else state | {"past": [added, *state["past"]][: self.noise.bands - 1]}

    def server_step(self, server: Slot, params: Params, delta: Params, messages: Messages, cohort: Cohort) -> tuple[Params, Slot]:
        if self.quantile is not None:
            share = 0.5 + messages.sum["within"].cpu().double() / float(server["expected"])
            server = server | {"scale": server["scale"] * torch.exp(-self.clip_lr * (share - self.quantile))}
        return delta, server


def noise_beside_counts(name: str, noise: float, groups: int, on_counts: float) -> float:
    """The multiplier of the noise on the clipped sums, larger than ``noise``, so that noisy counts of clients are paid for.

    >>> round(noise_beside_counts("DPFedAvg", noise=1.0, groups=1, on_counts=5.0), 3)  # 0.99 ** -0.5
    1.005
    """
    left = noise**-2 - groups / (2 * on_counts) ** 2
    if left <= 0:
        least = noise * groups**0.5 / 2
        raise ValueError(
            f"{name}: count_noise must exceed {least:.3g} with a noise multiplier of {noise:.3g}, or the counts alone would "
            f"spend the budget; got {on_counts:.3g}: raise it, or set quantile to null"
        )
    return left**-0.5


def with_clients_noise(envelope: Envelope, std: Tensor, key: Tensor) -> Envelope:
    """A client's envelope with noise of its own key on all floating-point numbers except the measurements. *Pure.*"""
    place = count()

    def noised(value: Any) -> Any:
        if not is_float(value):
            return value
        return value + (std * normal(key, next(place), tuple(value.shape))).to(value.dtype)

    return pytree.tree_map(noised, envelope._replace(measured={}))._replace(measured=envelope.measured)
