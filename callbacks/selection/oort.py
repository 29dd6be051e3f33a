"""Oort: clients whose data have high losses take part more often, and others are explored."""

from dataclasses import dataclass

import numpy as np
import torch

from flcog.core.checks import option
from flcog.core.types import Slot
from flcog.method import ClientPool, Participants, RoundRecord, Selection


@dataclass(frozen=True)
class Oort(Selection):
    """Prefers clients with a high loss in their last training, and reserves a share of each round for new clients.

    ::

        U_k = n_k loss_k,   score_k = [(min(U_k, U_95%) - U_min) / (U_max - U_min) + sqrt(0.1 ln R / L_k)] min(1, T / t_k)^penalty

    R is the round, and L_k the last round of client k. A share of the round's clients, which starts at ``exploration`` and is
    multiplied by ``decay`` in every round down to ``least_exploration``, is drawn uniformly from clients that have never taken part.
    The others are drawn in proportion to their scores, from all clients whose score is at least ``cutoff`` times the score of the last
    client that would be taken in the order of scores. The mean change favours clients with many samples and high losses. The server
    sees single losses.

    Lai et al., Oort: Efficient Federated Learning via Guided Participant Selection, OSDI 2021, https://arxiv.org/abs/2010.06081. Their
    utility has the root mean square of the samples' losses in the place of the mean training loss that clients report here; the scores
    are scaled to [0, 1] as in the authors' program. The last factor acts only in runs with simulated time
    (:class:`~flcog.callbacks.SystemModel`): t_k is the time of client k's last training, and T is the quantile ``preferred`` of these
    times. With a pacer this quantile rises: every W = ``pacer_step`` rounds, ``pacer_delta`` is added to it, up to 1, if the sum of the
    utilities U_k of all clients that trained in the last W rounds is below the sum in the W rounds before. The paper adds seconds to T,
    and the authors' program adds to the quantile. As in FedScale, clients that were late for the end
    of a round count as if they had trained with the mean loss of the round's other clients.

    Args:
        exploration: the share of new clients in the first round, in [0, 1].
        decay: the factor on this share in each round, in (0, 1].
        least_exploration: the smallest share, in [0, 1].
        cutoff: the fraction of the last score, in (0, 1].
        penalty: the exponent of the factor for slow clients, at least 0.
        preferred: the share of clients that are not slow, in (0, 1].
        pacer_step: the pacer's number of rounds, at least 1, such as the authors' 20; None for no pacer.
        pacer_delta: the pacer's step of the share of clients that are not slow, in (0, 1].

    Example:
        >>> Oort().init_selection(2)["last"]
        tensor([-1, -1], dtype=torch.int32)
    """

    exploration: float = option(0.9, "[0, 1]")
    decay: float = option(0.98, "(0, 1]")
    least_exploration: float = option(0.2, "[0, 1]")
    cutoff: float = option(0.95, "(0, 1]")
    penalty: float = option(2.0, ">= 0")
    preferred: float = option(0.3, "(0, 1]")
    pacer_step: int | None = option(None, ">= 1")
    pacer_delta: float = option(0.1, "(0, 1]")

    reads_losses = True

    def init_selection(self, num_clients: int) -> Slot:
        loss, seconds = torch.zeros(num_clients), torch.zeros(num_clients)
        state: Slot = {"loss": loss, "last": torch.full((num_clients,), -1, dtype=torch.int32), "seconds": seconds}
        if self.pacer_step is not None:
            state |= {"preferred": self.preferred, "rounds": 0, "utility": 0.0, "utility_before": 0.0}
        return state

    def select(self, state: Slot, population: ClientPool, count: int, rng: torch.Generator) -> Participants:
        everybody = np.arange(population.num_clients)
        present = everybody[population.available(everybody)]
        last = state["last"].cpu().numpy()[present]
        known, new = present[last >= 0], present[last < 0]
        share = max(self.least_exploration, self.exploration * self.decay**population.round)
        exploited = min(len(known), max(count - int(count * share), count - len(new)))
        explored = new[torch.randperm(len(new), generator=rng)[: count - exploited].numpy()]
        if not exploited:
            return Participants(sorted(explored.tolist()))
        utility = population.sizes.numpy()[known] * state["loss"].cpu().numpy()[known]
        score = scores(utility, last[last >= 0] + 1, population.round + 1)
        score *= speed_factors(state["seconds"].cpu().numpy()[known], state.get("preferred", self.preferred), self.penalty)
        least = self.cutoff * np.sort(score)[-exploited]
        draws = torch.rand(len(known), generator=rng, dtype=torch.float64).numpy()
        # The smallest of exponential variables with these rates belongs to a client with a probability proportional to its score.
        order = np.argsort(np.where(score >= least, -np.log1p(-draws) / np.maximum(score, 1e-4), np.inf))
        return Participants(sorted([*explored.tolist(), *known[order[:exploited]].tolist()]))

    def update(self, state: Slot, record: RoundRecord) -> Slot:
        loss, last, seconds = (state[name].clone() for name in ("loss", "last", "seconds"))
        losses = dict(zip(record.trained, record.losses, strict=True))
        if losses:  # nothing is known of late clients if all were late
            losses |= dict.fromkeys(record.seconds.keys() - losses.keys(), sum(losses.values()) / len(losses))
        clients = list(losses)
        loss[clients] = torch.tensor(list(losses.values()), dtype=loss.dtype, device=loss.device)
        last[clients] = record.round
        seconds[list(record.seconds)] = torch.tensor(list(record.seconds.values()), dtype=seconds.dtype, device=seconds.device)
        return {**state, "loss": loss, "last": last, "seconds": seconds, **self._pace(state, record)}

    def _pace(self, state: Slot, record: RoundRecord) -> Slot:
        """The pacer's state after a round."""
        if self.pacer_step is None:
            return {}
        rounds, preferred = state["rounds"] + 1, state["preferred"]
        utility = state["utility"] + sum(n * loss for n, loss in zip(record.sizes, record.losses, strict=True))
        if rounds % self.pacer_step:
            return {"rounds": rounds, "utility": utility}
        if state["utility_before"] > utility:
            preferred = min(1.0, preferred + self.pacer_delta)
        return {"rounds": rounds, "utility": 0.0, "utility_before": utility, "preferred": preferred}


def speed_factors(seconds: np.ndarray, preferred: float, penalty: float) -> np.ndarray:
    """The factors on the scores of clients that have taken part: below 1 for slow clients, and 1 for all without a clock.

    >>> speed_factors(np.array([1.0, 2.0, 4.0]), preferred=0.5, penalty=2.0)
    array([1.  , 1.  , 0.25])
    """
    limit = np.sort(seconds)[min(int(preferred * len(seconds)), len(seconds) - 1)]
    factors: np.ndarray = (np.minimum(limit, seconds) / np.where(seconds > 0, seconds, 1)) ** penalty
    return np.where(seconds > 0, factors, 1.0)


def scores(utility: np.ndarray, last: np.ndarray, round: int) -> np.ndarray:
    """The scores of clients that have taken part."""
    low, high = utility.min(), utility.max()
    clipped = np.minimum(utility, np.quantile(utility, 0.95))
    scaled: np.ndarray = (clipped - low) / (high - low if high > low else 1.0)
    return scaled + np.sqrt(0.1 * np.log(round) / last)
