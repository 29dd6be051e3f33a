"""Config files and the command line: mistakes that the parser would silently ignore, and options of single callbacks by name.

jsonargparse gives ``--trainer.callbacks.mu 0.1`` to the last callback of the list. Here the callback with such an option gets
it, or the one that ``--trainer.callbacks.FedProx.mu 0.1`` names. A config can also change options of callbacks that an earlier config
lists: its ``trainer.callbacks`` is then a mapping by name, ``{FedProx: {mu: 0.1}}``.
"""

import argparse
import inspect
import json
import pydoc
import re
from collections.abc import Container, Iterator, Sequence
from pathlib import Path
from typing import Any, cast

import yaml

from flcog.core.text import guess
from flcog.core.yaml_files import load_yaml, refuse_doubles

OF_LIGHTNING = ("optimizer", "lr_scheduler", "weights_only")
"""Options of LightningCLI's ``fit`` that the ``flcog`` command does not have. LightningCLI writes them as null."""

IN_ROUNDS = {"max_epochs": "rounds", "check_val_every_n_epoch": "eval_every"}
"""Options of ``lightning.Trainer`` that count epochs, and those of the federated trainer that count rounds."""

OPTIONS = ("-c", "--config")
"""The option of the command line that gives a config."""

ONLY_FIT = ("init_from",)
"""Entries of a run's ``config.yaml`` that are options of ``fit`` alone."""


def adapted(text: str, options: Container[str]) -> str:
    """Remove from a config what its command has no use for.

    LightningCLI writes every option of ``lightning.Trainer``. An option that is null gets the default of the federated trainer, and an
    option that counts epochs counts rounds. A mapping of callbacks changes the list of an earlier config, and a single callback is a list.

    Args:
        text: the config.
        options: the command's, such as ``--init_from``.

    >>> print(adapted("{trainer: {max_epochs: 3, precision: null}, optimizer: null}", ()).strip())
    trainer:
      rounds: 3
    """
    config = yaml.safe_load(text)
    if not isinstance(config, dict):
        return text
    found = {
        name: value
        for name, value in config.items()
        if not (name in OF_LIGHTNING and value is None) and (name not in ONLY_FIT or f"--{name}" in options)
    }
    if isinstance(trainer := config.get("trainer"), dict):
        kept = {name: value for name, value in trainer.items() if value is not None and not is_change(name, value)}
        found["trainer"] = {IN_ROUNDS.get(name, name): value for name, value in kept.items()}
        if (one := kept.get("callbacks")) and isinstance(one, str | dict):
            found["trainer"]["callbacks"] = [one]
    return text if found == config else yaml.safe_dump(found, sort_keys=False)


def is_change(name: str, value: Any) -> bool:
    """Whether an option of the trainer is a mapping of callbacks by name."""
    return name == "callbacks" and isinstance(value, dict) and bool(value) and "class_path" not in value


def split_config(before: str, word: str) -> tuple[str, str]:
    """Split a word of the command line, after ``before``, into an option and the config that it gives; the config may be empty.

    >>> split_config("-c", "a.yaml"), split_config("", "--config=a.yaml"), split_config("", "--trainer.rounds=3")
    (('', 'a.yaml'), ('--config=', 'a.yaml'), ('--trainer.rounds=3', ''))
    """
    if before in OPTIONS:
        return "", word
    option, sign, config = word.partition("=")
    return (option + sign, config) if sign and option in OPTIONS else (word, "")


LIST = "trainer.callbacks"


def reach_by_name(parser: argparse.ArgumentParser) -> None:
    """Let options of the command line change single callbacks."""
    action = next(action for action in parser._actions if action.dest == LIST)
    # jsonargparse makes this action. Replacing its class by a subclass keeps the rest of its behaviour.
    action.__class__ = type("CallbackList", (_CallbackList, type(action)), {})


class _CallbackList:
    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Change one callback. A single class path is a list of one.

        Called with the parser, its values so far, a value and an option such as ``--trainer.callbacks.FedProx.mu``.
        """
        if args[3:] == (f"--{LIST}",) and re.fullmatch(r"(?!null$)[A-Za-z_][\w.]*", str(args[2])):
            args = (*args[:2], json.dumps([args[2]]), args[3])
        if len(args) != 4 or not str(args[3]).startswith(f"--{LIST}."):
            return super().__call__(*args, **kwargs)  # type: ignore[misc]
        parser, read, value, option = args
        place, option = find(read.get(LIST) or [], option.removeprefix(f"--{LIST}."))
        # Put last, where jsonargparse changes it, and back.
        read[LIST].append(read[LIST].pop(place))
        super().__call__(parser, read, value, f"--{LIST}.{option}")  # type: ignore[misc]
        read[LIST].insert(place, read[LIST].pop())
        return None


def find(callbacks: Sequence[Any], option: str) -> tuple[int, str]:
    """Return the position of the callback that the option names, and the option without that name."""
    names, (name, _, rest) = [callback["class_path"].rpartition(".")[2] for callback in callbacks], option.partition(".")
    if name in names:
        found, option = [place for place, each in enumerate(names) if each == name], rest
    else:
        name = option.removeprefix("init_args.").partition(".")[0]
        found = [place for place, callback in enumerate(callbacks) if name in _options(callback["class_path"])]
    if len(found) != 1:
        known = {*names, *(each for callback in callbacks for each in _options(callback["class_path"]))}
        fits = f"{name!r} fits {len(found)} of them: name one." if found else f"none has {name!r}.{guess(name, known)}"
        raise ValueError(f"--{LIST}.{option}: the callbacks listed so far are {', '.join(names) or 'none'}, and {fits}")
    return found[0], option


def _options(class_path: str) -> set[str]:
    """Return the names of the arguments of a class and its base classes."""
    makers = (vars(base).get("__init__") for base in inspect.getmro(cast(type, pydoc.locate(class_path))))
    return {name for maker in makers if maker for name in inspect.signature(maker).parameters if name != "self"}


def changes_of(path: str) -> Iterator[str]:
    """The entries of a config's mapping of callbacks, as options. Refuse an option that appears twice: YAML would use the last value."""
    content = load_yaml(Path(path))
    refuse_doubles(Path(path), yaml.compose(Path(path).read_text(encoding="utf-8"), Loader=yaml.SafeLoader))
    trainer = (content.get("trainer") or {}) if isinstance(content, dict) else {}
    if not isinstance(trainer, dict):
        raise ValueError(f"{path}: trainer must be a mapping of options; got {trainer!r}")
    for name, value in trainer.items():
        if is_change(name, value):
            yield from (f"--{LIST}{change}" for change in _flat("", value))


def _flat(option: str, value: Any) -> Iterator[str]:
    if isinstance(value, dict) and value and "class_path" not in value:
        for key, inner in value.items():
            yield from _flat(f"{option}.{key}", inner)
    else:
        yield f"{option}={value if isinstance(value, str) else json.dumps(value)}"
