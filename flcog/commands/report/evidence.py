"""The report's last part: the partition, the pictures that runs drew, and the whole configuration."""

import base64
import html
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml

from flcog.commands.report.groups import Group
from flcog.commands.report.markup import grid, long, on_demand, panel, table
from flcog.commands.report.run_files import RunFiles
from flcog.core.arguments import flat

MOST_PICTURES = 3
"""Pictures of one kind from one run: the first, the last and one between."""


def partitions(groups: Sequence[Group]) -> str:
    """How the data is spread over the clients: each split once, the first one open."""
    by_hash: dict[Any, list[tuple[str, RunFiles]]] = {}
    for group in groups:
        for run in group.runs:
            if isinstance(run.setting.get("partition"), dict) and run.setting["partition"]:
                by_hash.setdefault(run.setting["partition"].get("hash"), []).append((group.name, run))
    parts = [_partition(members, len(by_hash) > 1) for members in by_hash.values()]
    return "".join(parts[:1]) + on_demand(f"{len(parts) - 1} further splits", "".join(parts[1:]))


def _partition(members: Sequence[tuple[str, RunFiles]], named: bool) -> str:
    """A split's numbers, and its chart if any of its runs drew it."""
    seeds = dict.fromkeys(str(run.setting.get("seed", "unknown")) for _, run in members)
    names = dict.fromkeys(name for name, _ in members)
    of = f"<h3>{html.escape(', '.join(names))}, seed {html.escape(', '.join(seeds))}</h3>" if named else ""
    numbers = [[html.escape(name), _cell(value)] for name, value in members[0][1].setting["partition"].items()]
    chart = next((path for _, run in members for path in run.figures.get("partition", [])), None)
    drawn = "" if chart is None else picture(chart, "Circles: how many samples of each class each client has.")
    return panel(of + drawn + on_demand("The numbers", table(["number", "value"], numbers)))


def pictures(groups: Sequence[Group]) -> str:
    """Pictures that methods drew, such as generated images: of each group's first run, and the other runs' on demand."""
    first = grid([figure for group in groups for figure in _figures(group.runs[0], group.name)])
    rest = [
        figure
        for group in groups
        for run in group.runs[1:]
        for figure in _figures(run, f"{group.name}, seed {run.setting.get('seed', 'unknown')}")
    ]
    return first + on_demand(f"{len(rest)} pictures of further runs", grid(rest))


def answers(groups: Sequence[Group]) -> str:
    """Answers that instruction-tuned models gave, of each group's first run."""
    parts = []
    for group in groups:
        path = group.runs[0].directory / "answers.json"
        if path.is_file():
            content = json.loads(path.read_text(encoding="utf-8"))
            rows = [[long(row[name]) for name in ("prompt", "expected", "generated")] for row in content["answers"]]
            heading = f"<h3>{html.escape(group.name)}, after round {content['round']:,}</h3>"
            parts.append(panel(heading + table(["prompt", "answer in the data", "the model's answer"], rows)))
    return "".join(parts)


def _figures(run: RunFiles, name: str) -> list[str]:
    found = []
    for kind, paths in run.figures.items():
        if kind != "partition":
            chosen = sorted({round(i * (len(paths) - 1) / max(1, MOST_PICTURES - 1)) for i in range(MOST_PICTURES)})
            found += [_figure(paths[i], kind, name) for i in chosen]
    return found


def _figure(path: Path, kind: str, name: str) -> str:
    number = path.stem.rpartition("-")[2]
    when = f"after round {int(number)}" if number.isdigit() else ""
    title = f"{kind.replace('_', ' ').capitalize()}: {name}"
    return (
        f"<figure><figcaption><h3>{html.escape(title)}</h3><p>{when}</p></figcaption>{picture(path, f'{title}, {when}')}</figure>"
    )


def picture(path: Path, text: str) -> str:
    """A picture inside the page itself."""
    data = base64.b64encode(path.read_bytes()).decode()
    return f'<div class="picture"><img alt="{html.escape(text)}" loading="lazy" src="data:image/png;base64,{data}"></div>'


def configuration(groups: Sequence[Group]) -> str:
    """The groups' different settings, and on demand every run's whole configuration."""
    flats = [flat(group.runs[0].config) for group in groups]
    keys = dict.fromkeys(key for one in flats for key in one)
    differ = [key for key in keys if len({str(one.get(key, "not set")) for one in flats}) > 1]
    parts = []
    if differ:
        rows = [[html.escape(key), *(long(str(one.get(key, "not set"))) for one in flats)] for key in differ]
        compared = "first runs of the groups" if any(len(group.runs) > 1 for group in groups) else "runs"
        parts.append(panel(f"<h3>Where the {compared} differ</h3>{table(['setting', *(group.name for group in groups)], rows)}"))
    single = len(groups) == len(groups[0].runs) == 1
    named = [(group, run) for group in groups for run in group.runs]
    whole = "".join(_whole(run, group.name if len(group.runs) == 1 else f"{group.name}, {run.name}") for group, run in named)
    return "".join(parts) + (whole if single else on_demand("Every run's whole configuration", whole))


def _whole(run: RunFiles, name: str) -> str:
    setting = {key: value for key, value in run.setting.items() if key != "partition"}
    return panel(f"<h3>{html.escape(name)}</h3>" + _yaml("config.yaml", run.config) + _yaml("run.yaml", setting))


def _yaml(title: str, content: dict[str, Any]) -> str:
    text = yaml.safe_dump(content, sort_keys=False, allow_unicode=True) if content else "none: the run was made in Python\n"
    return on_demand(title, f"<pre>{html.escape(text)}</pre>")


def _cell(value: Any) -> str:
    return html.escape(f"{value:.4g}" if isinstance(value, float) else f"{value:,}" if isinstance(value, int) else str(value))
