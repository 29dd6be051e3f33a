"""Find the configs that come with the package by name: ``-c quickstart``, ``-c methods/fedprox``, ``flcog compare digits``."""

import difflib
import itertools
import os
import re
from collections.abc import Iterable, Sequence
from pathlib import Path

from flcog.commands.config_file import changes_of, split_config
from flcog.core.commands import parser_of


def folder() -> Path:
    """Return their folder: inside the installed package, or beside it in a clone."""
    package = Path(__file__).parents[1]
    inside = package / "configs"
    return inside if inside.is_dir() else package.parent / "configs"


def names() -> list[str]:
    """Return the names of all shipped configs. The list of the papers' tables, which only compare reads, is left out."""
    found = (path.relative_to(folder()).with_suffix("").as_posix() for path in folder().rglob("*.yaml"))
    return sorted(name for name in found if name != "papers")


def find(given: str, within: str = "") -> str:
    """Find the path of the config that ``given`` names, with or without ``configs/`` before, ``.yaml`` behind and the folder ``within``.

    A user's file is preferred to a shipped config. Returns ``given`` itself if there is neither. A folder is no config: ``flcog
    compare digits --out digits`` makes a folder, and the same command can be repeated.
    """
    return given if _is_file(given) else str(shipped(given, within) or given)


def shipped(given: str, within: str = "") -> Path | None:
    """Return the shipped config of that name, if there is one. The arguments are the same as in :func:`find`."""
    name = re.sub(r"\.yaml$", "", re.sub(r"^(\./)?configs/", "", given))
    found = next((known for known in (name, f"{within}/{name}") if known in names()), None)
    return None if found is None else folder() / f"{found}.yaml"


def near(given: str) -> str:
    """Ask whether the shipped config with the most similar name was meant. Empty if no name is similar."""
    known = {name.rpartition("/")[2]: name for name in names()} | {name: name for name in names()}
    close = difflib.get_close_matches(re.sub(r"\.yaml$", "", given).lower(), known, n=1)
    return f" Did you mean {known[close[0]]!r}?" if close else ""


def with_paths(arguments: Iterable[str]) -> list[str]:
    """Replace the names of shipped configs and of runs on a command line by their configs' paths. Refuse other words that name no file.

    Each config whose callbacks are a mapping is followed by the mapping's entries, as options of single callbacks.
    """
    words = []
    for before, word in itertools.pairwise(["", *arguments]):
        option, config = split_config(before, word)
        if config and os.path.isfile(of_run := os.path.join(config, "config.yaml")):
            config = of_run
        path = find(config) if config else ""
        if path and not (_is_file(path) or re.search(r"[:{\n]", path)):  # neither an address nor a config's own text
            raise ValueError(f"-c takes a YAML file, or a name that flcog configs lists: there is no file {path}.{near(path)}")
        words += [option + path, *(changes_of(path) if os.path.isfile(path) else ())]
    return words


def configs(arguments: Sequence[str]) -> None:
    """List the configs that come with flcog, which -c and compare take by name."""
    parser = parser_of("configs", configs, epilog="flcog configs methods/fedprox prints one, to read or to copy.")
    parser.add_argument("name", nargs="?", help="a config to print, or a part of the names to list")
    given = parser.parse_args(arguments).name
    path = Path(find(given)) if given else folder()
    if _is_file(path):
        print(path.read_text(encoding="utf-8"), end="")
        return
    listed = [name for name in names() if given is None or given in name]
    if not listed:
        raise ValueError(f"no config that comes with flcog has {given!r} in its name; flcog configs lists them all")
    width = max(map(len, listed))
    for name in listed:
        print(f"{name:<{width}}  {summary(folder() / f'{name}.yaml')}".rstrip())


def _is_file(path: str | Path) -> bool:
    return os.path.exists(path) and not os.path.isdir(path)  # also for a pipe, and for a text that is too long for a name


def summary(path: Path) -> str:
    """Summarise a config in one line: a table's title, or the classes that it adds and the first sentence below its command."""
    text = path.read_text(encoding="utf-8")
    if title := re.search(r"^title: (.+)$", text, re.MULTILINE):
        return title[1].strip("\"'")
    added, said = re.findall(r"class_path: flcog\.callbacks\.(\w+)$", text, re.MULTILINE), _first_sentence(text)
    return ": ".join(filter(None, [", ".join(dict.fromkeys(added)), said]))


def _first_sentence(text: str) -> str:
    """Return the first sentence of the comment at the top of a config, after the command that runs it."""
    head = re.match(r"(?:#.*\n)*", text)
    paragraphs = re.sub(r"^# ?", "", head[0] if head else "", flags=re.MULTILINE).split("\n\n")
    said = next((part for part in paragraphs if part.strip() and not part.startswith("flcog ")), "")
    return re.split(r"[.:]\s(?=[A-Z])", " ".join(said.split()), maxsplit=1)[0].rstrip(".")
