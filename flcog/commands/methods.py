"""The command ``flcog methods``: a table of methods, their measured bytes, and the executors that run them."""

import dataclasses
import functools
import re
import shutil
from collections.abc import Iterable
from typing import Any, NamedTuple

from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table

import flcog.callbacks
from flcog.client_module import Classifier
from flcog.core.commands import parser_of
from flcog.core.lazy import exported
from flcog.core.text import first_paragraph, markdown
from flcog.data import FederatedDataModule
from flcog.datamodules import RandomData
from flcog.method import Attack, Method, PrivateSum, SealedSum, Training, UploadAggregator, UploadChange, check_methods
from flcog.models import LoRA, SimpleCNN
from flcog.trainer import FederatedTrainer

HEADER = ["method", "what it does to the round", "up", "down", "notes"]


def methods(arguments: list[str]) -> None:
    """List the methods with the bytes that they send, as measured."""
    parser = parser_of("methods", methods)
    parser.add_argument("--markdown", action="store_true", help="as the README has it")
    options = parser.parse_args(arguments)
    rows = method_rows(example(cls) for cls in all_methods())
    if options.markdown:
        print(markdown(HEADER, rows))
        return
    table = Table(*HEADER, box=box.SIMPLE_HEAD, pad_edge=False, row_styles=["", "dim"])
    table.columns[0].no_wrap = True
    for row in rows:
        table.add_row(*map(escape, row))
    # A pipe has no width, so use a width that is comfortable to read.
    console = Console(width=min(120, shutil.get_terminal_size((120, 24)).columns), highlight=False)
    console.print(table)
    console.print(
        "up, down: bytes of a round relative to FedAvg's, measured. stateful clients keep state between rounds. no secure aggregation: "
        "does not work where the server sees only sums. labels: of one class (single), of several (multi), real-valued (real), or none; "
        "all unless stated. used by: which of the four papers flcog reproduces."
    )


def all_methods() -> list[type[Method]]:
    """The methods that flcog ships, sorted by name."""
    found = [cls for cls in exported(flcog.callbacks).values() if isinstance(cls, type) and issubclass(cls, Method)]
    return sorted(found, key=lambda cls: cls.__name__.lower())


def images(num_clients: int = 2) -> FederatedDataModule:
    """Random images for counting a method's bytes."""
    return RandomData((28, 28, 1), num_samples=100, num_test_samples=0, num_clients=num_clients, batch_size=8, client_val=0.2)


class RoundBytes(NamedTuple):
    """Bytes that the clients of a probe send and receive."""

    up: int
    down: int
    once_up: int = 0
    """Bytes before the first round, or in a client's first round."""
    once_down: int = 0
    stateful: bool = False
    """Whether clients keep state between rounds."""


def bytes_of_a_round(*methods: Method, adapters: bool = False, num_clients: int = 2) -> RoundBytes:
    """Measure the bytes up and down in one round of SimpleCNN or its LoRA adapters, without bytes that are sent only once."""
    adapters = adapters or any(method.needs_adapters for method in methods)
    acting: list[Any] = [dataclasses.replace(method, start_round=0) for method in methods]
    trainer = FederatedTrainer(rounds=10**6, local_steps=1, callbacks=acting, logger=False, accelerator="cpu", executor="loop")
    network = SimpleCNN(1, 10)
    trainer.prepare(Classifier(LoRA(network) if adapters else network), images(num_clients))
    trainer.train_round()
    again, total = trainer.collect()[1], trainer.run.ledger
    once = (total.total_up - again.total_up, total.total_down - again.total_down)
    return RoundBytes(again.total_up, again.total_down, *once, trainer.run.engine.clients.stateful)


def method_rows(methods: Iterable[Method]) -> list[list[str]]:
    """Make one row for each method with its default options.

    Bytes of a round are relative to FedAvg's, with those that are sent only once added, if they are not negligible.
    """
    rows = []
    for method in methods:
        clients = max(2, method.least) if isinstance(method, UploadAggregator | UploadChange) else 2
        plain = plain_bytes(adapters=method.needs_adapters, num_clients=clients)
        traffic = bytes_of_a_round(_brief(method), num_clients=clients)
        documentation, does = " ".join((type(method).__doc__ or "").split()), first_paragraph(type(method))
        if year := re.search(r"\b((?:19|20)\d\d)\b(?:(?!https?:).)*https?://", documentation):
            does = f"{does.removesuffix('.')} ({year[1]})."
        papers = [paper for paper, names in flcog.callbacks.PAPERS.items() if method.name in names]
        notes = ["stateful clients"] * traffic.stateful + ["no secure aggregation"] * (not _runs_sealed(method))
        if len(method.tasks) < len(LABELS):
            notes.append(f"labels: {', '.join(LABELS[task] for task in method.tasks)}")
        notes += [f"used by {', '.join(papers)}"] * bool(papers)
        up, down = _relative(traffic.up, traffic.once_up, plain.up), _relative(traffic.down, traffic.once_down, plain.down)
        rows.append([method.name, does, up, down, "; ".join(notes)])
    return rows


LABELS = {"classification": "single", "multilabel": "multi", "regression": "real", "unlabelled": "none"}
"""The labels of each task, as the table calls them."""


def _runs_sealed(method: Method) -> bool:
    """Whether a method runs beside secure aggregation."""
    sealer = next(cls() for cls in exported(flcog.callbacks).values() if isinstance(cls, type) and issubclass(cls, SealedSum))
    methods = [sealer] if method.name == sealer.name else [sealer, method]
    try:
        check_methods(methods)
        if isinstance(method, PrivateSum):
            method.check(Training(num_clients=100, cohort_size=10, rounds=1, methods=methods))
    except ValueError:
        return False
    return True


plain_bytes = functools.cache(bytes_of_a_round)
"""FedAvg's bytes on the same model."""


def _relative(bytes_: int, once: int, plain: int) -> str:
    """Format bytes relative to FedAvg's: ``1.00``, or ``1.00 + 0.25 once``."""
    return f"{bytes_ / plain:.2f}" + (f" + {once / plain:.2f} once" if once / plain >= 0.005 else "")


def example(cls: type[Method]) -> Method:
    """A method with its default options, and with random images if it needs its own data."""
    missing = dataclasses.MISSING
    required = [field.name for field in dataclasses.fields(cls) if field.default is field.default_factory is missing]
    arguments: dict[str, Any] = {name: images() for name in required}
    return cls(**arguments)


def _brief(method: Any) -> Any:
    """Shorten the inner loops of a method (or a part of it) to one step, and leave out noise, which does not change its bytes."""
    brief: dict[str, Any] = {"fraction": 0.5} if isinstance(method, Attack) else {}  # a tenth of two clients is none
    for field in dataclasses.fields(method):
        value = getattr(method, field.name)
        if re.search(r"(steps|iterations|epochs)$", field.name) and isinstance(value, int):
            brief[field.name] = 1
        elif field.name == "noise_multiplier":
            brief[field.name] = 0.0  # without the accountant of privacy, which is a package of its own
        elif dataclasses.is_dataclass(value):
            brief[field.name] = _brief(value)
    return dataclasses.replace(method, **brief) if brief else method
