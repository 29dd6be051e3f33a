"""FederatedCLI: LightningCLI around the federated trainer, for the ``flcog`` command and for users' own scripts."""

import re
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any, cast

import lightning as L
from lightning.pytorch.cli import LightningArgumentParser, LightningCLI, SaveConfigCallback
from torch import nn
from torch.utils.data import Dataset

import flcog.callbacks
import flcog.datamodules
from flcog.commands.callback_options import reach_by_name, take_changes
from flcog.commands.complaint import complain, guess
from flcog.commands.config_file import check_config
from flcog.commands.errors import base_class_refusal, explain
from flcog.commands.import_from import find_modules_here
from flcog.commands.lightning_config import without, without_lightning_defaults
from flcog.commands.refusals import mistakes_in_one_line
from flcog.commands.saved_config import SavedConfig
from flcog.commands.shipped_configs import with_paths
from flcog.core import lost_processes
from flcog.core.lazy import load
from flcog.core.lightning_packages import OtherDataModule
from flcog.method import Callback
from flcog.trainer import FederatedTrainer

NOT_OF_THE_RUN = ("config", "ckpt_path")
"""Options of ``fit`` that describe how a run goes on from others. They are not part of its configuration."""

ONLY_FIT = ("init_from",)
"""Entries of a run's ``config.yaml`` that are options of ``fit`` alone."""

DATA = (L.LightningDataModule, Dataset, OtherDataModule)
"""The classes of data that the command line accepts. flcog's own data modules are LightningDataModules."""


class Parser(LightningArgumentParser):
    """Explains a mistake in one line, and suggests the option that was probably meant."""

    changes: Sequence[tuple[str, str]] = ()
    """Changes that the config being read makes to callbacks of an earlier config."""
    ignored: Sequence[str] = ()
    """Entries of a run's config.yaml that only ``fit`` has."""

    def parse_args(self, args: Sequence[str] | None = None, *rest: Any, **options: Any) -> Any:  # type: ignore[override]
        # jsonargparse passes `--model.model.weights null` to the class's own parser as Python writes it, `--weights=None`, and that
        # parser reads a string.
        if args is not None:
            args = with_paths(re.sub(r"^(--[^=]+=)None$", r"\1null", argument) for argument in args)
        return super().parse_args(args, *rest, **options)

    def parse_path(self, path: Any, *rest: Any, **options: Any) -> Any:
        if Path(path).is_file():
            check_config(Path(path))
        return super().parse_path(path, *rest, **options)

    def parse_string(self, content: str, *rest: Any, **options: Any) -> Any:  # type: ignore[override]
        content, self.changes = take_changes(without(self.ignored, without_lightning_defaults(content)))
        return super().parse_string(content, *rest, **options)

    def parse_object(self, obj: Any, namespace: Any = None, *rest: Any, **options: Any) -> Any:
        """Put keywords of another package, such as timm's, into the argument that their class has for them."""
        if place := getattr(getattr(self, "owner", None), "takes_keywords", None):
            given, known = dict(obj.items()), {action.dest for action in self._actions}
            others = {name: given.pop(name) for name in list(given) if name not in known and not guess(name, known)}
            earlier = given.get(place, (namespace or {}).get(place)) or {}
            obj = {**given, place: {**earlier, **others}} if others else obj
        return super().parse_object(obj, namespace, *rest, **options)

    def add_class_arguments(self, theclass: type, nested_key: str | None = None, *rest: Any, **options: Any) -> Any:
        if nested_key is None:
            self.owner = theclass  # the parser of one class's options, for messages
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
        reason = explain(self, message)
        complain(reason)
        raise SystemExit(2) from ValueError(reason)


class FederatedCLI(LightningCLI):
    """LightningCLI for federated training, for scripts of your own::

        from flcog import FederatedCLI

        FederatedCLI(MyModel, MyDataModule)  # python main.py fit --model.lr 0.1 --trainer.rounds 20 --trainer.callbacks+=FedProx

    Everything that LightningCLI offers for subclasses works here: ``add_arguments_to_parser`` with ``link_arguments`` and
    ``add_lightning_class_args``, ``before_fit`` and ``after_fit``, ``before_instantiate_classes`` and so on.

    Args:
        model_class: a LightningModule or another network, or a function that returns one; None lets users choose one by its class
            path.
        datamodule_class: a LightningDataModule (flcog's data modules are some) or a map-style data set, or a function that
            returns one; None lets users choose.
        save_config_callback: every run writes its ``config.yaml``, from which it resumes. The ``save_config`` method of a subclass of
            Lightning's ``SaveConfigCallback`` is also called when the run begins.
        save_config_kwargs: options of this class. ``config_filename`` is the name of a further file in the run's directory, of several
            files with ``multifile``. A resumed run keeps a copy of the earlier file, unless ``overwrite`` is true.
        trainer_class: :class:`flcog.FederatedTrainer`, or a subclass.
        trainer_defaults: defaults of its options. Callbacks among them are appended to the user's.
        seed_everything_default: seeds the initial weights and the trainer; True draws a seed.
        parser_kwargs: options of the argument parsers.
        subclass_mode_model, subclass_mode_data: whether users may choose a subclass by its class path.
        args: the command line; by default that of the process.
        run: whether the command line begins with a verb (``fit``, ``validate``, ``test`` or ``predict``), which is executed. With
            False, ``cli.trainer``, ``cli.model`` and ``cli.datamodule`` are only constructed.
        auto_configure_optimizers: whether ``--optimizer`` and ``--lr_scheduler`` exist, which replace the model's own.
    """

    trainer: FederatedTrainer  # type: ignore[assignment]
    needs_model: bool = True
    """Whether the user must give a model."""

    def __init__(
        self,
        model_class: Callable[..., nn.Module] | None = None,
        datamodule_class: Callable[..., Any] | None = None,
        save_config_callback: type[SaveConfigCallback] | None = SaveConfigCallback,
        save_config_kwargs: dict[str, Any] | None = None,
        trainer_class: type[FederatedTrainer] = FederatedTrainer,
        trainer_defaults: dict[str, Any] | None = None,
        seed_everything_default: bool | int = 0,
        parser_kwargs: dict[str, Any] | None = None,
        subclass_mode_model: bool = False,
        subclass_mode_data: bool = False,
        args: Any = None,
        run: bool = True,
        auto_configure_optimizers: bool = True,
    ) -> None:
        for package in (sys.modules["flcog"], flcog.callbacks, flcog.datamodules):
            load(package)  # jsonargparse finds a class by its name alone only after it was imported
        self.find_modules()
        with _errors_said_once() if run else nullcontext():
            super().__init__(
                model_class=model_class,  # type: ignore[arg-type]
                datamodule_class=datamodule_class,
                save_config_callback=save_config_callback,
                save_config_kwargs=save_config_kwargs,
                trainer_class=trainer_class,  # type: ignore[arg-type]
                trainer_defaults=trainer_defaults,
                seed_everything_default=seed_everything_default,
                parser_kwargs={"dump_header": ["flcog"]} | (parser_kwargs or {}),
                parser_class=Parser,
                subclass_mode_model=subclass_mode_model,
                subclass_mode_data=subclass_mode_data,
                args=args,
                run=run,
                auto_configure_optimizers=auto_configure_optimizers,
                load_from_checkpoint_support=False,
            )

    @staticmethod
    def find_modules() -> None:
        """Let class paths name modules in the working directory."""
        find_modules_here()

    @staticmethod
    def subcommands() -> dict[str, set[str]]:
        return {
            "fit": {"model", "datamodule"},
            "validate": {"model", "datamodule"},
            "test": {"model", "datamodule"},
            "predict": {"model", "datamodule", "inputs"},
        }

    def add_core_arguments_to_parser(self, parser: LightningArgumentParser) -> None:
        parser.add_class_arguments(self.trainer_class, "trainer", fail_untyped=False, instantiate=False, sub_configs=True)  # type: ignore[arg-type]
        parser.set_defaults({f"trainer.{name}": value for name, value in self.trainer_defaults.items() if name != "callbacks"})
        model: Any = self.model_class or nn.Module
        parser.add_lightning_class_args(model, "model", self.subclass_mode_model, self.needs_model)
        parser.add_lightning_class_args(self.datamodule_class or DATA, "data", subclass_mode=self.subclass_mode_data)  # type: ignore[arg-type]
        reach_by_name(parser)
        parser.link_arguments("seed_everything", "trainer.seed", compute_fn=int)

    def _add_subcommands(self, parser: LightningArgumentParser, **options: Any) -> None:
        super()._add_subcommands(parser, **options)
        for verb in {"validate", "test", "predict"} & self._subcommand_parsers.keys():
            cast(Parser, self._subcommand_parsers[verb]).ignored = ONLY_FIT

    def _parse_ckpt_path(self) -> None:
        """flcog's checkpoints do not change the configuration."""

    def _set_seed(self) -> None:
        seed = self._get(self.config, "seed_everything")
        if not isinstance(seed, bool) and not 0 <= seed < 1 << 32:
            raise ValueError(f"seed_everything must be at least 0 and less than {1 << 32}, as numpy requires; got {seed}")
        super()._set_seed()
        if seed is True:  # the seed was drawn after the trainer's was linked to the option
            config = self.config[self.subcommand] if self.subcommand else self.config
            config["trainer"]["seed"] = config["seed_everything"]

    def instantiate_trainer(self, **kwargs: Any) -> Any:
        callbacks = [self._get(self.config_init, key) for key in self._parser(self.subcommand).callback_keys]
        options = {**self._get(self.config_init, "trainer"), **kwargs}
        always = self.trainer_defaults.get("callbacks") or []
        callbacks = [*(options.get("callbacks") or []), *callbacks, *(always if isinstance(always, list) else [always])]
        for part in (self.model, self.datamodule, *callbacks):
            if problem := base_class_refusal(part):
                raise ValueError(problem)
        options["callbacks"] = callbacks + self._config_savers()
        trainer = self.trainer_class(**options)
        self._dump_config()
        trainer.config = {key: value for key, value in self.config_dump.items() if key not in NOT_OF_THE_RUN}  # type: ignore[attr-defined]
        if trainer.config.get("init_from") is None:  # type: ignore[attr-defined]
            trainer.config.pop("init_from", None)  # type: ignore[attr-defined]
        # The option applies to one resume: a run's own config.yaml must not repeat it at each later one.
        trainer.config["trainer"].pop("resume_changed", None)  # type: ignore[attr-defined]
        return trainer

    def _config_savers(self) -> list[Callback]:
        """An observer that does the work of the user's ``SaveConfigCallback``, if it does more than write ``config.yaml``."""
        kind = self.save_config_callback
        if kind is None or (kind.save_config is SaveConfigCallback.save_config and not self.save_config_kwargs):
            return []
        config = self.config[self.subcommand] if self.subcommand else self.config
        try:
            saver = kind(self._parser(self.subcommand), config, **self.save_config_kwargs)
        except (TypeError, ValueError) as error:
            raise ValueError(f"save_config_kwargs={self.save_config_kwargs}: {' '.join(str(error).split())}") from error
        return [SavedConfig(saver, self)]

    def _run_subcommand(self, subcommand: str) -> None:
        self._call_if_defined(f"before_{subcommand}")
        verb = getattr(self, subcommand, getattr(self.trainer, subcommand))
        verb(**self._prepare_subcommand_kwargs(subcommand))
        self._call_if_defined(f"after_{subcommand}")

    def _call_if_defined(self, name: str) -> None:
        if callable(hook := getattr(self, name, None)):
            hook()


@contextmanager
def _errors_said_once() -> Iterator[None]:
    """Show a user's mistake in one line, of one process."""
    with mistakes_in_one_line(), lost_processes.fails_for_all():
        yield
