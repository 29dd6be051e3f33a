"""Methods whose server adds up clients' states need a codec's error feedback, and runs without it are warned of."""

from pathlib import Path
from typing import Any

import pytest
import torch
from harness import Clusters, classifier, few_quickly, make_trainer, train

from flcog.callbacks import SCAFFOLD, EncodedBroadcast, FedDC, FedDyn, FedProx, FedPVR, TopK
from flcog.method import Method
from methods.server_steps import gap_to_clients

CODEC = TopK(fraction=0.2)
FED_BACK = TopK(fraction=0.2, error_feedback=True)

SUMS: dict[str, tuple[Method, str, str, str, float]] = {
    "SCAFFOLD": (SCAFFOLD(), "c", "c", ".sum['SCAFFOLD']['change']", 1.0),
    "FedPVR": (FedPVR(layers=""), "c", "c", ".sum['FedPVR']['change']", 1.0),
    "FedDC, drift": (FedDC(), "h", "h", ".delta", 1.0),
    "FedDC, gradient": (FedDC(), "g", "g", ".sum['FedDC']['g']", 1.0),
    "FedDyn": (FedDyn(alpha=0.1), "h", "g", ".delta", -0.1),
}
"""Methods with their states at the server and at clients, the upload with a state's change, and the change per number of it."""


def gaps(codec: TopK, method: Method, at_server: str, at_client: str, **options: Any) -> tuple[Any, dict[str, torch.Tensor]]:
    """The trainer, and the server's state minus the mean of the eight clients' states."""
    trainer = train(method, codec, **options)
    return trainer, gap_to_clients(trainer, method.name, at_server, at_client)


@pytest.mark.parametrize("name", few_quickly(SUMS))
def test_the_server_lacks_the_residuals_alone(name: str) -> None:
    """The next uploads bring these residuals. Without error feedback nothing does, and the gap stays."""
    *case, sent, factor = SUMS[name]
    trainer, found = gaps(FED_BACK, *case, rounds=4)
    for parameter, gap in found.items():
        residuals = [
            kept["TopK"].get(f"{sent}['{parameter}']", torch.zeros(())) for kept in trainer.run.clients.by_client.values()
        ]
        torch.testing.assert_close(gap, -factor / 8 * sum(residuals) + torch.zeros_like(gap), rtol=1e-9, atol=1e-12)
    _, lost = gaps(CODEC, *case, rounds=4)
    assert max(float(gap.abs().max()) for gap in lost.values()) > 1e-3


def advice(root: Path, *methods: Method) -> tuple[list[str], list[str]]:
    """The findings of ``flcog check``, and the warnings in the summary before round 1."""
    trainer = make_trainer(root, *methods)
    findings = list(map(str, trainer.check(classifier(), Clusters())))
    trainer.prepare(classifier(), Clusters())
    return findings, [note for note in trainer.notes if note.startswith("warning")]


def test_check_and_the_summary_warn_of_it(tmp_path: Path) -> None:
    methods = [SCAFFOLD(), FedPVR(), TopK(fraction=0.5)]
    text = (
        "TopK.error_feedback is false, so that the errors of the codec are missing where SCAFFOLD and FedPVR add up changes of the "
        "clients' states at the server, and training can diverge: set it to true"
    )
    assert advice(tmp_path, *methods) == ([text], [f"warning: {text}"])


@pytest.mark.parametrize(
    "methods",
    [
        [SCAFFOLD(), FED_BACK],
        [SCAFFOLD(), EncodedBroadcast()],
        [FedProx(mu=0.1), CODEC],
        [SCAFFOLD(stop_round=1), TopK(fraction=0.2, start_round=1)],
    ],
    ids=repr,
)
def test_other_runs_are_not_warned(methods: list[Method], tmp_path: Path) -> None:
    assert advice(tmp_path, *methods) == ([], [])
