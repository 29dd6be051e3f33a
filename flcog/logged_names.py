"""The names under which a module logs values, for those who look for a column under such a name."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TypeVar

from flcog.core.monitor import OF_A_LOADER
from flcog.core.processes import Processes
from flcog.own_steps import column_of

Figure = TypeVar("Figure")


@dataclass
class SetNames:
    """The names that a module logs on the sets of one purpose."""

    columns: dict[str, str] = field(default_factory=dict)
    """The column of each name, without the purpose of the set."""
    of_epochs: set[str] = field(default_factory=set)
    """The names that are logged for steps and for epochs, whose values of epochs Lightning also calls ``<name>_epoch``."""

    def column(self, name: str, both: bool, shared: str = "") -> str:
        """The column of a logged value, which no other name may have.

        Args:
            name: of the value.
            both: whether it is logged for steps and for epochs.
            shared: a column that may have several names.
        """
        if both:
            self.of_epochs.add(name)
        if name in self.columns:
            return self.columns[name]
        column = column_of(name)
        first = next((other for other, taken in self.columns.items() if taken == column), name)
        if first != name and column != shared:
            raise ValueError(f"the logged values {first!r} and {name!r} would both be the column {column!r}: rename one of them")
        self.columns[name] = column
        return column

    def join(self, others: "list[SetNames]") -> None:
        """Learn the names that other processes know."""
        for other in others:
            self.columns |= other.columns
            self.of_epochs |= other.of_epochs


def of_epoch(name: str) -> str:
    """Lightning's name for the value over an epoch, where a value is logged for steps and for epochs.

    >>> of_epoch("val_acc"), of_epoch("val_acc/dataloader_idx_1")
    ('val_acc_epoch', 'val_acc_epoch/dataloader_idx_1')
    """
    value, loader, index = name.partition(OF_A_LOADER)
    return f"{value}_epoch{loader}{index}"


class LoggedNames:
    """The names that a module logs in a run, by the purpose of the set."""

    def __init__(self) -> None:
        self._sets = {"test": SetNames(), "val": SetNames(), "train": SetNames()}

    def of(self, purpose: str) -> SetNames:
        """The names that are logged on the sets of this purpose: ``train``, ``val`` or ``test``."""
        return self._sets[purpose]

    def share(self, processes: Processes) -> None:
        """Let all processes know the names that clients of any process log."""
        if processes.count > 1:
            self.of("train").join(processes.gather(self.of("train")))

    def named(self, figures: Mapping[str, Figure], now: str | None = "train") -> dict[str, Figure]:
        """Columns under all of their names: ``val/loss``, ``val_loss``, and as the module has logged them.

        Args:
            figures: the columns.
            now: the purpose of the set in hand, whose value counts if the module logs a name on several sets. As in Lightning, it is
                ``train`` at the end of a round.
        """
        logged: dict[str, Figure] = {}
        of_epochs: dict[str, Figure] = {}
        for purpose, names in sorted(self._sets.items(), key=lambda entry: entry[0] == now):
            for name, column in names.columns.items():
                if (full := f"{purpose}/{column}") in figures:
                    logged[name] = figures[full]
                    of_epochs |= {of_epoch(name): figures[full]} if name in names.of_epochs else {}
        return {name.replace("/", "_"): value for name, value in figures.items()} | of_epochs | logged | dict(figures)
