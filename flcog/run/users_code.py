"""Digests of the code of the user's own classes. By these, a resumed run notices that their code has changed."""

import ast
import hashlib
import inspect
import textwrap
from collections.abc import Iterable, Mapping

from flcog.core.users_hooks import BASES, is_installed

Code = Mapping[str, Mapping[str, str]]
"""For the model, the data and each method: digests by the names of classes."""


def code_of(parts: Mapping[str, Iterable[object]]) -> Code:
    """The digests of the user's own classes among those of each part's objects and their base classes."""
    return {name: digests for name, things in parts.items() if (digests := _digests(things))}


def changed_classes(before: Code, now: Code) -> list[str]:
    """The names of the classes whose code has changed."""
    pairs = [(name, digest, before.get(part, {}).get(name)) for part in now for name, digest in now[part].items()]
    return list(dict.fromkeys(name for name, digest, earlier in pairs if earlier and earlier != digest))


def _digests(things: Iterable[object]) -> dict[str, str]:
    classes = {cls: f"{cls.__module__}.{cls.__qualname__}" for thing in things for cls in type(thing).__mro__}
    return {name: digest for cls, name in classes.items() if (digest := _digest(cls))}


def _digest(cls: type) -> str:
    """Twelve hex digits, equal for equal code; empty for classes of packages, and for those whose code no file has."""
    try:
        if cls.__module__.partition(".")[0] in BASES or is_installed(inspect.getfile(cls)):
            return ""
        tree = ast.parse(textwrap.dedent(inspect.getsource(cls)))
    except (OSError, TypeError, SyntaxError, ValueError):  # no file, or a file that has changed since
        return ""
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef | ast.FunctionDef) and ast.get_docstring(node):
            node.body = node.body[1:] or [ast.Pass()]
    return hashlib.sha256(ast.unparse(tree).encode()).hexdigest()[:12]
