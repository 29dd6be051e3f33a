"""The command ``flcog cite``: BibTeX for a run's methods and data.

A docstring's address names the paper, ``references.bib`` holds its entry.
"""

import inspect
import pkgutil
import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from flcog.commands.of_a_run import IMPORT_FROM, import_only_from
from flcog.core.commands import parser_of
from flcog.run.saved_run import SavedRun

ADDRESS = re.compile(r"https?://[^\s,;)]*[^\s,;).:]")


def cite(arguments: list[str]) -> None:
    """Print the BibTeX of a run's methods and data, and flcog's own."""
    parser = parser_of("cite", cite)
    parser.add_argument("run", type=Path, help="the run's directory")
    parser.add_argument("--import-from", type=Path, metavar="FOLDER", help=IMPORT_FROM)
    options = parser.parse_args(arguments)
    saved = SavedRun(options.run)
    saved.file("run.yaml")
    import_only_from(options.import_from)
    print(bibliography(parts_of(saved.description, saved.config)))


class Entry(NamedTuple):
    """One entry of BibTeX."""

    key: str
    text: str

    def field(self, name: str) -> str:
        found = re.search(rf"\b{name} = {{(.*)}}", self.text)
        return found[1] if found else ""


@cache
def entries() -> dict[str, Entry]:
    """Return the entries of ``references.bib`` by their keys."""
    text = Path(__file__).with_name("references.bib").read_text(encoding="utf-8")
    found = re.findall(r"^(@\w+{(\w+),.*?^})", text, flags=re.MULTILINE | re.DOTALL)
    return {key: Entry(key, entry) for entry, key in found}


def citations(cls: type) -> list[Entry]:
    """Return the papers that describe a class: its docstring names their first author before the address.

    >>> from flcog.callbacks import FedProx
    >>> [entry.key for entry in citations(FedProx)]
    ['li2020fedprox']
    """
    text, known, cited, end = " ".join((inspect.getdoc(cls) or "").split()), entries().values(), [], 0
    for match in ADDRESS.finditer(text):
        before, end = text[max(end, match.start() - 250) : match.start()], match.end()
        entry = next((one for one in known if one.field("url") == match[0]), None)
        if entry is None:
            entry = _made_of(before, match[0])
        elif entry.field("author").partition(",")[0] not in before:
            entry = None
        cited += [entry] if entry is not None and entry not in cited else []
    return cited


def _made_of(before: str, address: str) -> Entry | None:
    """Make an entry from a sentence like "Doe et al., A Title, ICML 2030, https://...", as in a user's own method."""
    found = re.search(r"([A-Z][\w'-]+)(?: et al\.| and ([A-Z][\w'-]+))?, ([^.]+?), (?:([\w ]+?) )?((?:19|20)\d\d), $", before)
    if found is None:
        return None
    first, second, title, place, year = found.groups()
    fields = {"author": f"{first} and {second or 'others'}", "title": title, "howpublished": place, "year": year, "url": address}
    lines = [f"  {name} = {{{value}}}," for name, value in fields.items() if value]
    key = f"{first.lower()}{year}"
    return Entry(key, "\n".join([f"@misc{{{key},", *lines, "}"]))


def parts_of(setting: Mapping[str, Any], config: Mapping[str, Any]) -> dict[str, type | None]:
    """Find the classes of a run's methods and data and of their arguments, by name. None for a class that is not found."""
    names = [text.partition("(")[0] for text in setting.get("methods") or []]
    callbacks = (config.get("trainer") or {}).get("callbacks") or []
    listed = [one if isinstance(one, dict) else {"class_path": one} for one in callbacks]
    paths = [path for one in listed if one["class_path"].split(".")[-1] in names for path in _class_paths(one)]
    paths += _class_paths(config.get("data"))
    paths += [name for name in (*names, setting.get("data")) if name and name not in {path.split(".")[-1] for path in paths}]
    return {path.split(".")[-1]: _find(path) for path in paths}


def _class_paths(value: Any) -> Iterator[str]:
    if isinstance(value, dict) and isinstance(value.get("class_path"), str):
        yield value["class_path"]
    for part in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        yield from _class_paths(part)


def _find(path: str) -> type | None:
    """Import the class at this path. None for anything that cannot be imported, or is no class."""
    for place in [path] if "." in path else [f"flcog.callbacks.{path}", f"flcog.datamodules.{path}"]:
        with suppress(Exception, SystemExit):  # a module may raise anything while it is imported
            if isinstance(found := pkgutil.resolve_name(place), type):
                return found
    return None


def bibliography(used: dict[str, type | None]) -> str:
    """Format each entry once, below the names of the classes that cite it, and list the classes without a paper."""
    needs: dict[Entry, list[str]] = {entries()["flcog"]: [], entries()["mcmahan2017"]: ["the rounds themselves, FedAvg"]}
    silent = []
    for name, cls in used.items():
        cited = citations(cls) if cls is not None else []
        for entry in cited:
            needs.setdefault(entry, []).append(name)
        silent += [] if cited else [name]
    blocks = ["\n".join([f"% {', '.join(names)}", entry.text] if names else [entry.text]) for entry, names in needs.items()]
    if silent:
        blocks.append(f"% No paper is named by {', '.join(silent)}")
    return "\n\n".join(blocks)
