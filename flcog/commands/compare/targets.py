"""The targets of a run: its column's target, and the targets of the observer ``RoundsToTarget``."""

from flcog.commands.compare.facts import History
from flcog.commands.compare.plan import Cell
from flcog.commands.compare.resolved import arguments_of, class_of, resolved
from flcog.core.monitor import main_metric


def target_name(metric: str, target: float) -> str:
    """ "accuracy_0.8", as ``RoundsToTarget`` names its columns."""
    return f"{metric.removeprefix('test/').replace('/', '_')}_{target:g}"


def targets_of(cell: Cell, metric: str | None, history: History) -> list[str]:
    """The names of a cell's targets, whether or not its run has reached them.

    Args:
        cell: the cell.
        metric: its compared metric, which the target of its column is about.
        history: the rows of its run, which tell the main metric.
    """
    config = resolved(cell, cell.common_arguments)
    callbacks = config["trainer"].get("callbacks") if config else None
    observers = [arguments_of(part) for part in callbacks or () if class_of(part) == "RoundsToTarget"]
    main = next((name for row in reversed(history) if (name := main_metric(row))), None)
    wanted = [(each.get("monitor") or main, each.get("target")) for each in observers]
    return [target_name(name, target) for name, target in [*wanted, (metric, cell.target)] if name and target is not None]
