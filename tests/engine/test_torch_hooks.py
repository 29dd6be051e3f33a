"""Hooks of torch's on parameters and optimisers act as in Lightning, with every executor; copies of a module would lose them."""

from typing import Any

import pytest
import torch
from faithful.modules import Plain
from faithful.side_by_side import ONE_CLIENT, on_its_batches
from harness import assert_close, train

from flcog.callbacks import FedSAM


class Masked(Plain):
    """The gradient of one layer is 0 for its first half."""

    def __init__(self) -> None:
        super().__init__()
        weight = next(self.parameters())
        weight.register_hook(lambda gradient: gradient * (torch.arange(len(gradient)) >= len(gradient) / 2)[:, None])


class Scaled(Plain):
    """A hook scales the gradient after each backward pass."""

    def __init__(self) -> None:
        def halve(parameter: Any) -> None:
            parameter.grad.mul_(0.5)

        super().__init__()
        next(self.parameters()).register_post_accumulate_grad_hook(halve)


class Clipped(Plain):
    """Weights are clipped after each step."""

    def configure_optimizers(self) -> Any:
        def clip(optimizer: Any, *_: Any) -> None:
            for group in optimizer.param_groups:
                for parameter in group["params"]:
                    parameter.data.clamp_(-0.2, 0.2)

        optimizer = super().configure_optimizers()
        optimizer.register_step_post_hook(clip)
        return optimizer


KINDS = pytest.mark.parametrize(
    ("kind", "reason"),
    [
        (Masked, "Masked.net.hidden.0.weight has a hook"),
        (Scaled, "Scaled.net.hidden.0.weight has a hook"),
        (Clipped, "SGD has a hook of its step"),
    ],
)


@KINDS
@pytest.mark.parametrize("accumulate", [1, 2])
def test_numbers_are_lightnings(kind: Any, reason: str, accumulate: int) -> None:
    ours = train(module=kind(), accumulate_grad_batches=accumulate, **ONE_CLIENT)
    theirs = on_its_batches(kind(), ours, accumulate_grad_batches=accumulate)
    assert_close(ours.params, {name: p.detach() for name, p in theirs.named_parameters()}, 1e-12)
    assert ours.notes[0] == f"executor: lightning, 1 client at a time ({reason})"
    assert not all(torch.equal(value, train(module=Plain(), **ONE_CLIENT).params[name]) for name, value in ours.params.items())  # type: ignore[arg-type]


def test_a_gradient_that_a_method_takes_elsewhere_has_the_hooks_too() -> None:
    """FedSAM takes the gradient at other weights. The masked rows never move."""
    trainer = train(FedSAM(), module=Masked(), rounds=1)
    name, initial = "net.hidden.0.weight", dict(Masked().named_parameters())["net.hidden.0.weight"].detach()
    moved = (trainer.params[name] != initial).any(1)
    assert not moved[: len(moved) // 2].any() and moved[len(moved) // 2 :].any()
