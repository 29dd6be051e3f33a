"""The mean of the clients' models, which FedDyn and FedDC evaluate instead of the server's model.

>>> "FedExP" in MOVES_ON
True
"""

from collections.abc import Mapping

MOVES_ON: Mapping[str, str] = dict.fromkeys(
    ("_AdaptiveServer", "FedAvgM", "FedExP"),
    "its server step would move the model away from the clients' mean, which evaluate_mean evaluates",
)
"""Methods whose server step may not follow, because the mean is computed from the server's model and its last correction."""
