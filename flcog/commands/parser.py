"""The parser of the command line: Lightning's, with flcog's classes, and with reports in one line."""

import inspect
import re
import sys
import traceback
from typing import Any

import lightning as L
import torch
from lightning.pytorch import callbacks, loggers
from lightning.pytorch.cli import LightningArgumentParser
from torch import nn
from torch.utils.data import Dataset

import flcog.callbacks
import flcog.datamodules
import flcog.models
from flcog.commands.config_file import adapted
from flcog.commands.errors import complain, cut
from flcog.core.lightning_packages import OtherDataModule
from flcog.core.text import guess
from flcog.core.users_code import is_users
from flcog.data import FederatedDataModule
from flcog.method import Callback

DATA = (L.LightningDataModule, Dataset, OtherDataModule)
"""The classes of data that the command line accepts. flcog's own data modules are LightningDataModules."""

BASES = (nn.Module, Callback, L.Callback, *DATA)
"""The classes whose subclasses a config names by a class path."""

UNKNOWN = re.compile(r"(?:[Oo]ption|[Kk]ey) '([\w.]+)'(?: is not|$)|nrecognized arguments: -*([\w.]+)", re.MULTILINE)
"""Reports of an option that does not exist."""

WORD = re.compile(r"nrecognized arguments: ([^\W\d]\S*)")
"""Reports of a word without an option."""

MODULES = (flcog.callbacks, flcog.datamodules, flcog.models, flcog, torch.optim, callbacks, loggers)
"""The modules whose classes a config names without their path."""

NO_CLASS = re.compile(r"(?:module '([\w.]+)' has no attribute '|there is no class )(\w+)")
"""Reports of a class that does not exist."""


class Parser(LightningArgumentParser):
    """Lightning's parser, which also takes flcog's classes, and which reports a mistake in one line with a guess at the name meant."""

    owner: type | None = None
    """The class whose options it reads, for the parser of a class inside the command's parser."""

    def parse_args(self, args: Any = None, *rest: Any, **options: Any) -> Any:  # type: ignore[override]
        # jsonargparse passes `--model.model.weights null` to the class's own parser as Python writes it, `--weights=None`.
        args = args if args is None else [re.sub(r"^(--[^=]+=)None$", r"\1null", argument) for argument in args]
        return super().parse_args(args, *rest, **options)

    def parse_string(self, content: str, *rest: Any, **options: Any) -> Any:  # type: ignore[override]
        return super().parse_string(adapted(content, self._option_string_actions), *rest, **options)

    def parse_object(self, obj: Any, *rest: Any, **options: Any) -> Any:
        """Put keywords of another package, such as timm's, into the argument that their class has for them."""
        if place := getattr(self.owner, "takes_keywords", None):
            given, known = dict(obj.items()), {action.dest for action in self._actions}
            others = {name: given.pop(name) for name in list(given) if name not in known and not guess(name, known)}
            base: Any = next(filter(None, (*rest[:1], options.get("namespace"), options.get("cfg_base"))), {})
            earlier = given.get(place, base.get(place)) or {}
            obj = {**given, place: {**earlier, **others}} if others else obj
        return super().parse_object(obj, *rest, **options)

    def add_class_arguments(self, theclass: type, nested_key: str | None = None, *rest: Any, **options: Any) -> Any:
        if nested_key is None:
            self.owner = theclass
        return super().add_class_arguments(theclass, nested_key, *rest, **options)

    def add_lightning_class_args(
        self, lightning_class: Any, nested_key: str, subclass_mode: bool = False, required: bool = True
    ) -> list[str]:
        """Lightning's method, which also accepts networks, data sets, and flcog's methods and observers."""
        classes = lightning_class if isinstance(lightning_class, tuple) else (lightning_class,)
        if not all(isinstance(each, type) and issubclass(each, (nn.Module, *DATA, Callback)) for each in classes):
            return super().add_lightning_class_args(lightning_class, nested_key, subclass_mode, required)
        if any(issubclass(each, Callback) for each in classes):
            self.callback_keys.append(nested_key)
        if subclass_mode:
            self.add_subclass_arguments(lightning_class, nested_key, fail_untyped=False, required=required)
            return []
        return list(self.add_class_arguments(classes[0], nested_key, fail_untyped=False, sub_configs=True))

    def error(self, message: str, ex: Exception | None = None) -> Any:
        """Print a report of jsonargparse in one line. An error in the user's own module, which cannot be imported, is raised itself."""
        cause: BaseException | None = ex
        while cause is not None:
            if isinstance(cause, SyntaxError) or any(is_users(frame) for frame, _ in traceback.walk_tb(cause.__traceback__)):
                raise cause from None
            cause = cause.__cause__
        choices = [action.choices for action in self._actions if isinstance(action.choices, dict)]
        commands: dict[str, Parser] = {name: parser for each in choices for name, parser in each.items()}
        if found := WORD.search(message):
            message += f". A config follows its option: -c {found[1]}"
        elif (found := UNKNOWN.search(message)) and "Did you mean" not in message:
            message = self._unknown(message, found[1] or found[2], [self, *commands.values()])
        if not self.exit_on_error:  # the options of a class; the command's own parser prints the report
            super().error(message, ex)
        reason = cut(message)
        if found := NO_CLASS.search(reason):
            modules = [sys.modules[found[1]]] if found[1] in sys.modules else MODULES
            meant = guess(found[2], [name for each in modules for name in getattr(each, "__all__", dir(each))])
            reason += f".{meant}" if meant else ": a class is named by its path, such as package.module.Class"
        if "No module named" in reason:
            reason += ": fit imports from the working directory, and a command that reads a run from --import-from FOLDER"
        if commands and "required" in reason:
            reason += ": give a config by -c FILE, or class paths by --NAME"
        complain(reason)
        raise SystemExit(2) from ValueError(reason)

    def _unknown(self, message: str, name: str, parsers: list["Parser"]) -> str:
        """Add to the report of an unknown option what was probably meant."""
        if self.owner in BASES:
            return f"give a class by its class_path, and its options under init_args; got {name!r} beside them"
        options = [option.lstrip("-") for parser in parsers for option in parser._option_string_actions]
        if self.owner is None:
            options += [f"data.{option}" for option in inspect.signature(FederatedDataModule).parameters]
        by_last = {option.rpartition(".")[2]: option for option in reversed(options)}
        last = name.rpartition(".")[2]
        meant = f" Did you mean {by_last[last]!r}?" if last in by_last else guess(name, options)
        if self.owner is not None:
            own = [option for option in options if option != "h" and not option.endswith(("help", "+"))]
            meant = meant or f" {self.owner.__name__} has the options {', '.join(own)}"
        return f"{message}.{meant}" if meant else message
