"""Options of the callbacks in a run's list, by name: ``--trainer.callbacks.FedProx.mu 0.1``.

jsonargparse gives ``--trainer.callbacks.mu 0.1`` to the last callback of the list. Here the callback with such an option gets
it, and an option that several callbacks have is refused. A config can also change options of callbacks that an earlier config
lists. Its ``trainer.callbacks`` is then a mapping by name, ``{FedProx: {mu: 0.1}}``.
"""

import argparse
import inspect
import json
import pydoc
from collections.abc import Iterator, Sequence
from typing import Any, cast

import yaml

from flcog.commands.complaint import guess

LIST = "trainer.callbacks"


def reach_by_name(parser: argparse.ArgumentParser) -> None:
    """Let the command line and configs change options of single callbacks."""
    for action in parser._actions:
        # jsonargparse makes these actions. Replacing their class by a subclass keeps the rest of their behaviour.
        if action.dest == LIST:
            action.__class__ = type("CallbackList", (_CallbackList, type(action)), {})
        elif action.dest == "config":
            action.__class__ = type("ConfigFile", (_ConfigFile, type(action)), {})


class _CallbackList:
    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Change one callback.

        Called with the parser, its values so far, a value and an option such as ``--trainer.callbacks.FedProx.mu``.
        """
        if len(args) != 4 or not str(args[3]).startswith(f"--{LIST}."):
            return super().__call__(*args, **kwargs)  # type: ignore[misc]
        parser, read, value, option = args
        callbacks = list(read.get(LIST) or [])
        place, option = find(callbacks, option.removeprefix(f"--{LIST}."))
        if callbacks:  # Put last, where jsonargparse changes it, and back.
            read[LIST] = [*callbacks[:place], *callbacks[place + 1 :], callbacks[place]]
        super().__call__(parser, read, value, f"--{LIST}.{option}")  # type: ignore[misc]
        *others, changed = read[LIST]
        read[LIST] = [*others[:place], changed, *others[place:]]
        return None


class _ConfigFile:
    def __call__(self, parser: Any, read: Any, *args: Any) -> None:
        super().__call__(parser, read, *args)  # type: ignore[misc]
        changes, parser.changes = parser.changes, ()
        action = next(action for action in parser._actions if action.dest == LIST)
        for option, value in changes:
            action(parser, read, value, f"--{LIST}.{option}")


def take_changes(text: str) -> tuple[str, list[tuple[str, str]]]:
    """Take the mapping of callbacks out of a config. Returns the remaining text, and the mapping as options with values."""
    config = yaml.safe_load(text)
    trainer = config.get("trainer") if isinstance(config, dict) else None
    changes = trainer.get("callbacks") if isinstance(trainer, dict) else None
    if not isinstance(trainer, dict) or not isinstance(changes, dict) or not changes or "class_path" in changes:
        return text, []
    del trainer["callbacks"]
    return yaml.safe_dump(config), [(option.removeprefix("."), value) for option, value in _flat("", changes)]


def _flat(option: str, value: Any) -> Iterator[tuple[str, str]]:
    if isinstance(value, dict) and value and "class_path" not in value:
        for key, inner in value.items():
            yield from _flat(f"{option}.{key}", inner)
    else:
        yield option, value if isinstance(value, str) else json.dumps(value)


def find(callbacks: Sequence[Any], option: str) -> tuple[int, str]:
    """Return the position of the callback that the option names, and the option without that name.

    Args:
        callbacks: the list as the parser holds it, each with its ``class_path``.
        option: the option's name after ``trainer.callbacks.``: ``FedProx.mu`` or ``mu``.
    """
    names, (name, _, rest) = [callback["class_path"].rpartition(".")[2] for callback in callbacks], option.partition(".")
    if name in names or name[:1].isupper():
        return _place(names, name, rest), rest
    name = option.removeprefix("init_args.").partition(".")[0]
    owners = [place for place, callback in enumerate(callbacks) if name in _options(callback["class_path"])]
    if len(owners) > 1:
        several = " and ".join(names[place] for place in owners)
        remedy = f"name one, as in --{LIST}.{names[owners[-1]]}.{option}" if len(set(names)) > 1 else "change it in the config"
        raise ValueError(f"--{LIST}.{option} may mean {several}, which all have {name!r}: {remedy}")
    if not owners and len(names) > 1 and name != "class_path":
        known = {each for callback in callbacks for each in _options(callback["class_path"])}
        raise ValueError(
            f"--{LIST}.{option}: no callback has {name!r}; the callbacks are {', '.join(names)}.{guess(name, known)}"
        )
    return (owners or [len(names) - 1])[0], option


def _place(names: Sequence[str], name: str, rest: str) -> int:
    """Return the position of the callback with this name."""
    if name not in names:
        listed = f"are {', '.join(names)}" if names else "are none"
        raise ValueError(f"--{LIST}.{name}: the callbacks that are listed before it {listed}.{guess(name, names)}")
    if names.count(name) > 1:
        raise ValueError(f"--{LIST}.{name} may mean any of {names.count(name)} that are listed: change the one in its config")
    if not rest:
        raise ValueError(f"--{LIST}.{name} is a callback's name: add an option, as in --{LIST}.{name}.OPTION")
    return names.index(name)


def _options(class_path: str) -> set[str]:
    """Return the names of the arguments of a class and its base classes."""
    makers = (vars(base).get("__init__") for base in inspect.getmro(cast(type, pydoc.locate(class_path))))
    return {name for maker in makers if maker for name in inspect.signature(maker).parameters if name != "self"}
