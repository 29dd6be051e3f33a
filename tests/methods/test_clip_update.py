"""ClipUpdate clips the norm of a whole envelope."""

from functools import partial

import pytest
import torch
from contracts.case import Case, Refusals
from harness import BatchNormMLP, classifier, train
from reference import clip_update

from flcog.callbacks import SCAFFOLD, ClipUpdate
from flcog.callbacks.clip_update import changes, clip_factor
from flcog.method import Context, Envelope, GlobalModel

CASES: dict[str, Case] = {
    "ClipUpdate": Case(ClipUpdate(norm=0.1), partial(clip_update.run, norm=0.1), neutral=ClipUpdate(norm=1e9)),
    "ClipUpdate with statistics": Case(
        ClipUpdate(norm=0.1), partial(clip_update.run, norm=0.1), module=partial(classifier, network=BatchNormMLP)
    ),
}
REFUSED: Refusals = {ClipUpdate: [({"norm": 0.0}, "norm must be positive; got 0.0")]}


def envelope_of(norm: float) -> tuple[Envelope, Envelope, dict[str, torch.Tensor]]:
    received, delta = {"mean": torch.tensor([1.0, 2.0]), "count": torch.tensor(3)}, torch.tensor([3.0, 4.0])
    message = {"c": torch.tensor([12.0]), "delta": delta, "count": torch.tensor(7)}
    before = Envelope(
        {"w": delta}, {"mean": torch.tensor([1.0, 86.0]), "count": torch.tensor(4)}, {}, {"Method": message}, {"loss": delta}
    )
    context = Context(GlobalModel({}, received), *[{}] * 5, 0, 1, None, None)  # type: ignore[arg-type]
    return before, ClipUpdate(norm=norm).send(before, context)[0], received


def test_one_factor_shortens_all_changes_and_messages() -> None:
    before, after, received = envelope_of(norm=8.5)  # a tenth of sqrt(3^2 + 4^2 + 12^2 + 84^2) = 85
    torch.testing.assert_close(after.delta["w"], 0.1 * before.delta["w"])
    torch.testing.assert_close(after.sum["Method"]["c"], torch.tensor([1.2]))
    torch.testing.assert_close(after.buffers["mean"], torch.tensor([1.0, 10.4]))
    assert after.buffers["count"] == 4 and after.sum["Method"]["count"] == 7
    assert after.sum["Method"]["delta"] is after.delta["w"], "a tensor that appears twice stays one tensor"
    assert after.measured["loss"] is before.measured["loss"]
    assert float(clip_factor(changes(after, received), 8.5)) == pytest.approx(1.0)


def test_a_short_envelope_passes_as_it_is() -> None:
    before, after, _ = envelope_of(norm=1e6)
    assert torch.equal(after.delta["w"], before.delta["w"]) and torch.equal(after.buffers["mean"], before.buffers["mean"])


def test_its_place_in_the_list_does_not_matter() -> None:
    one, other = (
        train(*methods, executor="vmap") for methods in ((ClipUpdate(norm=0.05), SCAFFOLD()), (SCAFFOLD(), ClipUpdate(norm=0.05)))
    )
    assert all(torch.equal(one.params[name], value) for name, value in other.params.items())
    free = train(SCAFFOLD())
    lengths = [sum(float(value.square().sum()) for value in run.servers["SCAFFOLD"]["c"].values()) for run in (one, free)]
    assert lengths[0] < 0.1 * lengths[1], "the control variates are clipped too"
