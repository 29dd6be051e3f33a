"""ClipGradient clips the gradient of every local step."""

from functools import partial

from contracts.case import Case, Refusals
from reference import clip_gradient

from flcog.callbacks import ClipGradient

CASES: dict[str, Case] = {
    "ClipGradient": Case(
        ClipGradient(max_norm=0.3), partial(clip_gradient.run, max_norm=0.3), neutral=ClipGradient(max_norm=1e9)
    ),
}


REFUSED: Refusals = {
    ClipGradient: [
        ({"max_norm": 0.0}, "max_norm must be positive; got 0.0"),
    ],
}
