"""Makes the trainer, the model and the data of an app from its YAML files, on the server and on each node."""

import warnings
from collections.abc import Sequence
from pathlib import Path

from flcog.commands.errors import refusal
from flcog.commands.federated_cli import CommandCLI
from flcog.method import AsynchronousRounds, Callback, Method, SealedSum, method_of
from flcog.run.hosting import check_separate
from flcog.run.observers.checkpoint import Checkpoint

CONFIG = "config.yaml"
"""The app's file with trainer, model and methods, which server and nodes share."""

SERVER = "server.yaml"
"""The app's file with the server's own data: validation and test sets."""

ONE_PROCESS = ("--trainer.devices", "1", "--trainer.num_nodes", "1", "--trainer.strategy", "auto")


def make_objects(app: Path, configs: Sequence[Path], *options: str, observers: Sequence[Callback] = ()) -> CommandCLI:
    """The trainer, model and data of an app. Any mistake raises a ValueError in one line.

    ``configs`` are YAML files that are read after the app's own, and ``options`` those of ``flcog fit``.
    """
    missing = next((path for path in (app / CONFIG, *configs) if not path.is_file()), None)
    if missing is not None:
        raise ValueError(f"there is no file {missing}: give the path of a YAML file on this machine")
    files = [word for path in (app / CONFIG, *configs) for word in ("--config", str(path))]
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "LightningCLI's args parameter")
            objects = CommandCLI([*files, *ONE_PROCESS, *options], modules=app, observers=observers)
    except SystemExit as error:
        raise ValueError(str(error.__cause__)) from None
    except Exception as error:
        if (reason := refusal(error)) is not None:
            raise ValueError(reason) from None
        raise
    check_methods(objects.trainer.methods)
    return objects


def check_run(methods: Sequence[Method], observers: Sequence[Callback]) -> None:
    """Refuse a run before its app is written, and again before it starts, because users may edit the app."""
    check_methods(methods)
    check_separate(methods)
    if (asynchronous := method_of(methods, AsynchronousRounds)) is not None:
        raise ValueError(
            f"{asynchronous.name} decides by simulated time when clients arrive, and nodes train in real time: remove it"
        )
    for observer in observers:
        if isinstance(observer, Checkpoint) and (observer.every_n_rounds != 1 or not observer.enabled):
            raise ValueError(
                f"nodes keep the states of two rounds, so a deployment writes a checkpoint after every round; got every_n_rounds="
                f"{observer.every_n_rounds}, enabled={observer.enabled}: leave both out, and enable_checkpointing"
            )


def check_methods(methods: Sequence[Method]) -> None:
    """Refuse methods whose secrets the server would know. Each node checks this for itself."""
    for method in methods:
        if method.public_noise:
            raise ValueError(
                f"{method.name}: everybody who knows the run's seed could remove this noise, and the server does: {method.public_noise}"
            )
        if isinstance(method, SealedSum):
            raise ValueError(
                f"{method.name} cannot be deployed: it simulates the exchange of keys between clients, and the server would know all "
                f"keys. Remove {method.name}"
            )
