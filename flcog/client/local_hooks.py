"""The hooks of Lightning's that fire while a client trains, and the reasons why a client is trained by the faithful step."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import lightning as L

from flcog.batch_hooks import OF_A_BATCH
from flcog.client.lightning_hooks import OF_A_MODULE, OF_A_STEP, written_hooks
from flcog.client.optimizers import OptimizerConfiguration, asks_again, each_optimizer
from flcog.client.trainer_reads import values_read
from flcog.core.lightning_packages import lightning_base, users_hooks
from flcog.core.source import Source
from flcog.core.users_hooks import call_callback, call_hook
from flcog.evaluation_hooks import EvaluationHooks
from flcog.method import Method
from flcog.method.gradient_clip import GradientClip

CHANGES_A_STEP = ("loss", "wrap_gradient", "correct_gradient")
"""Hooks of flcog's methods that a module with manual optimisation leaves no place for."""


@dataclass
class LocalHooks:
    """The objects whose hooks fire while a client trains.

    Args:
        module: the client's module.
        datamodule: the user's data module.
        configured: the optimisers and schedulers of ``configure_optimizers``.
        callbacks: the run's callbacks of Lightning's. A callback that defines hooks of a step gets them.
        rounds: the number of rounds of the run.
        accumulate: the number of batches whose gradients make one step.
    """

    module: L.LightningModule
    datamodule: L.LightningDataModule
    configured: OptimizerConfiguration
    callbacks: Sequence[L.Callback] = ()
    rounds: int = 1
    accumulate: int = 1
    run: Any = field(default=None, repr=False)
    """The trainer of the run, if it runs in this process."""

    def __post_init__(self) -> None:
        self.of_evaluations = EvaluationHooks(self.module, self.datamodule, self.callbacks)
        self.of_batches = self.of_evaluations.batches
        self.callbacks = [callback for callback in self.callbacks if step_hooks(callback)]
        self.differentiates = "backward" in written_hooks(self.module)
        """Whether the module differentiates its loss itself."""
        self.clips = "configure_gradient_clipping" in written_hooks(self.module)
        """Whether the module clips gradients itself, with the values of ``trainer.gradient_clip_val``."""
        self.reason = _reason(self)
        """The first feature that the pure step lacks, such as ``Lit.on_train_batch_end``; empty if the pure step is enough."""

    @property
    def owners(self) -> list[Any]:
        """The module, and the user's data module if it has hooks."""
        return [self.module, *([self.datamodule] if written_hooks(self.datamodule) else [])]

    def call(self, hook: str, trainer: Any, *arguments: Any) -> Any:
        """Call a hook of a step: of all callbacks, then the module's own, whose result is returned."""
        for callback in self.callbacks:
            call_callback(callback, hook, trainer, self.module, *arguments)
        return call_hook(self.module, hook, *arguments)


def _reason(hooks: LocalHooks) -> str:
    """The reason for the faithful step, or an empty string."""
    module, datamodule = hooks.module, hooks.datamodule
    name = type(module).__name__
    if not module.automatic_optimization:
        return f"{name} has automatic_optimization = False"
    for owner, known in ((module, (*OF_A_MODULE, *OF_A_BATCH)), (datamodule, OF_A_BATCH)):
        if found := [hook for hook in known if hook in written_hooks(owner)]:
            return f"{type(owner).__name__}.{found[0]}"
    for callback in hooks.callbacks:
        return f"{type(callback).__name__}.{step_hooks(callback)[0]}"
    if any(config.interval == "step" for config in hooks.configured.schedulers):
        return f"{name}.configure_optimizers returns a scheduler with the interval step"
    if again := [optimizer for optimizer in each_optimizer(hooks.configured.optimizer) if asks_again(optimizer)]:
        return f"{type(again[0]).__name__} computes the loss several times in a step"
    if hooked := _torch_hook(hooks):
        return hooked
    if hooks.accumulate > 1:
        return f"accumulate_grad_batches={hooks.accumulate}"
    if read := values_read(module):
        return f"{name}.training_step reads {read[0]}"
    return ""


def _torch_hook(hooks: LocalHooks) -> str:
    """The first hook of torch's on a parameter or an optimiser, which copies of the module would lose; empty if there is none."""
    for name, parameter in hooks.module.named_parameters():
        if parameter.requires_grad and (parameter._backward_hooks or parameter._post_accumulate_grad_hooks):
            return f"{type(hooks.module).__name__}.{name} has a hook"
    for optimizer in each_optimizer(hooks.configured.optimizer):
        if optimizer._optimizer_step_pre_hooks or optimizer._optimizer_step_post_hooks:
            return f"{type(optimizer).__name__} has a hook of its step"
    return ""


def step_hooks(callback: L.Callback) -> list[str]:
    """The hooks of a local step that a user's callback defines.

    Lightning's own callbacks and progress bars get one batch in each round instead.
    """
    if lightning_base(callback, "ProgressBar") is not None:
        return []
    return users_hooks(callback, OF_A_STEP)


def check_mapping(hooks: LocalHooks, methods: Sequence[Method], inputs: Any) -> None:
    """Refuse methods that map the gradient over samples if the gradient has hooks, or the samples of a batch cannot be told apart.

    Args:
        hooks: of the client's step.
        methods: the run's.
        inputs: of the training set.
    """
    method = next((method for method in methods if method.maps_gradient), None)
    if method is not None and hooks.reason:
        raise ValueError(
            f"{method.name} computes the gradients of many samples at once, without Lightning's hooks of a step, and this run needs them "
            f"({hooks.reason}): remove one of the two"
        )
    if method is not None and isinstance(inputs, Source) and inputs.whole_batches:
        raise ValueError(
            f"{method.name} takes the gradient of each sample alone, and a collate_fn can mix the samples of a batch: let the data set's "
            f"items have one shape and leave out collate_fn, or remove {method.name}"
        )


def check_manual(module: L.LightningModule, methods: Sequence[Method]) -> None:
    """Refuse methods that need the loss or the gradient of a module with manual optimisation."""
    if module.automatic_optimization:
        return
    for method in methods:
        changes = any(map(method.overrides, CHANGES_A_STEP))
        if changes or method.differentiates_loss:
            clips = isinstance(method, GradientClip)
            name = "trainer.gradient_clip_val" if clips else method.name
            remedy = "call self.clip_gradients in training_step" if clips else "let training_step return the loss"
            raise ValueError(
                f"{name} {'changes' if changes else 'differentiates'} the loss or the gradient of a step, and {type(module).__name__} "
                f"takes its steps itself (automatic_optimization = False): remove {name}, or {remedy}"
            )


def check_accumulation(hooks: LocalHooks) -> None:
    """Refuse modules and optimisers for which gradients of several batches cannot be accumulated."""
    if hooks.accumulate == 1:
        return
    name, again = type(hooks.module).__name__, [each for each in each_optimizer(hooks.configured.optimizer) if asks_again(each)]
    if not hooks.module.automatic_optimization:
        raise ValueError(
            f"accumulate_grad_batches={hooks.accumulate}: {name} takes its steps itself (automatic_optimization = False): accumulate "
            "gradients in its training_step"
        )
    if again:
        raise ValueError(
            f"accumulate_grad_batches={hooks.accumulate}: {type(again[0]).__name__} computes the loss of a batch several times in a step: "
            "use a larger batch size"
        )
