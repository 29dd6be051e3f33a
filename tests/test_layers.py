"""The floor plan of the packages: allowed imports without cycles, no method named by the engine, observers that use only ``Run``."""

import ast
import inspect
import tomllib
from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

from harness import ROOT

import flcog.callbacks
from flcog.method import OBSERVER_HOOKS, Method, Run

FOLDERS = {"flcog": ROOT / "flcog", "flcog.callbacks": ROOT / "callbacks", "flcog.datamodules": ROOT / "datamodules"}

TRAINER = ("flcog.trainer",)

LAYERS = (
    ("flcog.core",),
    ("flcog.data", "flcog.models", "flcog.metrics", "flcog.schedules", "flcog.settings"),
    ("flcog.client_module", "flcog.functional"),
    ("flcog.datamodules",),
    ("flcog.wire",),
    ("flcog.method",),
    ("flcog.client",),
    ("flcog.server",),
    ("flcog.execute",),
    ("flcog.lightning",),
    ("flcog.run.hosting",),
    ("flcog.run",),
    TRAINER,
    ("flcog",),
    ("flcog.callbacks",),
    ("flcog.commands", "flcog.__main__"),
    ("flcog.deploy",),
)
"""The floors from the ground up. A module imports its own floor and lower floors, except the lower floors that ``CLOSED`` forbids."""

ABOVE = ("flcog.run", *TRAINER, "flcog", "flcog.datamodules")

CLOSED = {
    "flcog.method": ("flcog.datamodules",),
    "flcog.wire": ("flcog.datamodules",),
    "flcog.client": ("flcog.datamodules",),
    "flcog.server": ("flcog.client", "flcog.datamodules"),
    "flcog.execute": ("flcog.server", "flcog.datamodules"),
    "flcog.lightning": ("flcog.server", "flcog.datamodules"),
    "flcog.run.hosting": ("flcog.server", "flcog.datamodules"),
    "flcog.run": ("flcog.datamodules",),
    "flcog.callbacks": ("flcog.client", "flcog.server", "flcog.execute", *ABOVE),
}

FACES = {"flcog": ("flcog.commands.federated_cli", "flcog.commands.report"), "flcog.callbacks": ("flcog.run.observers",)}
"""The modules of other rooms that a package's ``__init__`` exports."""

OPEN = {"flcog.server": ("flcog.client.messages",)}
"""The parts of a closed room that a room may import."""

COMMANDS_USE = "flcog.datamodules"
"""The commands of a family of methods (``command.py`` and its studies) belong to the command line, and may also import this."""


def modules() -> dict[str, Path]:
    """Every module of the three packages, by its name."""
    found = {}
    for package, folder in FOLDERS.items():
        for path in folder.rglob("*.py"):
            parts = [package, *path.relative_to(folder).with_suffix("").parts]
            found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


def imports(path: Path, known: dict[str, Path]) -> Iterator[str]:
    """The modules of the three packages that a file imports, also inside functions and for type checking."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name in known)
        elif isinstance(node, ast.ImportFrom) and node.module in known:
            for alias in node.names:
                yield f"{node.module}.{alias.name}" if f"{node.module}.{alias.name}" in known else node.module


def floor_of(module: str) -> int:
    """The number of the module's floor. It is given by the longest entry of ``LAYERS`` that is the beginning of the module's name."""
    rooms = {room: floor for floor, rooms in enumerate(LAYERS) for room in rooms}
    return rooms[max((room for room in rooms if f"{module}.".startswith(f"{room}.")), key=len)]


def lies_in(module: str, rooms: tuple[str, ...]) -> bool:
    return any(module == room if room == "flcog" else f"{module}.".startswith(f"{room}.") for room in rooms)


def wrong_imports(graph: dict[str, set[str]]) -> list[str]:
    """Imports from a higher floor, or from a room that ``CLOSED`` forbids to the importing room."""
    wrong = []
    for module, targets in graph.items():
        room = next((room for room in CLOSED if lies_in(module, (room,))), "")
        is_command = module.rsplit(".")[-1] == "command" or module.endswith("_study")
        for target in targets:
            excused = lies_in(target, OPEN.get(room, ())) or (is_command and target == COMMANDS_USE)
            closed = lies_in(target, CLOSED.get(room, ())) and not lies_in(target, (room,))
            shown = lies_in(target, FACES.get(module, ()))
            if not shown and (floor_of(target) > floor_of(module) or (closed and not excused)):
                wrong.append(f"{module} imports {target}")
    return wrong


def circle(graph: dict[str, set[str]]) -> list[str]:
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        return error.args[1]
    return []


def methods_named(path: Path) -> set[str]:
    """The methods that the code of a file names. Docstrings may name methods."""
    names = {name for name in flcog.callbacks.__all__ if issubclass(getattr(flcog.callbacks, name), Method)}
    tree = ast.parse(path.read_text())
    texts = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)}
    words: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in texts:
            words.update("".join(c if c.isalnum() else " " for c in node.value).split())
        words.update(getattr(node, field) for field in ("id", "attr") if isinstance(getattr(node, field, None), str))
    return names & words


def seen_of_run(tree: ast.AST) -> set[str]:
    """The attributes of a run that observers' hooks and functions with a parameter of type ``Run`` read in a file."""
    seen = set()
    for function in ast.walk(tree):
        if isinstance(function, ast.FunctionDef):
            runs = {a.arg for a in function.args.args if a.annotation is not None and ast.unparse(a.annotation) == "Run"}
            if function.name in OBSERVER_HOOKS and len(function.args.args) > 1:
                runs.add(function.args.args[1].arg)
            for node in ast.walk(function):
                if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id in runs:
                    seen.add(node.attr)
    return seen


RUN = {name for name in [*vars(Run), *inspect.get_annotations(Run)] if not name.startswith("_")}


def test_imports_point_down_and_never_in_a_circle() -> None:
    known = modules()
    graph = {module: set(imports(path, known)) - {module} for module, path in known.items()}
    assert wrong_imports(graph) == []
    assert circle(graph) == []


def test_the_engine_names_no_method() -> None:
    found = {str(path): methods_named(path) for path in FOLDERS["flcog"].rglob("*.py")}
    assert {path: names for path, names in found.items() if names} == {}


def test_observers_see_a_run_and_nothing_else() -> None:
    assert len(RUN) <= 21
    files = [*FOLDERS["flcog.callbacks"].rglob("*.py"), *(ROOT / "flcog/run/observers").glob("*.py")]
    found = {str(path): seen_of_run(ast.parse(path.read_text())) - RUN for path in files}
    assert {path: names for path, names in found.items() if names} == {}


def test_every_folder_is_installed() -> None:
    packages = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["packages"]
    configs = {
        f"flcog.{path.relative_to(ROOT).parent.as_posix().replace('/', '.')}" for path in (ROOT / "configs").rglob("*.yaml")
    }
    assert set(packages) == configs | {module for module, path in modules().items() if path.name == "__init__.py"}


def test_compare_uses_the_public_interface() -> None:
    """``flcog compare`` starts runs with ``flcog fit`` and reads them as ``SavedRun``.

    It imports neither the engine nor the code that writes a run's files.
    """
    known = modules()
    public = ("flcog.commands", "flcog.core", "flcog.callbacks", "flcog.method")
    files = {name: path for name, path in known.items() if lies_in(name, ("flcog.commands.compare",))}
    used = {(name, target) for name, path in files.items() for target in imports(path, known)}
    assert {(name, target) for name, target in used if target != "flcog" and not lies_in(target, public)} == set()


def test_contributing_prints_the_floors() -> None:
    text = (ROOT / "CONTRIBUTING.md").read_text()
    for rooms in LAYERS:
        assert ", ".join(f"`{room}`" for room in rooms) in text, f"CONTRIBUTING.md lists the floors of LAYERS; it lacks {rooms}"
