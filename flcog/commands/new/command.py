"""The command itself: fills the templates of a kind, each in a folder beside it, with a name."""

import keyword
import re
from pathlib import Path

import flcog.callbacks
from flcog.core.commands import parser_of
from flcog.core.files import replacing

USES = {
    "method": "-c {module}.yaml",
    **dict.fromkeys(("attack", "codec", "rule", "optimizer", "selection"), "--trainer.callbacks+={module}.{cls}"),
    "metric": "--model.metrics {module}.{cls}",
    "split": "--data.partitioner {module}.{cls}",
    "tracker": "--trainer.logger {module}.{cls}",
}
"""The words behind ``flcog fit -c quickstart`` that use a part, by its kind. docs/your-part.md shows the kinds.

A template has the name of the file that it becomes, and .txt behind it.
"""


def new(arguments: list[str]) -> None:
    """Begin a part of your own here: a small one that works.

    A method has a YAML, a reference in plain torch, and tests, which pass. Change the method and its reference, each from the paper, until
    the tests pass again.
    """
    parser = parser_of("new", new)
    parser.add_argument("kind", choices=list(USES), help="what to begin; optimizer is the server's")
    parser.add_argument("name", metavar="NAME", help="of the class, such as MyMethod; its files are called my_method")
    options = parser.parse_args(arguments)
    cls, module = names_of(options.name)
    templates = sorted((Path(__file__).parent / options.kind).glob("*.txt"))
    contents = {Path(_named(path.stem, cls, module)): _named(path.read_text(encoding="utf-8"), cls, module) for path in templates}
    for path in contents:
        if path.exists():
            raise ValueError(f"{path} exists already: choose another name, or remove it")
    for path, content in contents.items():
        with replacing(path, "w") as file:
            file.write(content)
        print(path)
    tested = f"Test it:\n  pytest test_{module}.py\n" if options.kind == "method" else ""
    print(f"\n{tested}Run it:\n  flcog fit -c quickstart {USES[options.kind].format(module=module, cls=cls)}")


def names_of(given: str) -> tuple[str, str]:
    """The class's name and the module's, of either of them.

    >>> names_of("my_method"), names_of("FedXYZPlus")
    (('MyMethod', 'my_method'), ('FedXYZPlus', 'fed_xyz_plus'))
    """
    if not given.isascii() or not given.isidentifier() or keyword.iskeyword(given) or given.startswith("_"):
        raise ValueError(f"the name is a Python class's, such as MyMethod; got {given!r}")
    cls = given if given[0].isupper() else "".join(part[:1].upper() + part[1:] for part in given.split("_"))
    module = re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "_", cls).lower()
    if cls in dir(flcog.callbacks):
        raise ValueError(f"flcog has a {cls} already: choose another name")
    return cls, module


def _named(text: str, cls: str, module: str) -> str:
    return text.replace("__Name__", cls).replace("__name__", module)
