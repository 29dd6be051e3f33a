"""The command: it reads the runs, draws their curves, and fills the page."""

import base64
import io
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from operator import methodcaller
from pathlib import Path
from typing import Any, NamedTuple

import jinja2
import pandas
from matplotlib import rc_context
from matplotlib.figure import Figure

from flcog.commands.curves import Panel, figure_of
from flcog.commands.of_a_run import IMPORT_FROM, checkpoint_of, open_run
from flcog.commands.report import tables
from flcog.commands.report.runs import Group, RunFiles, grouped, read_run
from flcog.commands.report.tables import SPREAD, Table, is_percent
from flcog.core.commands import parser_of
from flcog.core.files import replacing, short
from flcog.run.pictures import client_figure, confusion_figure

MOST_PICTURES = 3
"""Pictures of one kind from one run: the first, the last and one between."""

MEBIBYTE = 2**20


class Picture(NamedTuple):
    """A picture as an address that contains it, with its title."""

    title: str
    address: str


def report(arguments: list[str]) -> None:
    """Write one self-contained HTML page about one or several runs: curves, clients, bytes, partition, pictures, settings.

    Runs that differ only in their seed are shown as one, by their mean and range. The page needs no network. It contains figures of
    single clients and the whole configuration: check before you publish it.
    """
    parser = parser_of("report", report)
    parser.add_argument("runs", nargs="+", type=Path, metavar="RUN", help="a run's directory; several are compared")
    place = "the page; by default report.html in the run's directory, or in the working directory for several runs"
    parser.add_argument("--output", type=Path, help=place)
    parser.add_argument("--title", help="its heading")
    confusion = "add confusion matrices, for which the models predict the test set"
    parser.add_argument("--confusion", action="store_true", help=confusion)
    parser.add_argument("--import-from", type=Path, metavar="FOLDER", help=f"beside --confusion: {IMPORT_FROM}")
    options = parser.parse_args(arguments)
    runs = [read_run(directory) for directory in options.runs]
    output = options.output or (runs[0].directory if len(runs) == 1 else Path()) / "report.html"
    with replacing(output, "w") as file:
        file.write(page(runs, options.title, options.confusion, options.import_from))
    print(short(output))


def page(runs: Sequence[RunFiles], title: str | None = None, confusion: bool = False, import_from: Path | None = None) -> str:
    """The whole page."""
    groups = grouped(runs)
    template = Path(__file__).with_name("page.html").read_text(encoding="utf-8")
    charts = {name: list(panels) for name, panels in _charts(groups).items()}
    firsts = [(group.name, group.runs[0]) for group in groups]
    configurations, differing = list(tables.whole_configurations(groups)), tables.differing_settings(groups)
    return (
        jinja2.Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True)
        .from_string(template)
        .render(
            title=title or _title(groups),
            about=_about(runs),
            results=list(tables.results(groups)),
            notes=list(tables.notes(groups)),
            charts={name: _drawn(name, panels, groups) for name, panels in charts.items() if panels},
            clients=[_clients(name, run) for name, run in firsts if (run.directory / "clients.csv").is_file()],
            confusions=[_confusion(name, run, import_from) for name, run in firsts if confusion],
            pictures=[picture for group in groups for run in group.runs for picture in _pictures(run, group.name)],
            answers=list(_answers(groups)),
            partitions=list(_partitions(runs)),
            differing=differing if differing.rows else None,
            configurations=configurations,
        )
    )


def _title(groups: Sequence[Group]) -> str:
    runs = [run for group in groups for run in group.runs]
    data = {str(run.setting.get("data")) for run in runs if run.setting.get("data")}
    where = f" on {data.pop()}" if len(data) == 1 else ""
    names = [group.name for group in groups]
    return (", ".join(names) if len(names) <= 4 else f"{len(runs)} runs of {len(names)} methods") + where


def _about(runs: Sequence[RunFiles]) -> str:
    """The model, the number of clients and the commit, if all runs have them in common."""
    words = {"model": "{}", "num_parameters": "{:,} parameters", "num_clients": "{:,} clients", "git_commit": "commit {:.10}"}
    values = {key: {run.setting.get(key) for run in runs} for key in words}
    return ", ".join(words[key].format(*found) for key, found in values.items() if len(found) == 1 and None not in found)


def _charts(groups: Sequence[Group]) -> Mapping[str, Iterator[Panel]]:
    """The panels of each section: scores and losses, clients' spread, bytes, and everything else that the runs have logged."""
    runs = [run for group in groups for run in group.runs]
    columns = list(dict.fromkeys(name for run in runs for row in run.rows for name in row))
    mains = dict.fromkeys(name for run in runs for name in (run.main, run.chooser) if name is not None)
    scores = [name for name in dict.fromkeys([*mains, "test/loss", "val/loss", "train/loss"]) if name in columns]
    spread = [f"{name.removesuffix('_q50')}{end}" for name in columns if name.endswith("_q50") for end in SPREAD]
    clients = [name for name in spread if name.endswith(("_q10", "_q50", "_q90", "_worst_decile"))]
    drawn = (*scores, *spread, "round")
    others = [name for name in columns if name not in drawn and not name.endswith("/loss") and "comm/" not in name]
    return {
        "Curves": _by_round(groups, scores),
        "Clients": _by_round(groups, clients),
        "Bytes": _bytes(groups, mains),
        "Further measurements": _by_round(groups, others),
    }


def _by_round(groups: Sequence[Group], columns: Sequence[str]) -> Iterator[Panel]:
    for column in columns:
        percent = is_percent(column, groups)
        yield from _panel(groups, column, "Round", column, methodcaller("column", column), percent)


def _bytes(groups: Sequence[Group], scores: Mapping[str, None]) -> Iterator[Panel]:
    """Bytes in all by round, and the score for the bytes that the clients had sent by then."""
    for way, what in (("up", "from clients to the server"), ("down", "from the server to clients")):
        yield from _panel(groups, f"Sent {way}, {what}", "Round", "MiB in all", partial(_sent, way=way))
    for score in scores:
        percent = is_percent(score, groups)
        own = [group for group in groups if group.runs[0].main == score]
        yield from _panel(own, f"{score} by bytes", "MiB sent up", score, methodcaller("column", score), percent, _sent)


def _sent(run: RunFiles, way: str = "up") -> pandas.Series:
    return run.column(f"comm/{way}_bytes").cumsum() / MEBIBYTE


def _panel(
    groups: Sequence[Group],
    title: str,
    x: str,
    y: str,
    values: Callable[[RunFiles], pandas.Series],
    percent: bool = False,
    places: Callable[[RunFiles], pandas.Series] | None = None,
) -> Iterator[Panel]:
    """A panel with a line for each group; none if no run has a finite value."""
    lines = {group.name: group.curve(lambda run: values(run) * (100 if percent else 1), places) for group in groups}
    if drawn := {name: line for name, line in lines.items() if len(line)}:
        yield Panel(title, x, y + " (%)" * percent, drawn)


def _drawn(name: str, panels: Sequence[Panel], groups: Sequence[Group]) -> Picture:
    """The panels as one picture, and in words for readers who cannot see it."""
    ends = (f"{panel.title}, {of} ends at {line['mean'].iloc[-1]:.4g}" for panel in panels for of, line in panel.lines.items())
    return _svg(f"{name}: {'; '.join(ends)}", figure_of(panels, [group.name for group in groups]))


def _svg(title: str, figure: Figure) -> Picture:
    file = io.BytesIO()
    with rc_context({"svg.fonttype": "none", "svg.hashsalt": "flcog"}):  # equal runs give equal pages
        figure.savefig(file, format="svg", metadata={"Date": None})
    return Picture(title, _address("svg+xml", file.getvalue()))


def _clients(name: str, run: RunFiles) -> Picture:
    table = pandas.read_csv(run.directory / "clients.csv")
    columns = {column: table[column].to_numpy() for column in table}
    return _svg(f"Clients of {name}, seed {run.seed}", client_figure(columns, run.rows))


def _confusion(name: str, run: RunFiles, import_from: Path | None) -> Picture:
    cli, checkpoint = open_run(run.directory, import_from), checkpoint_of(run.directory, None)
    predictions = cli.trainer.predict(cli.model, cli.datamodule, str(checkpoint))
    title = f"Confusion of {name}'s global model, seed {run.seed}, {checkpoint.stem} checkpoint"
    return _svg(title, confusion_figure(predictions, getattr(cli.datamodule, "class_names", None)))


def plot(runs: Sequence[Any], *columns: str) -> Figure:
    """Compare runs by round in one figure: their main scores and losses, or the columns that are named, with a panel for each.

    Args:
        runs: folders of runs, or trainers that have run. Runs that differ only in their seed share a line, with a band.
        columns: columns of ``metrics.csv``.
    """
    groups = grouped([read_run(Path(getattr(run, "run_dir", run))) for run in runs])
    panels = list(_by_round(groups, columns)) if columns else list(_charts(groups)["Curves"])
    missing = set(columns) - {panel.title for panel in panels}
    if missing or not panels:
        known = sorted({name for group in groups for run in group.runs for row in run.rows for name in row} - {"round"})
        raise ValueError(f"no run has the column {min(missing, default='of a score')}; they have {', '.join(known)}")
    return figure_of(panels, [group.name for group in groups])


def _address(form: str, content: bytes) -> str:
    return f"data:image/{form};base64,{base64.b64encode(content).decode()}"


def _pictures(run: RunFiles, name: str) -> Iterator[Picture]:
    """Pictures that methods drew, such as generated images."""
    for kind, paths in run.figures.items():
        chosen = sorted({round(i * (len(paths) - 1) / (MOST_PICTURES - 1)) for i in range(MOST_PICTURES)})
        for path in () if kind == "partition" else (paths[i] for i in chosen):
            number = path.stem.rpartition("-")[2]
            when = f", after round {int(number)}" if number.isdigit() else ""
            title = f"{kind.replace('_', ' ').capitalize()}: {name}, seed {run.seed}{when}"
            yield Picture(title, _address("png", path.read_bytes()))


def _answers(groups: Sequence[Group]) -> Iterator[Table]:
    """Answers that instruction-tuned models gave, of each group's first run."""
    for group in groups:
        path = group.runs[0].directory / "answers.json"
        if path.is_file():
            content = json.loads(path.read_text(encoding="utf-8"))
            rows = [[row[name] for name in ("prompt", "expected", "generated")] for row in content["answers"]]
            title = f"{group.name}, after round {content['round']:,}"
            yield Table(title, ["prompt", "answer in the data", "the model's answer"], rows)


def _partitions(runs: Sequence[RunFiles]) -> Iterator[tuple[Table, Picture | None]]:
    """Each split once: its numbers, and its chart if any of its runs drew it."""
    by_hash: dict[str, list[RunFiles]] = {}
    for run in runs:
        if isinstance(partition := run.setting.get("partition"), dict) and partition:
            by_hash.setdefault(str(partition.get("hash")), []).append(run)
    for members in by_hash.values():
        chart = next((path for run in members for path in run.figures.get("partition", [])), None)
        title = "Circles: how many samples of each class each client has."
        picture = None if chart is None else Picture(title, _address("png", chart.read_bytes()))
        yield tables.partition_table(members, len(by_hash) > 1), picture
