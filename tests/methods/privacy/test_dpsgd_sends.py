"""With DPSGD, clients' messages depend on their samples only through the noisy gradient, for every method of the catalogue."""

import copy
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest
import torch
from contracts.case import Case
from torch.utils import _pytree as pytree

import flcog
from flcog.callbacks import DPSGD, FedDisco, FedGen, PowerOfChoice, SecureAggregation
from flcog.client.runtime import ClientRuntime
from flcog.data import Splits

WITHOUT_SAMPLES = DPSGD(clip=1e-30, noise_multiplier=1e28, delta=1e-3, repeatable=True)
"""The noise is the same in every run, and the clipped gradients are too short to change it."""


@contextmanager
def sent() -> Iterator[list[Any]]:
    """Everything that clients send to the server: replies, first-contact messages and losses."""
    messages: list[Any] = []
    contact, losses = ClientRuntime.contact, ClientRuntime.losses

    def keep(answer: Any) -> Any:
        messages.append(copy.deepcopy(answer))
        return answer

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ClientRuntime, "contact", lambda *arguments: keep(contact(*arguments)))
        patch.setattr(ClientRuntime, "losses", lambda *arguments: keep(losses(*arguments)))

        def train(self: ClientRuntime, *arguments: Any, own: Any = ClientRuntime.train) -> Generator[Any, None, None]:
            for reply in own(self, *arguments):
                keep((reply.clients, reply.envelope))
                yield reply

        patch.setattr(ClientRuntime, "train", train)
        yield messages


def with_other_samples(data: flcog.FederatedDataModule) -> flcog.FederatedDataModule:
    """Changes the contents of all training samples; every client keeps its number of samples."""
    load = data.load

    def other() -> Splits:
        splits = load()
        inputs, targets = splits.train.inputs, splits.train.targets
        return replace(splits, train=replace(splits.train, inputs=-2 * inputs.flip(0), targets=targets.flip(0)))

    data.load = other  # type: ignore[method-assign]
    return data


class Careless(DPSGD):
    """DPSGD beside any method."""

    excludes = {}


def sends_samples(case: Case, without_samples: DPSGD = WITHOUT_SAMPLES) -> list[str]:
    """The fields of messages that differ between two runs with other samples."""
    from contracts.registry import run

    runs = []
    for data in (case.data, lambda: with_other_samples(case.data())):
        with sent() as messages:
            run(replace(case, data=data), case.method, without_samples, rounds=2, local_epochs=None, local_steps=2)
        runs.append(pytree.tree_flatten_with_path(messages)[0])
    assert len(runs[0]) == len(runs[1]) > 0

    def same(one: Any, other: Any) -> bool:
        return one == other if not isinstance(one, torch.Tensor) else torch.equal(one.nan_to_num(), other.nan_to_num())

    return sorted({pytree.keystr(path) for (path, one), (_, other) in zip(*runs, strict=True) if not same(one, other)})


@pytest.mark.slow
def test_no_method_of_the_catalogue_sends_samples() -> None:
    from contracts.registry import CASES, FIRST

    compared, refused = {}, {}
    for kind, name in FIRST.items():
        if kind is not SecureAggregation:  # its masks are new secrets in every run
            try:
                compared[name] = sends_samples(CASES[name])
            except ValueError as error:
                refused[name] = str(error)
    assert not {name: fields for name, fields in compared.items() if fields}
    reasons = ("DPSGD and ", "BatchNorm layer", "DPSGD is listed 2 times")
    assert all(any(reason in text for reason in reasons) for text in refused.values()), refused
    assert len(compared) > 50


@pytest.mark.slow
@pytest.mark.parametrize("method", [FedDisco(), FedGen(), PowerOfChoice()], ids=lambda method: method.name)
def test_methods_that_are_refused_would_send_samples(method: Any) -> None:
    careless = Careless(**vars(WITHOUT_SAMPLES))
    assert sends_samples(Case(method, None, no_reference="not needed"), careless)
