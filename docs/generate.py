"""Generates the pages of the site that come from the code: methods, data sets, observers, schedules, the command line, Python's classes.

mkdocs-gen-files runs it at each build and keeps the pages in memory.
"""

import contextlib
import inspect
import io
import re
import statistics
from collections.abc import Iterator
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any

import mkdocs_gen_files
import yaml
from latex2mathml.converter import convert

import flcog.callbacks
import flcog.datamodules
import flcog.schedules
from flcog.commands.cite import citations
from flcog.commands.cli import COMMANDS
from flcog.commands.compare.result_table import ResultTable
from flcog.commands.compare.runs import runs_of
from flcog.commands.compare.saved_results import results_of
from flcog.commands.compare.table import read_table
from flcog.commands.compare.tuning import with_choices
from flcog.commands.methods import all_methods
from flcog.core.commands import TrainerCommand
from flcog.core.text import first_paragraph

ROOT = Path(__file__).parents[1]
PAGES = yaml.safe_load((ROOT / "docs/method_pages.yaml").read_text(encoding="utf-8"))
MODULES = ("ClientModule", "Classifier", "MultiLabelClassifier", "Regressor")
MAIN_CLASSES = ("FederatedTrainer", *MODULES, "FederatedDataModule", "SavedRun")


def write(path: str, text: str) -> None:
    with mkdocs_gen_files.open(path, "w") as file:
        file.write(text.rstrip() + "\n")


def pages_of_the_root() -> None:
    """The pages of docs/, and README, RESULTS and others from the top of the tree, with links to the site's pages."""
    names = {f"{name}.md": f"{name.lower()}.md" for name in ("RESULTS", "REPRODUCED", "CONTRIBUTING")}
    names |= {"README.md": "index.md", "results/earlier/README.md": "earlier.md"}
    names |= {f"results/{name}.md": f"{name}.md" for name in ("fedcog", "findings", "not-run")}
    for name, page in names.items():
        text = (ROOT / name).read_text(encoding="utf-8").replace("](../", "](").replace("](docs/", "](")
        text = re.sub(r"\[([\w-]+)\]\(configs/tables/[\w-]+\.yaml\)", r"`\1`", text)  # the site has no configs
        text = text.replace("[each judged figure](results/verdicts.csv)", "`results/verdicts.csv`")
        for other, target in names.items():
            text = re.sub(rf"\]\({other}(#[^)]*)?\)", rf"]({target}\1)", text)
        write(page, re.sub(r"\]\((data-sets|methods)\.md\)", r"](\1/index.md)", text))
    classes = {"observers": observers(), "schedules": schedules()}
    for path in sorted((ROOT / "docs").glob("*.md")):
        text = path.read_text(encoding="utf-8").replace("](../results/earlier/README.md)", "](earlier.md)")
        text = re.sub(r"\]\(\.\./results/([\w-]+)\.md", r"](\1.md", text)
        text = re.sub(r"\]\(\.\./([A-Z]+)\.md", lambda m: f"]({m[1].lower()}.md", text)
        text = re.sub(r"\]\((data-sets|methods)\.md", r"](\1/index.md", text)
        text += "".join(f"\n\n## {cls.__name__}\n\n{_prose(cls, level=3)}" for cls in classes.get(path.stem, ()))
        if path.stem in ("methods", "data-sets"):  # they become the first pages of their sections
            text = wide(text) if path.stem == "methods" else text
            write(f"{path.stem}/index.md", _linked(re.sub(r"\]\(([\w/-]+\.md)", r"](../\1", text), path.stem))
        else:
            write(path.name, text)


def wide(text: str) -> str:
    """The page of methods with a table as wide as the screen."""
    before, start, rest = text.partition("<!-- methods -->\n")
    table, end, after = rest.partition("<!-- /methods -->")
    return f'---\nhide: [toc]\n---\n\n{before}{start}<div class="wide-table" markdown>\n\n{table}\n</div>\n{end}{after}'


def observers() -> list[type]:
    exported = [getattr(flcog.callbacks, name) for name in flcog.callbacks.__all__]
    found = [cls for cls in exported if isinstance(cls, type) and issubclass(cls, flcog.Callback)]
    return [cls for cls in found if cls not in all_methods()]


def schedules() -> list[type]:
    return flcog.schedules.Schedule.__subclasses__()


def _linked(text: str, section: str) -> str:
    """Each name in the first column of a table becomes a link to its own page."""
    pattern = r"^\| `?(\w+)`? \|" if section == "data-sets" else r"^\| (\w+) \|"
    known = {cls.__name__ for cls in (data_modules() if section == "data-sets" else all_methods())}
    return re.sub(pattern, lambda m: f"| [{m[1]}]({m[1]}.md) |" if m[1] in known else m[0], text, flags=re.MULTILINE)


def data_modules() -> list[type]:
    exported = [getattr(flcog.datamodules, name) for name in flcog.datamodules.__all__]
    return [cls for cls in exported if isinstance(cls, type) and issubclass(cls, flcog.FederatedDataModule)]


def methods() -> Iterator[str]:
    row_of = {
        line.split(" | ")[0].strip("| "): line for line in (ROOT / "docs/methods.md").read_text().splitlines() if line[:1] == "|"
    }
    for cls in all_methods():
        name = cls.__name__
        equations = "\n\n".join(_formula(line) for line in PAGES[name].get("equations", ()))
        prose = _prose(cls, f"{equations}\n\n**When to use it.** {PAGES[name]['when']}")
        text = f"# {name}\n\n{prose}\n\n## Run it\n\n{_configs(name)}"
        if name in row_of:
            text += "\n\n## What it sends, and where it works\n\n" + _upright(row_of["method"], row_of[name])
        text += _tables(name) + _measured(name) + _cite(cls)
        write(f"methods/{name}.md", text)
        yield name


def _formula(latex: str) -> str:
    """A formula as MathML, with equally tall bars on both sides of a norm."""
    return re.sub(r"<mo[^>]*>(&#x0?2225;|&#x0?2016;|∥|‖)</mo>", r'<mo stretchy="false">\1</mo>', convert(latex, display="block"))


def _upright(header: str, row: str) -> str:
    """A row of the table of methods, a line for each of its columns from the third on: the sentence before them heads the page."""
    pairs = list(zip(*(re.split(r" *\| *", line.strip("| ")) for line in (header, row)), strict=False))[2:]
    return "\n".join(["| | |", "|---|---|", *(f"| {name} | {value} |" for name, value in pairs if value)])


def data_sets() -> Iterator[str]:
    for cls in data_modules():
        name = cls.__name__
        write(f"data-sets/{name}.md", f"# {name}\n\n{_prose(cls)}{_cite(cls)}\n")
        yield name


def _prose(cls: type, equations: str = "", level: int = 2) -> str:
    """A docstring as Markdown, its first sentence followed by the equations; its headings have the given level."""
    text = re.sub(r":\w+:`~?([\w.]+)`", lambda m: f"`{m[1].rpartition('.')[2]}`", inspect.getdoc(cls) or "")
    text = text.replace("``", "`")
    body, *sections = re.split(r"^(Args|Example|Examples):\n", text, flags=re.MULTILINE)
    body = re.sub(r"::\n\n((?:    .*(?:\n|$)|\n)+)", _block, body)
    body = re.sub(r"(?<![(<`])https?://[^\s),;]+[^\s),;.]", r"<\g<0>>", body)
    first, _, rest = body.partition("\n\n")
    parts = [first.strip(), equations, rest.strip()]
    for title, content in zip(sections[::2], sections[1::2], strict=True):
        parts.append(_arguments(content) if title == "Args" else _example(content))
    text = "\n\n".join(part for part in parts if part)
    return text if level == 2 else text.replace("## Arguments\n\n", "").replace("## Example\n\n", "")


def _example(content: str) -> str:
    """An example, and the text that follows it."""
    code, _, rest = content.partition("\n\n    ")
    rest = re.sub(r"::\n\n((?:    .*(?:\n|$)|\n)+)", _block, inspect.cleandoc("    " + rest) + "\n") if rest else ""
    return f"## Example\n\n```python\n{inspect.cleandoc(code)}\n```\n\n{rest}".rstrip()


def _block(found: re.Match[str]) -> str:
    return ":\n\n```text\n" + inspect.cleandoc(found[1]) + "\n```\n\n"


def _arguments(content: str) -> str:
    """The arguments as a table."""
    entries = re.findall(r"^    ([\w, *]+): ((?:.*\n?)(?:(?:        .*)?\n?)*)", content + "\n", re.MULTILINE)
    rows = [f"| `{name}` | {' '.join(said.split()).replace('|', chr(92) + '|')} |" for name, said in entries]
    return "\n".join(["## Arguments", "", "| argument | |", "|---|---|", *rows])


def _configs(name: str) -> str:
    """The configs that add the method."""
    found = [path for path in sorted((ROOT / "configs/methods").glob("*.yaml")) if _adds(path, name)]
    lines = [f"    flcog fit -c quickstart -c methods/{path.stem}" for path in found if "DATA" not in path.read_text()]
    if not lines:
        lines = [f"    flcog fit -c quickstart --trainer.callbacks+={name}"]
    shown = "\n\n".join(f"`methods/{path.stem}`:\n\n```yaml\n{path.read_text().rstrip()}\n```" for path in found)
    return "\n".join(lines) + (f"\n\n{shown}" if shown else "")


@cache
def _classes(path: Path) -> set[str]:
    return set(re.findall(r"flcog\.callbacks\.(\w+)\b", path.read_text()))


def _adds(path: Path, name: str) -> bool:
    return name in _classes(path)


def _tables(name: str) -> str:
    """The papers' tables that compare the method."""
    lines = []
    for path in sorted((ROOT / "configs/tables").glob("*.yaml")):
        table = yaml.safe_load(path.read_text())
        if _uses(table.get("rows"), path, name):
            lines.append(f"- `flcog compare {path.stem}`: {table.get('title', '')}")
    return "\n\n## Tables that compare it\n\n" + "\n".join(lines) if lines else ""


def _uses(rows: Any, path: Path, name: str) -> bool:
    if isinstance(rows, str):
        return _uses(yaml.safe_load((path.parent / rows).read_text()).get("rows"), path, name)
    configs = [path.parent / config for row in (rows or {}).values() if row for config in row.get("configs", ())]
    return any(_adds(config.resolve(), name) for config in configs)


@cache
def _saved(path: Path) -> ResultTable:
    """The saved results of a table, with the values that --tune chose."""
    table = with_choices(read_table(ROOT / "configs/tables" / f"{path.stem}.yaml"), path.with_suffix(".tuned.yaml"))
    return ResultTable(table, results_of(table, runs_of(table, path.with_suffix("")), path))


def _measured(name: str) -> str:
    """The measured scores of the method's rows (``results/``) beside the published ones."""
    lines = []
    for path in sorted(set((ROOT / "results").glob("*.csv")) - {ROOT / "results/verdicts.csv"}):
        filled = _saved(path)
        table = filled.table
        for row, column in product(table.rows, table.views):
            scores = filled.scores(row, column, "best").tolist()
            if scores and any(_adds(config, name) for config in table.rows[row].configs):
                spread = f" ± {statistics.stdev(scores):.2f}" if len(scores) > 1 else ""
                figure = table.figures(row, column).get("score")
                score = "" if figure is None else f"{figure.value:g}"
                lines.append(
                    f"| `{path.stem}` | {row} | {column} | {len(scores)} | {statistics.mean(scores):.2f}{spread} | {score} |"
                )
    head = "| table | row | setting | seeds | best | published |\n|---|---|---|---|---|---|\n"
    return "\n\n## Measured\n\n" + head + "\n".join(lines) if lines else ""


def _cite(cls: type) -> str:
    found = citations(cls)
    return "\n\n## Cite it\n\n```bibtex\n" + "\n\n".join(entry.text for entry in found) + "\n```" if found else ""


def command_line() -> None:
    parts = [
        "# Command line\n\n`flcog COMMAND --help` lists every option. `flcog fit` and its like take those of the trainer, the model and "
        "the data: `flcog fit -c quickstart --print_config` prints them all."
    ]
    for command in COMMANDS.values():
        parts.append(f"## flcog {command.name}\n\n{_command(command)}")
    write("cli.md", "\n\n".join(parts))


def _command(command: Any) -> str:
    if isinstance(command, TrainerCommand):
        text = inspect.getdoc(command.run) or ""
        arguments = text.partition("Args:\n")[2]
        options = [
            name for name in inspect.signature(command.run).parameters if name not in ("self", "model", "datamodule", "trainer")
        ]
        own = [line for line in _arguments(arguments).splitlines() if any(f"| `{name}" in line for name in options)]
        table = "\n".join(["| option | |", "|---|---|", *own])
        return first_paragraph(command.run).replace("``", "`") + (f"\n\n{table}" if own else "")
    return f"```text\n{_help(command)}\n```"


def _help(command: Any) -> str:
    """The output of ``--help``."""
    said = io.StringIO()
    with contextlib.redirect_stdout(said), contextlib.suppress(SystemExit):
        command.run(["--help"])
    return said.getvalue().rstrip()


def python() -> None:
    names = [name for name in flcog.__all__ if name not in (*MAIN_CLASSES, "models", "schedules", "seed_everything")]
    parts = [f"::: flcog.{name}" for name in MAIN_CLASSES]
    parts += ["## Hooks and their types", *(f"::: flcog.{name}\n    options: {{heading_level: 3}}" for name in names)]
    parts += ["## Models\n\n::: flcog.models\n    options: {heading_level: 3, show_root_heading: false}"]
    write("api.md", "# Python\n\n" + "\n\n".join(parts))


def navigation(section: str, names: Iterator[str]) -> None:
    nav = mkdocs_gen_files.Nav()
    nav["Overview"] = "index.md"
    for name in names:
        nav[name] = f"{name}.md"
    write(f"{section}/SUMMARY.md", "".join(nav.build_literate_nav()))


pages_of_the_root()
navigation("methods", methods())
navigation("data-sets", data_sets())
command_line()
python()
