"""The arguments of the federated trainer, made into settings, methods, observers and Lightning's Fabric."""

import dataclasses
import os
from collections.abc import Iterable
from datetime import timedelta
from typing import Any, Literal

import lightning as L
from lightning.pytorch.callbacks.timer import Interval, Timer
from lightning.pytorch.loggers import Logger
from lightning.pytorch.profilers import Profiler

from flcog.core import checks
from flcog.core.fabric import as_torchrun_started, make_fabric
from flcog.core.lightning_options import explains_lightning_options
from flcog.core.lightning_packages import OtherCallback, lightning_base
from flcog.method import Callback, Method, check_methods
from flcog.method.gradient_clip import GradientClip
from flcog.run.debugging import Debugging, make_profiler
from flcog.run.lightning_callbacks import LightningCallbacks
from flcog.run.observers.defaults import default_observers
from flcog.settings import Settings


class TrainerArguments:
    """The constructor of :class:`flcog.FederatedTrainer`, whose docstring describes the arguments."""

    @explains_lightning_options
    def __init__(
        self,
        rounds: int = 50,
        clients_per_round: int | float = 1.0,
        local_steps: int | None = None,
        local_epochs: float | None = None,
        executor: Literal["auto", "loop", "vmap", "vmap-patches", "fastest"] = "auto",
        chunk_size: int | None = None,
        compile: bool | Literal["graphs"] = False,
        callbacks: list[Callback | L.Callback | OtherCallback] | None = None,  # type: ignore[valid-type]
        logger: Logger | list[Logger] | bool | None = True,
        eval_every: int = 1,
        default_root_dir: str = "runs",
        accelerator: str = "auto",
        strategy: str = "auto",
        devices: int | str = 1,
        num_nodes: int = 1,
        processes_per_device: int = 1,
        precision: Literal["32-true", "64-true", "bf16-true", "bf16-mixed"] = "32-true",
        tf32: bool | None = None,
        seed: int = 0,
        on_bad_update: Literal["raise", "drop"] = "raise",
        resume_changed: bool = False,
        fast_dev_run: bool | int = False,
        limit_val_batches: int | float = 1.0,
        limit_test_batches: int | float = 1.0,
        limit_predict_batches: int | float = 1.0,
        overfit_batches: int | float = 0.0,
        accumulate_grad_batches: int = 1,
        inference_mode: bool = True,
        num_sanity_val_steps: int = 0,
        gradient_clip_val: float | None = None,
        gradient_clip_algorithm: Literal["norm", "value"] = "norm",
        deterministic: bool | Literal["warn"] = False,
        detect_anomaly: bool = False,
        profiler: Profiler | Literal["simple", "advanced", "pytorch"] | None = None,
        max_time: str | timedelta | dict[str, int] | None = None,
        enable_progress_bar: bool = True,
        enable_checkpointing: bool = True,
        enable_model_summary: bool = True,
    ) -> None:
        given = dict(locals())
        if fast_dev_run:
            logger, enable_checkpointing = False, False
            given |= {"rounds": int(fast_dev_run), "local_steps": 1, "local_epochs": None}
            given |= dict.fromkeys(("limit_val_batches", "limit_test_batches", "limit_predict_batches"), 1)
        self.settings = Settings(**{field.name: given[field.name] for field in dataclasses.fields(Settings)})
        checks.one_of(None, ("auto", "ddp", "single_device"), strategy=strategy)
        self.methods, observers, lightning = _by_kind(callbacks or [])
        if gradient_clip_val is not None:
            self.methods.append(GradientClip(max_value=gradient_clip_val, algorithm=gradient_clip_algorithm))
        check_methods(self.methods)
        if max_time is not None:
            if not isinstance(max_time, str | timedelta | dict):
                raise ValueError(
                    f"max_time must be text such as 00:12:00:00 (days first), a timedelta or a dict; got {max_time!r}"
                )
            lightning.append(Timer(max_time, interval=Interval.epoch))
        switches = enable_progress_bar, enable_checkpointing, enable_model_summary
        self.observers = default_observers(observers, LightningCallbacks(lightning, fast_dev_run), *switches)
        watching: list[Any] = [*self.methods, *self.observers]
        devices, num_nodes = as_torchrun_started(devices, num_nodes, processes_per_device)
        self.fabric = make_fabric(accelerator, strategy, devices, num_nodes, precision, watching, processes_per_device)
        self.given_logger, self.resume_changed = logger, resume_changed
        self.default_root_dir = os.path.expanduser(default_root_dir)
        self.num_nodes, self.fast_dev_run, self.num_sanity_val_steps = num_nodes, fast_dev_run, num_sanity_val_steps
        self.debugging = Debugging(deterministic, detect_anomaly)
        self.profiler = make_profiler(profiler)


def _by_kind(callbacks: Any) -> tuple[list[Method], list[Callback], list[L.Callback]]:
    """Divide one callback or several into methods, observers and Lightning's callbacks."""
    methods, observers, lightning = list[Method](), list[Callback](), list[L.Callback]()
    alone = isinstance(callbacks, Callback | str) or not isinstance(callbacks, Iterable)
    for callback in [callbacks] if alone else callbacks:  # as in Lightning, one callback needs no list
        if isinstance(callback, Method):
            methods.append(callback)
        elif isinstance(callback, Callback):
            observers.append(callback)
        elif lightning_base(callback, "Callback"):
            lightning.append(callback)
        else:
            name = callback.__name__ if isinstance(callback, type) else callback if isinstance(callback, str) else ""
            got = f"the class {name}" if isinstance(callback, type) else repr(callback)
            raise ValueError(
                f"callbacks are methods or observers of flcog, or Lightning's; got {got}: give objects{name and f', such as {name}()'}"
            )
    return methods, observers, lightning
