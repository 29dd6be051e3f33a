"""Fingerprints of data sets: a fingerprint changes when the samples, their files or the code that reads them change."""

import hashlib
import logging
import os
import sys
import sysconfig
import threading
import types
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

PLAIN = (type(None), bool, int, float, complex, str, bytes, np.generic, torch.dtype, torch.device, torch.Size, range)

STATELESS = (logging.Logger, type(threading.Lock()), type(threading.RLock()))
"""Objects that do not influence the items."""

READABLE = {
    "builtins",
    "collections",
    "datetime",
    "decimal",
    "functools",
    "itertools",
    "numpy",
    "operator",
    "random",
    "re",
    "torch",
}
"""Packages whose compiled objects show their whole content to pickle. Others, such as h5py, pickle a handle."""

LIBRARIES = tuple({sysconfig.get_path(name) for name in ("stdlib", "purelib", "platlib")})
"""Folders of installed packages, whose functions and classes count by their names and the package's version."""


class Unknown(Exception):
    """Raised for an object that hides its content, such as an open file or database."""


def fingerprint(dataset: Any, leave_out: Path) -> str | None:
    """Return twenty hex digits of the data set's content, or None if some part of it hides its content.

    Arrays and tensors count by their values, memory-mapped arrays by their files. A path to a file counts by the file's size and
    time, a path to a folder by the sizes and times of all files in it. Objects count by their attributes and by the code of their
    classes; functions count by their code, their defaults, and the variables outside them that they read.

    Args:
        dataset: an object with ``items[index]``.
        leave_out: a folder to ignore: the cache itself.
    """
    walk = _Walk(leave_out.resolve())
    try:
        walk.add(dataset)
    except (Unknown, RecursionError):
        return None
    return walk.digest.hexdigest()[:20]


class _Walk:
    """Adds an object and everything that it refers to to a digest."""

    def __init__(self, leave_out: Path) -> None:
        self._leave_out = str(leave_out)
        self.digest = hashlib.sha256()
        self._seen: dict[int, int] = {}
        """The position of each object in the walk, so that objects that refer to each other end it."""
        self._alive: list[Any] = []
        """All objects of the walk: while they live, no other object can get their ids."""
        self._paths: set[str] = set()

    def add(self, value: Any) -> None:
        if isinstance(value, PLAIN):
            self._write(f"{type(value).__qualname__} {value!r}")
            if isinstance(value, str):
                self._add_path(value)
        elif isinstance(value, Path):
            self._write(f"path {value}")
            self._add_path(str(value))
        elif id(value) in self._seen:
            self._write(f"again {self._seen[id(value)]}")
        else:
            self._seen[id(value)] = len(self._seen)
            self._alive.append(value)
            self._add_object(value)

    def _add_object(self, value: Any) -> None:
        if isinstance(value, np.memmap) and value.filename is not None:
            self._add_memory_map(value)
        elif isinstance(value, Tensor | np.ndarray):
            self._add_array(value)
        elif isinstance(value, dict | types.MappingProxyType | list | tuple | set | frozenset):
            self._add_container(value)
        elif isinstance(value, type):
            self._add_class(value)
        elif isinstance(value, types.FunctionType):
            self._add_function(value)
        elif isinstance(value, types.BuiltinFunctionType | types.ModuleType):
            self._write(f"{getattr(value, '__module__', '')}.{getattr(value, '__qualname__', value.__name__)}")
            owner = getattr(value, "__self__", None)
            if not isinstance(owner, types.ModuleType):
                self.add(owner)
        elif isinstance(value, types.MethodType):
            self.add(value.__func__)
            self.add(value.__self__)
        elif isinstance(value, types.CodeType):
            self._add_code(value, {})
        else:
            self._add_instance(value)

    def _add_container(self, value: Any) -> None:
        self._write(f"{type(value).__qualname__} of {len(value)}")
        if isinstance(value, Mapping):
            for name, part in value.items():
                self.add(name)
                self.add(part)
        elif isinstance(value, set | frozenset):
            for part in sorted(value, key=repr):
                self.add(part)
        else:
            for part in value:
                self.add(part)
        if own := getattr(value, "__dict__", None):  # a user's subclass of a list or dict
            self._add_class(type(value))
            self.add(own)

    def _add_memory_map(self, value: np.memmap) -> None:
        """Add the file of a memory-mapped array, and the place that the array has in it."""
        whole = value
        while isinstance(whole.base, np.memmap):
            whole = whole.base
        start = value.__array_interface__["data"][0] - whole.__array_interface__["data"][0]
        self._write(f"file {value.dtype} {value.shape} {value.strides} {value.offset} {start}")
        self._add_path(str(value.filename))

    def _add_instance(self, value: Any) -> None:
        if isinstance(own := getattr(value, "_fingerprint", None), str):  # Hugging Face's data sets know their own
            self._write(f"{type(value).__qualname__} {own}")
            self.add(getattr(value, "format", None))
            return
        if isinstance(value, torch.Generator):
            self.add(value.get_state())
            return
        self._add_class(type(value))
        if isinstance(value, STATELESS):
            return
        if "__getstate__" in {name for cls in type(value).__mro__[:-1] for name in vars(cls)}:
            self.add(value.__getstate__())
            return
        slots = [name for cls in type(value).__mro__ for name in getattr(cls, "__slots__", ()) if hasattr(value, name)]
        state = {**getattr(value, "__dict__", {}), **{name: getattr(value, name) for name in slots}}
        self.add(state or _reduced(value))

    def _add_class(self, cls: type) -> None:
        """Add a class: its name and, for a user's class and its bases, methods and class attributes."""
        self._write(f"class {_name(cls)}")
        for base in cls.__mro__:
            if id(base) in self._seen or _is_installed(base):
                continue
            self._seen[id(base)] = len(self._seen)
            for name, part in vars(base).items():
                part = getattr(part, "__func__", getattr(part, "fget", getattr(part, "func", part)))
                if isinstance(part, types.FunctionType):
                    self._write(name)
                    self._add_code(part.__code__, part.__globals__)
                elif isinstance(part, (*PLAIN, np.ndarray, Tensor, list, tuple, dict)) and not name.startswith("__"):
                    self._write(name)
                    self.add(part)

    def _add_function(self, function: types.FunctionType) -> None:
        self._write(f"function {_name(function)}")
        self.add(function.__defaults__)
        self.add(function.__kwdefaults__)
        for cell in function.__closure__ or ():
            self.add(cell.cell_contents)
        if not _is_installed(function):
            self._add_code(function.__code__, function.__globals__)

    def _add_code(self, code: types.CodeType, variables: Mapping[str, Any]) -> None:
        """Add a function's code and the global variables that it reads."""
        self._write(code.co_code.hex())
        self._write(repr(code.co_names))
        for constant in code.co_consts:
            if isinstance(constant, types.CodeType):
                self._add_code(constant, variables)
            else:
                self._write(repr(sorted(constant, key=repr) if isinstance(constant, frozenset) else constant))
        for name in code.co_names:
            if name in variables:
                self.add(variables[name])

    def _add_array(self, value: Tensor | np.ndarray) -> None:
        self._write(f"{value.dtype} {tuple(value.shape)}")
        if isinstance(value, Tensor):
            if value.layout != torch.strided or value.is_meta or value.is_quantized:
                raise Unknown(type(value).__qualname__)
            value = value.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy()
        if value.dtype.hasobject:
            self.add(value.tolist())
        else:
            self.digest.update(np.ascontiguousarray(value).data)

    def _add_path(self, text: str) -> None:
        """Add size and time of the file, or of all files in the folder, that a text names."""
        if not text or len(text) > 4096 or "\0" in text or "\n" in text or text in self._paths:
            return
        self._paths.add(text)
        if os.path.isfile(text):
            self._write(_about(text))
        elif os.path.isdir(text) and text not in (".", "..", "/"):
            for folder, folders, names in os.walk(text):
                folders[:] = sorted(name for name in folders if os.path.realpath(os.path.join(folder, name)) != self._leave_out)
                for name in sorted(names):
                    path = os.path.join(folder, name)
                    if os.path.isfile(path):
                        self._write(f"{os.path.relpath(path, text)} {_about(path)}")

    def _write(self, text: str) -> None:
        self.digest.update(text.encode(errors="surrogatepass") + b"\0")


def _is_installed(value: Any) -> bool:
    """Whether a class or function belongs to Python or to an installed package."""
    module = sys.modules.get(value.__module__ or "")
    if module is None or value.__module__ == "__main__":
        return False
    path = getattr(module, "__file__", None)
    return path is None or path.startswith(LIBRARIES)


def _name(value: Any) -> str:
    """Return the full name of a class or function, and the version of its package."""
    package = sys.modules.get((value.__module__ or "").partition(".")[0])
    return f"{value.__module__}.{value.__qualname__} {getattr(package, '__version__', '')}"


def _about(path: str) -> str:
    found = os.stat(path)
    return f"{found.st_size} {found.st_mtime_ns}"


def _reduced(value: Any) -> Any:
    """Return the content of an object without attributes, as pickle would store it."""
    if type(value).__module__.partition(".")[0] not in READABLE:
        raise Unknown(type(value).__qualname__)
    try:
        reduced = value.__reduce_ex__(2)
    except Exception as error:  # each library has its own
        raise Unknown(type(value).__qualname__) from error
    if isinstance(reduced, str):
        return reduced
    content = [part for part in reduced[1:] if part is not None]
    return [list(part) if hasattr(part, "__next__") else part for part in content if part is not value]
