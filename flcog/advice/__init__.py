"""Advice for ``flcog check``: lost contributions, unread values and options without effect.

To find them, hooks run on random numbers and a round is tried. ``fit`` does neither: it refuses combinations that cannot work, and its
summary warns of missing error feedback.
"""

import warnings
from collections.abc import Iterator

import torch

from flcog.advice.exchanges import outdated_exchanges
from flcog.advice.feedback import missing_feedback
from flcog.advice.finding import Finding
from flcog.advice.global_randomness import global_randomness
from flcog.advice.options import options_without_effect
from flcog.advice.order import lost_contributions
from flcog.advice.server_steps import lost_server_steps
from flcog.advice.trial import Trial
from flcog.advice.unread import unread_values
from flcog.server.engine import Engine
from flcog.server.state import ServerState


def advise(engine: Engine, server: ServerState) -> list[Finding]:
    """All findings. The run stays as it is.

    Args:
        engine: of a run with few local steps, for a whole round is tried.
        server: the state before its first round.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a hook that warns does so in its round
        return list(dict.fromkeys(_findings(engine, server)))


def _findings(engine: Engine, server: ServerState) -> Iterator[Finding]:
    yield from options_without_effect(engine)
    yield from missing_feedback(engine)
    yield from outdated_exchanges(engine)
    with torch.no_grad():
        trial = Trial(engine, server)
        yield from lost_contributions(engine, trial)
        yield from unread_values(engine, trial)
        yield from global_randomness(engine, trial)
    yield from lost_server_steps(engine, server)


__all__ = ["Finding", "advise"]
