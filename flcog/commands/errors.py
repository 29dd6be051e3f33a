"""Explain errors of jsonargparse in one line: the value received, the allowed values, and a guess at the intended value."""

import argparse
import difflib
import inspect
import re
import sys
from collections.abc import Callable, Iterable
from typing import Any, get_args, get_origin

import lightning as L
from torch import nn
from torch.utils.data import Dataset

import flcog.callbacks
import flcog.datamodules
from flcog.client_module import ClientModule
from flcog.commands import import_from, input_place, shipped_configs
from flcog.commands.broken_import import broken_import
from flcog.commands.complaint import guess
from flcog.commands.type_words import classes_in, takes_words, wanted
from flcog.data import FederatedDataModule
from flcog.method import (
    Aggregator,
    Attack,
    AvailabilityModel,
    Callback,
    Method,
    ParameterMask,
    Selection,
    Stage,
    UploadAggregator,
    UploadChange,
)

METHOD_BASES = (Method, Aggregator, Attack, AvailabilityModel, ParameterMask, Selection, Stage, UploadAggregator, UploadChange)
BASES = (Callback, *METHOD_BASES, FederatedDataModule, ClientModule)
"""Base classes of users' classes. They do nothing by themselves."""
ANY_CLASS = (nn.Module, L.LightningDataModule, Dataset)
"""The classes for which the parser takes a section ``model`` or ``data`` without a class path."""
SCRIPT = "for a config that a script with FederatedCLI(Model, Data) wrote, run that script: python main.py test -c FILE"


def explain(parser: Any, message: str) -> str:
    """Shorten jsonargparse's report, which lists every alternative of a type, to its useful part.

    Args:
        parser: the parser that refused a value, either the command's or a class's (its ``owner``).
        message: the report.
    """
    text = re.sub(r"\s+", " ", " ".join(line.strip(" -") for line in message.splitlines()))
    if broken := broken_import(text):
        return broken
    for pattern, say in RULES:
        if found := re.search(pattern, text):
            return say(parser, text, *found.groups())
    return text[:600]


def base_class_refusal(part: Any) -> str | None:
    """Return the message for a class path that names a base class, and None for any other object."""
    if type(part) not in BASES:
        return None
    name = type(part).__name__
    return f"flcog.{name} is a base class and does nothing itself: give the class path of a subclass{_example(type(part))}"


# Classes -------------------------------------------------------------------------------------------------------------------------


def _no_attribute(parser: Any, text: str, module: str, name: str) -> str:
    imported = sys.modules.get(module)
    known = getattr(imported, "__all__", None) or [public for public in dir(imported) if not public.startswith("_")]
    path = re.search(r"class_path '([\w.]+)'", text)
    return f"{module} has no {name!r}." + (_alone(path[1] if path else name) or guess(name, known))


def _alone(path: str) -> str:
    """Return advice for a class of flcog's that was given with the wrong module."""
    name = path.split(".")[-1]
    ours = {cls.__name__ for package in (flcog.callbacks, flcog.datamodules) for cls in _public(package)}
    return f" Give its name alone: {name}" if name in ours else ""


def _no_class(parser: Any, text: str, name: str) -> str:
    key, hint, name = _key(text), _hint(parser, text), name if name != "Expected" else ""
    near = guess(name, (cls.__name__ for base in classes_in(hint) for cls in _subclasses(base)))
    if not name or takes_words(hint):
        return f"{_named(parser, key)} must be {wanted(hint)}; got {name!r}" + near.replace(" ", ". ", 1)
    return f"there is no class {name!r}: give its full path{_example(*classes_in(hint))}.{near}"


def _no_module(parser: Any, text: str, path: str, module: str) -> str:
    if path == module or path.startswith(f"{module}."):
        known = (
            f"neither installed nor in the working directory, {import_from.working_directory}"
            if import_from.working_directory
            else "not installed, and this command imports from a folder only if you trust it: --import-from FOLDER"
        )
        return f"there is no module {module!r} (of {path}): it is {known}.{_alone(path)}"
    return f"cannot import {path}, which needs a module {module!r}: install it"


def _wrong_class(parser: Any, text: str, path: str, base: str) -> str:
    given = re.search(r"Given value: (?:.*'class_path': ')?([\w.]+)", text)
    what = path or (given[1] if given else "the given class")
    hint = _hint(parser, text)
    return (
        f"{_named(parser, _key(text))} must be {wanted(hint) if hint else base}; {what} is no {base}{_example(*classes_in(hint))}"
    )


def _example(*bases: type) -> str:
    for package in (flcog.models, flcog, flcog.callbacks, flcog.datamodules):
        for cls in _public(package):
            if issubclass(cls, bases) and cls not in BASES:
                return f", as in {package.__name__}.{cls.__name__}"
    return next((f", as in {cls.__module__}.{cls.__name__}" for base in bases for cls in _subclasses(base)), "")


def _public(module: Any) -> list[type]:
    names = getattr(module, "__all__", dir(module))
    return [value for name in names if isinstance(value := getattr(module, name), type) and not name.startswith("_")]


def _subclasses(cls: type) -> Iterable[type]:
    subclass: type
    for subclass in type.__subclasses__(cls):
        if not subclass.__name__.startswith("_"):
            yield subclass
        yield from _subclasses(subclass)


# Options -------------------------------------------------------------------------------------------------------------------------


def _no_option(parser: Any, text: str, name: str) -> str:
    """Explain an unknown option of a class. The parser knows only that class's options."""
    owner, name = getattr(parser, "owner", None), name.split(".")[0]
    known = sorted(option for option in _options(parser) if "." not in option and option not in ("help", "print_shtab"))
    if owner is None:
        return _elsewhere(name) or f"there is no option {name!r}.{guess(name, known)}"
    if owner in ANY_CLASS and name not in ("class_path", "init_args"):
        return f"{'.'.join(input_place.path())} needs a class_path, and {name!r} under init_args; {SCRIPT}"
    if name in ("class_path", "init_args") or owner in BASES:
        stray = input_place.beside_class_path() or name
        return f"{_place(owner)} needs a class_path, and that class's options under init_args; got {stray!r} beside them"
    if new := getattr(owner, "former_options", {}).get(name):
        return f"{_place(owner)} has no option {name!r} any more: {new}"
    if not issubclass(owner, FederatedDataModule) and any(kind.__name__ == "LightningDataModule" for kind in owner.__mro__):
        path = f"{owner.__module__}.{owner.__qualname__}"
        return (
            f"{_place(owner)} has no option {name!r}. Options of the clients, such as num_clients and partitioner, belong to "
            f"LightningData: --data LightningData --data.module {path} --data.num_clients 10"
        )
    near = guess(name, [*known, "init_args", "class_path"])
    return f"{_place(owner)} has no option {name!r}." + (near or (f" It has {', '.join(known)}" if known else " It has none"))


def _no_key(parser: Any, text: str, command: str, name: str) -> str:
    """Explain an unknown option in a config file."""
    return _elsewhere(name) or f"there is no option {name!r}.{_near(_command(parser, command), name)}"


def _elsewhere(name: str) -> str:
    """Explain an option that only ``flcog fit`` or users' own scripts have."""
    if name == "init_from":
        return "only flcog fit has the option init_from: remove it from the config"
    return f"the flcog command has no option {name!r}; {SCRIPT}" if name.split(".")[0] in ("optimizer", "lr_scheduler") else ""


def _unrecognized(parser: Any, text: str, words: str) -> str:
    word = words.split()[0]
    name = word.lstrip("-").split("=")[0]
    if word.startswith("--"):
        return f"there is no option --{name}." + (
            _near(parser, name, "--") or f" {parser.prog.replace(' [options]', '')} --help lists all"
        )
    if word in ("fit", "validate", "test", "predict") and parser._subcommands_action is None:
        return f"{word!r} is no option: this script calls the verbs itself (run=False); leave it out, or remove run=False"
    if _near(parser, name):
        return f"{word!r} is no option: options begin with two dashes.{_near(parser, name, '--')}"
    return f"{word!r} belongs to no option: each takes one value, and a list is one value, written '[1, 2]'"


def _near(parser: Any, name: str, dashes: str = "") -> str:
    """Guess a command's option: first in the same group, then without the group, then among all options."""
    options = [*_options(parser), *(f"data.{option}" for option in inspect.signature(FederatedDataModule).parameters)]
    group = [option for option in options if option.startswith(f"{name.split('.')[0]}.")] if "." in name else []
    by_last = {option.split(".")[-1]: option for option in reversed(options)}
    lacking = difflib.get_close_matches(name, by_last, n=1, cutoff=0.8)
    if not group and lacking:
        return f" Did you mean {dashes + by_last[lacking[0]]!r}?"
    return guess(dashes + name, (dashes + option for option in group or options))


def _options(parser: Any) -> list[str]:
    return [action.dest for action in parser._actions if action.option_strings and action.dest != argparse.SUPPRESS]


def _command(parser: Any, name: str) -> Any:
    subcommands = parser._subcommands_action
    return subcommands.choices[name] if subcommands else parser


def _required(parser: Any, text: str, names: str) -> str:
    owner = getattr(parser, "owner", None)
    missing = [name.split(".")[-1] for name in names.split(", ")]
    if owner is None:
        return f"it needs {' and '.join(missing)}: give a config (-c FILE), or class paths by --{' and --'.join(missing)}"
    options = " and ".join("--" + ".".join([*input_place.path(), name]) for name in missing)
    return f"{owner.__name__} needs {', '.join(missing)}: give {options}, or the like under its init_args"


def _linked(parser: Any, text: str, target: str, source: str) -> str:
    return f"{target} is set by {source}: give --{source} (on the command line one seed sets all of them)"


# Values --------------------------------------------------------------------------------------------------------------------------


def _bad_value(parser: Any, text: str, key: str) -> str:
    hint, given = _hint(parser, text), re.search(r"(?:Got|Given) value: ?(.*)$", text)
    if hint is None or given is None:
        return text[:600]
    value = given[1] if given[1][:1] in ("{", "[") else "null" if given[1] == "None" else repr(given[1])
    single = any(get_origin(each) is list for each in get_args(hint)) and re.fullmatch(r"[\w.]+", given[1])
    return f"{_named(parser, key)} must be {wanted(hint)}; got {value[:200]}" + f" (--{key}+={given[1]} adds one)" * bool(single)


def _no_mapping(parser: Any, text: str, key: str, value: str) -> str:
    return f"{key} must be a mapping of options, or a YAML file that holds one; got {value!r}"


def _unreadable(parser: Any, text: str, key: str) -> str:
    return f"{key}: the file is not UTF-8 text: save it as UTF-8, or give one in YAML"


def _no_file(parser: Any, text: str, reason: str) -> str:
    near = shipped_configs.near(reason.strip("'").rpartition("/")[2])
    return f"-c takes a YAML file, or the name of a config that flcog configs lists: {reason[0].lower()}{reason[1:]}.{near}"


# Where ---------------------------------------------------------------------------------------------------------------------------


def _key(text: str) -> str:
    found = re.search(r'Parser key "([\w.]+)"', text)
    return found[1] if found else ""


def _hint(parser: Any, text: str) -> Any:
    return next((getattr(action, "_typehint", None) for action in parser._actions if action.dest == _key(text)), None)


def _named(parser: Any, key: str) -> str:
    """Name an option together with its class."""
    owner = getattr(parser, "owner", None)
    return f"{owner.__name__}: {key}" if owner else key


def _place(owner: type) -> str:
    return f"{'.'.join(input_place.path())} ({owner.__name__})"


RULES: tuple[tuple[str, Callable[..., str]], ...] = (
    (r"module '([\w.]+)' has no attribute '(\w+)'", _no_attribute),
    (r"Problem with given class_path '([^']*)': No module named '([^']*)'", _no_module),
    (r"Import path ?(\S*) does not correspond to a subclass of (\w+)", _wrong_class),
    (r"Expected '(\S+)' to be a subclass of <class '(\w+)'>", _wrong_class),
    (r"Expected a dot import path string: ?(\S*)", _no_class),
    (r"Subcommand '(\w+)' does not accept option '([^']+)'", _no_key),
    (r"(?:Option|Group '\w+' does not accept option) '([^']+)'", _no_option),
    (r"unrecognized arguments: (.+)", _unrecognized),
    (r"arguments are required: (.+)", _required),
    (r"Linked \"([\w.]+)\" must be given via \"(\w+)\"", _linked),
    (r"Parser key \"([\w.]+)\".*codec can't decode", _unreadable),
    (r"Parser key \"config\": ((?:Path|File) .*)", _no_file),
    (r"Parser key \"([\w.]+)\": Unable to load config ['\"](.*?)['\"] ", _no_mapping),
    (r"Parser key \"([\w.]+)\":.*(?:Got|Given) value:", _bad_value),
)
