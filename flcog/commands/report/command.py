"""The command: it reads the runs and writes the page."""

import html
from collections.abc import Sequence
from pathlib import Path

from flcog.commands.report import curves, evidence, overview
from flcog.commands.report.groups import Group, grouped
from flcog.commands.report.run_files import RunFiles, read_run
from flcog.core.commands import parser_of
from flcog.core.files import replacing, short
from flcog.run.directory import own_file


def report(arguments: list[str]) -> None:
    """Write one self-contained HTML page about one or several runs: curves, clients, bytes, partition, pictures, settings.

    Runs that differ only in their seed are shown as one, by their mean and range. The page needs no network. It contains figures of
    single clients and the whole configuration: check before you publish it.
    """
    parser = parser_of("report", report)
    parser.add_argument("runs", nargs="+", type=Path, metavar="RUN", help="a run's directory; several are compared")
    parser.add_argument(
        "--output",
        type=Path,
        help="the page; by default report.html in the run's directory, or in the working directory for several runs",
    )
    parser.add_argument("--title", help="its heading")
    options = parser.parse_args(arguments)
    runs = [read_run(directory) for directory in options.runs]
    if len({run.directory.resolve() for run in runs}) < len(runs):
        raise ValueError("a run is listed twice: list each run once")
    output = options.output or own_file(runs[0].directory if len(runs) == 1 else Path(), "report.html")
    with replacing(output, "w") as file:
        file.write(page(runs, options.title))
    print(short(output))


def page(runs: Sequence[RunFiles], title: str | None = None) -> str:
    """The whole page."""
    groups = grouped(runs)
    title = title or _title(groups)
    sections = {
        "Results": overview.results(groups),
        "Curves": curves.scores(groups),
        "Clients": curves.clients(groups),
        "Bytes": curves.bytes_sent(groups),
        "Pictures": evidence.pictures(groups),
        "Answers": evidence.answers(groups),
        "Partition": evidence.partitions(groups),
        "Further measurements": curves.others(groups),
        "Configuration": evidence.configuration(groups),
    }
    body = "".join(
        f'<section id="{_id(name)}"><h2>{name}</h2>{content}</section>' for name, content in sections.items() if content
    )
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{html.escape(title)}</title><style>{_file('page.css')}</style></head><body>"
        f'<a class="skip" href="#results">Skip to the results</a><header><h1>{html.escape(title)}</h1><p>{_about(runs)}</p></header>'
        f"<main>{body}</main><footer><p>Written by flcog report.</p></footer><script>{_file('page.js')}</script></body></html>\n"
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
    common = [words[key].format(*found) for key, found in values.items() if len(found) == 1 and None not in found]
    return html.escape(", ".join(common))


def _id(name: str) -> str:
    return name.lower().replace(" ", "-")


def _file(name: str) -> str:
    return Path(__file__).with_name(name).read_text(encoding="utf-8")
