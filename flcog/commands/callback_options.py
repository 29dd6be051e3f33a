"""Options of the callbacks in a run's list, by name: ``--trainer.callbacks.FedProx.mu 0.1``.

jsonargparse gives ``--trainer.callbacks.mu 0.1`` to the last callback of the list. Here the callback with such an option gets
it. A config can also change options of callbacks that an earlier config lists: its ``trainer.callbacks`` is then a mapping by name,
``{FedProx: {mu: 0.1}}``.
"""

import argparse
import inspect
import itertools
import json
import pydoc
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, cast

from flcog.commands.config_file import check_config, is_change, split_config
from flcog.commands.errors import guess

LIST = "trainer.callbacks"


def reach_by_name(parser: argparse.ArgumentParser) -> None:
    """Let options of the command line change single callbacks."""
    action = next(action for action in parser._actions if action.dest == LIST)
    # jsonargparse makes this action. Replacing its class by a subclass keeps the rest of its behaviour.
    action.__class__ = type("CallbackList", (_CallbackList, type(action)), {})


class _CallbackList:
    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Change one callback.

        Called with the parser, its values so far, a value and an option such as ``--trainer.callbacks.FedProx.mu``.
        """
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
        fits = f"{name!r} fits {len(found)} of them: name one.{guess(name, known - {name})}"
        raise ValueError(f"--{LIST}.{option}: the callbacks listed so far are {', '.join(names) or 'none'}, and {fits}")
    return found[0], option


def _options(class_path: str) -> set[str]:
    """Return the names of the arguments of a class and its base classes."""
    makers = (vars(base).get("__init__") for base in inspect.getmro(cast(type, pydoc.locate(class_path))))
    return {name for maker in makers if maker for name in inspect.signature(maker).parameters if name != "self"}


def with_changes(words: Sequence[str]) -> list[str]:
    """After each config whose callbacks are a mapping, add the mapping's entries as options of single callbacks."""
    found: list[str] = []
    for before, word in itertools.pairwise(["", *words]):
        path = Path(split_config(before, word)[1])
        trainer = check_config(path).get("trainer", {}) if path.is_file() else {}
        changes = [each for name, value in trainer.items() if is_change(name, value) for each in _flat("", value)]
        found += [word, *(f"--{LIST}{change}" for change in changes)]
    return found


def _flat(option: str, value: Any) -> Iterator[str]:
    if isinstance(value, dict) and value and "class_path" not in value:
        for key, inner in value.items():
            yield from _flat(f"{option}.{key}", inner)
    else:
        yield f"{option}={value if isinstance(value, str) else json.dumps(value)}"
