"""Writes the tables of docs/lightning.md anew: a row for every hook and every argument of the installed Lightning.

Run ``python docs/lightning_tables.py`` after an update of Lightning. Each row keeps its meaning. A hook that is new in Lightning
gets the meaning ``ignored``, until flcog calls it and its row says when. An argument that the trainer refuses gets flcog's reason.
"""

import inspect
import re
from pathlib import Path

import lightning as L

from flcog.client.lightning_hooks import lightning_hooks
from flcog.core.lightning_options import COUNTERPARTS

PAGE = Path(__file__).with_name("lightning.md")
BASES = (L.LightningModule, L.LightningDataModule, L.Callback)


def with_tables(page: str) -> str:
    """The page with the rows of the installed version."""
    known = dict(re.findall(r"^\| `([\w.()]+)` \| (.*) \|$", page, re.MULTILINE))
    for base in BASES:
        names = [f"{base.__name__}.{hook}" for hook in lightning_hooks(base)]
        page = _replaced(page, base.__name__, [(name, known.get(name, "ignored")) for name in names])
    arguments = [name for name in inspect.signature(L.Trainer.__init__).parameters if name != "self"]
    refused = {f"Trainer({name})": f"refused: {reason}" for name, reason in COUNTERPARTS.items()}
    rows = [(name, (known | refused).get(name, "")) for name in (f"Trainer({argument})" for argument in arguments)]
    return _replaced(page, "Trainer", rows)


def _replaced(page: str, owner: str, rows: list[tuple[str, str]]) -> str:
    """The page with other rows in the table of a class."""
    table = "".join(f"| `{name}` | {meaning} |\n" for name, meaning in rows)
    return re.sub(rf"(?:^\| `{owner}[.(].*\n?)+", lambda _: table, page, flags=re.MULTILINE)


if __name__ == "__main__":
    PAGE.write_text(with_tables(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
