"""The arguments of ``lightning.Trainer`` that the federated trainer does not have, with the option to use instead or the reason."""

import functools
import inspect
from collections.abc import Callable, Mapping
from typing import Any, TypeVar, cast

COUNTERPARTS: Mapping[str, str] = {
    "max_epochs": "use rounds: an epoch is a round",
    "min_epochs": "use rounds, and an EarlyStopping callback with enough patience",
    "max_steps": "use rounds and local_steps",
    "min_steps": "use rounds and local_steps",
    "limit_train_batches": "use local_steps, the number of batches that each client trains on in a round",
    "val_check_interval": "use eval_every, the number of rounds between evaluations",
    "check_val_every_n_epoch": "use eval_every, the number of rounds between evaluations",
    "log_every_n_steps": "every round is logged",
    "benchmark": "it would change the last digits of results from run to run",
    "use_distributed_sampler": "processes share the clients of a round among themselves",
    "barebones": "use logger=False, enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False and eval_every=0",
    "plugins": "use precision and strategy",
    "sync_batchnorm": "clients compute their own BatchNorm statistics, and the server takes their mean",
    "reload_dataloaders_every_n_epochs": "each client shuffles its samples in every round",
    "enable_autolog_hparams": "trackers receive the run's settings",
    "model_registry": "upload the checkpoint, or the file that trainer.export writes",
}

Constructor = TypeVar("Constructor", bound=Callable[..., Any])


def refusal_of(name: str) -> str | None:
    """The message for an argument of Lightning's Trainer that does not exist here; None for any other name.

    >>> refusal_of("max_epochs")
    'trainer.max_epochs belongs to lightning.Trainer: use rounds: an epoch is a round'
    """
    return f"trainer.{name} belongs to lightning.Trainer: {COUNTERPARTS[name]}" if name in COUNTERPARTS else None


def given_options(options: Mapping[str, Any]) -> dict[str, Any]:
    """Remove the options that ask for nothing: those with Lightning's default that exist only there, and those that are None there.

    >>> given_options({"rounds": 3, "max_epochs": None, "max_steps": -1, "min_epochs": 2, "precision": None})
    {'rounds': 3, 'min_epochs': 2}
    """
    defaults = _lightning_defaults()
    return {
        name: value
        for name, value in options.items()
        if name not in defaults or value != defaults[name] or not (name in COUNTERPARTS or value is None)
    }


@functools.cache
def _lightning_defaults() -> dict[str, Any]:
    from lightning import Trainer

    return {name: parameter.default for name, parameter in inspect.signature(Trainer.__init__).parameters.items()}


def explains_lightning_options(constructor: Constructor) -> Constructor:
    """Decorate the trainer's constructor: an argument of Lightning's Trainer is refused in one line that names its counterpart.

    Options with Lightning's default that ask for nothing are left out.
    """

    @functools.wraps(constructor)
    def checked(self: Any, *args: Any, **kwargs: Any) -> None:
        kwargs = given_options(kwargs)
        for name in kwargs:
            if (message := refusal_of(name)) is not None:
                raise ValueError(message)
        constructor(self, *args, **kwargs)

    return cast(Constructor, checked)
