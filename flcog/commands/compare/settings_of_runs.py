"""The settings of a cell's run, compared with the table's: both with all defaults, so that a changed number in any file is noticed."""

from collections.abc import Sequence

from flcog.commands.compare.plan import Cell
from flcog.commands.compare.resolved import Settings, fault, resolved, settings_of


def table_settings(cell: Cell) -> Settings:
    """The table's own settings for a cell; empty for an invalid table, whose runs report the error."""
    return _settings(cell, cell.common_arguments[: len(cell.common_arguments) - len(cell.extra)])


def run_settings(cell: Cell) -> Settings:
    """The settings of a cell's run; empty without a ``config.yaml``."""
    folder = cell.files.source
    config = dict(folder.own_run.config) if folder.own_run else {}
    if folder.own_run is None or "trainer" not in config:
        return {}
    if origin := folder.own_run.description.get("init_from"):
        config["init_from"] = origin["weights"]
    return settings_of(config)


def other_settings(cell: Cell) -> str:
    """The settings of a cell's run that are not the table's, or else not the command's; empty if it has exactly their settings."""
    ours, table = run_settings(cell), table_settings(cell)
    if bool(ours) != bool(table):
        return "unknown settings"
    return _differences(ours, table) or changed_by_options(cell)


def changed_by_options(cell: Cell) -> str:
    """The table's settings that the options after -- change: "trainer.rounds 20 instead of 5, given after --"; else empty."""
    table, asked = table_settings(cell), _settings(cell, cell.common_arguments)
    found = _differences(table, asked) if table and asked else ""
    return f"{found}, given after --" if found else ""


def check_options(runs: Sequence[Cell]) -> None:
    """Refuse options after -- with which no command line of the table is valid."""
    if all(cell.extra and fault(cell) and table_settings(cell) for cell in runs):
        raise ValueError(f"{runs[0].name}: {fault(runs[0])}")


def refusal(cell: Cell) -> str:
    """The reason against going on with the run in a cell's own folder, which has other settings than the command; else empty."""
    found = _unlike_the_command(cell) if cell.files.source == cell.files and cell.damage is None else ""
    return f"{cell.folder} holds this arm with other settings ({found}): choose another --out, or delete it" if found else ""


def takes_no_more(cell: Cell) -> bool:
    """Whether another folder's run, whose result the cell took, has other settings than the command."""
    return cell.files.source != cell.files and bool(_unlike_the_command(cell))


def check_settings(cell: Cell) -> None:
    """Refuse a folder whose run has other settings than the command. A note about another folder's run is deleted in this case."""
    if takes_no_more(cell):
        cell.files.forget_same_run()
    elif reason := refusal(cell):
        raise ValueError(reason)


def _unlike_the_command(cell: Cell) -> str:
    ours, asked = run_settings(cell), _settings(cell, cell.common_arguments)
    return _differences(ours, asked) if ours and asked else ""


def _settings(cell: Cell, words: Sequence[str]) -> Settings:
    config = resolved(cell, words)
    return settings_of(config) if config is not None else {}


def _differences(ours: Settings, table: Settings) -> str:
    """The settings that differ: "trainer.rounds 5 instead of 20"."""
    names = [name for name in dict.fromkeys([*ours, *table]) if ours.get(name) != table.get(name)]
    return ", ".join(f"{name} {ours.get(name, '(none)')} instead of {table.get(name, '(none)')}" for name in names)
