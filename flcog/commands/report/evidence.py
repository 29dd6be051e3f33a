"""The report's last part: the partition, the pictures that a run drew, and the whole configuration."""

import base64
import html
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml

from flcog.commands.report.curves import grid
from flcog.commands.report.overview import long, panel, table
from flcog.commands.report.run_files import RunFiles
from flcog.core.arguments import flat

MOST_PICTURES = 3
"""Of one kind: the first, the last, and one between."""


def partitions(runs: Sequence[RunFiles], names: Sequence[str]) -> str:
    """How the data fell over the clients: the numbers of each split once, and its chart where the run drew one."""
    by_hash: dict[Any, list[int]] = {}
    for i, run in enumerate(runs):
        if run.setting.get("partition"):
            by_hash.setdefault(run.setting["partition"].get("hash"), []).append(i)
    parts = []
    for members in by_hash.values():
        of = "" if len(by_hash) == 1 else f"<h3>{html.escape(', '.join(names[i] for i in members))}</h3>"
        numbers = [[html.escape(name), _cell(value)] for name, value in runs[members[0]].setting["partition"].items()]
        chart = next((path for i in members for path in runs[i].figures.get("partition", [])), None)
        drawn = "" if chart is None else picture(chart, "Circles: how many samples of each class each client has.")
        parts.append(
            panel(of + drawn + f"<details><summary>The numbers</summary>{table(['number', 'value'], numbers)}</details>")
        )
    return "".join(parts)


def pictures(runs: Sequence[RunFiles], names: Sequence[str]) -> str:
    """What methods drew, such as the images that they generated."""
    figures = []
    for run, name in zip(runs, names, strict=True):
        for kind, paths in run.figures.items():
            if kind != "partition":
                chosen = sorted({round(i * (len(paths) - 1) / max(1, MOST_PICTURES - 1)) for i in range(MOST_PICTURES)})
                figures += [_figure(paths[i], kind, name) for i in chosen]
    return grid(figures)


def _figure(path: Path, kind: str, name: str) -> str:
    number = int(path.stem.rsplit("-", 1)[-1]) if path.stem.rsplit("-", 1)[-1].isdigit() else None
    when = "" if number is None else f"after round {number}"
    title = f"{kind.replace('_', ' ').capitalize()}: {name}"
    return (
        f"<figure><figcaption><h3>{html.escape(title)}</h3><p>{when}</p></figcaption>{picture(path, f'{title}, {when}')}</figure>"
    )


def picture(path: Path, text: str) -> str:
    """A picture inside the page itself."""
    data = base64.b64encode(path.read_bytes()).decode()
    return f'<div class="picture"><img alt="{html.escape(text)}" src="data:image/png;base64,{data}"></div>'


def configuration(runs: Sequence[RunFiles], names: Sequence[str]) -> str:
    """What differs between the runs, and then all that each was told."""
    flats = [flat(run.config) for run in runs]
    keys = dict.fromkeys(key for one in flats for key in one)
    differ = [key for key in keys if len({str(one.get(key, "not set")) for one in flats}) > 1]
    parts = []
    if differ:
        rows = [[html.escape(key), *(long(str(one.get(key, "not set"))) for one in flats)] for key in differ]
        parts.append(panel(f"<h3>Where the runs differ</h3>{table(['setting', *names], rows)}"))
    for run, name in zip(runs, names, strict=True):
        setting = {key: value for key, value in run.setting.items() if key != "partition"}
        parts.append(panel(f"<h3>{html.escape(name)}</h3>" + _yaml("config.yaml", run.config) + _yaml("run.yaml", setting)))
    return "".join(parts)


def _yaml(title: str, content: dict[str, Any]) -> str:
    text = (
        yaml.safe_dump(content, sort_keys=False, allow_unicode=True) if content else "the run has none: it was made in Python\n"
    )
    return f"<details><summary>{title}</summary><pre>{html.escape(text)}</pre></details>"


def _cell(value: Any) -> str:
    return html.escape(f"{value:.4g}" if isinstance(value, float) else f"{value:,}" if isinstance(value, int) else str(value))
