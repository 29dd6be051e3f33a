"""The tables users choose from: methods with what they cost, data sets with what they hold. Measured and read off, not typed."""

import dataclasses
import re
from collections.abc import Iterable
from typing import Any, NamedTuple

import torch

from flcog.client import Classifier, ClientModule, MultiLabelClassifier, Regressor
from flcog.data import FederatedDataModule, Samples, Splits
from flcog.hooks import Method
from flcog.models import MLP, SimpleCNN
from flcog.trainer import FederatedTrainer


class MethodRow(NamedTuple):
    """A method in one line."""

    name: str
    year: str
    does: str
    up: str
    """Bytes up in a round, relative to FedAvg's."""
    down: str
    stateful: bool
    secure_aggregation: bool
    vmap: bool
    labels: str


class Probe(FederatedDataModule):
    """Random images, to count what a method sends about them."""

    def __init__(self, task: Any = "classification") -> None:
        super().__init__(num_clients=2, batch_size=8)
        self.task, self.num_classes = task, 10

    def load(self) -> Splits:
        generator = torch.Generator().manual_seed(0)
        images = torch.randint(0, 256, (80, 28, 28, 1), generator=generator, dtype=torch.uint8)
        labels = torch.arange(80) % 10
        targets = {
            "classification": labels,
            "multilabel": torch.nn.functional.one_hot(labels, 10).float(),
            "regression": labels.float(),
        }[self.task]
        return Splits(Samples(images, targets))


def bytes_of_a_round(*methods: Method) -> tuple[int, int]:
    """Bytes up and down of one client in one round of SimpleCNN, once everything that is sent only once has been sent."""
    trainer = FederatedTrainer(
        rounds=10**6, local_steps=1, callbacks=list(methods), logger=False, accelerator="cpu", executor="loop"
    )
    trainer.prepare(_client("classification"), Probe())
    trainer.round = max((method.start_round for method in methods), default=0)
    trainer.collect()
    before = trainer.ledger.copy()
    trainer.collect()
    return trainer.ledger.total_up - before.total_up, trainer.ledger.total_down - before.total_down


def _client(task: str) -> ClientModule:
    if task == "regression":
        return Regressor(MLP(784, (8,), 1))
    return (Classifier if task == "classification" else MultiLabelClassifier)(SimpleCNN(1, 10))


def method_rows(methods: Iterable[Method]) -> list[MethodRow]:
    """One row per method, at its defaults."""
    plain_up, plain_down = bytes_of_a_round()
    rows = []
    for method in methods:
        up, down = bytes_of_a_round(_brief(method))
        documentation = " ".join((type(method).__doc__ or "").split())
        year = re.search(r"\b((?:19|20)\d\d)\b(?:(?!https?:).)*https?://", documentation)
        rows.append(
            MethodRow(
                name=method.name,
                year=year[1] if year else "",
                does=_first_paragraph(type(method)),
                up=f"{up / plain_up:.2f}",
                down=f"{down / plain_down:.2f}",
                stateful=method.overrides("init_client"),
                secure_aggregation=not method.individual_uploads,
                vmap=method.vmappable,
                labels=", ".join(
                    {"classification": "single", "multilabel": "multi", "regression": "real"}[t] for t in method.tasks
                ),
            )
        )
    return rows


def _first_paragraph(cls: type) -> str:
    return " ".join((cls.__doc__ or "").strip().split("\n\n")[0].split())


def example(cls: type[Method]) -> Method:
    """A method at its defaults; where it insists on data of its own, on random images."""
    required = [
        field.name
        for field in dataclasses.fields(cls)
        if field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING
    ]
    arguments: dict[str, Any] = {name: Probe() for name in required}
    return cls(**arguments)


def _brief(method: Method) -> Method:
    """The method with its inner loops cut to one step, which changes nothing of what it sends."""
    brief = {
        field.name: 1
        for field in dataclasses.fields(method)
        if re.search(r"(steps|iterations|epochs)$", field.name) and isinstance(getattr(method, field.name), int)
    }
    return dataclasses.replace(method, **brief) if brief else method


def markdown(header: list[str], rows: Iterable[Iterable[Any]]) -> str:
    """A table as the README has it."""

    def cell(value: Any) -> str:
        return {True: "yes", False: ""}.get(value, str(value)) if isinstance(value, bool) else str(value)

    lines = ["| " + " | ".join(header) + " |", "|" + "---|" * len(header)]
    return "\n".join([*lines, *("| " + " | ".join(map(cell, row)) + " |" for row in rows)])


METHOD_HEADER = [
    "method",
    "year",
    "what it does to the round",
    "up",
    "down",
    "stateful clients",
    "secure aggregation",
    "vmap",
    "labels",
]


DATA_HEADER = ["data module", "task", "what it reads"]


def data_rows(modules: Iterable[type[FederatedDataModule]]) -> list[tuple[str, str, str]]:
    """Name, task, and the first sentence of each data set's docstring."""
    # A task that depends on the files is a property, which the class itself cannot tell.
    return [
        (f"`{module.__name__}`", module.task if isinstance(module.task, str) else "any", _first_paragraph(module))
        for module in modules
    ]
