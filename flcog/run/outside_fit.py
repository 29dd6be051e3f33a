"""``setup`` and ``teardown`` around the trainer's verbs outside ``fit``, with their own stage."""

import copy
from collections.abc import Iterator
from contextlib import contextmanager

from lightning.pytorch.trainer.states import TrainerFn

from flcog.client.kept_weights import keeping_weights
from flcog.client.lightning_hooks import written_hooks
from flcog.core.users_hooks import call_hook
from flcog.run.lightning_callbacks import LightningCallbacks
from flcog.run.lightning_trainer import LightningTrainer
from flcog.run.session import Session
from flcog.trainer_view import RUNNING


@contextmanager
def outside_fit(callbacks: LightningCallbacks, run: Session, stage: TrainerFn, again: bool) -> Iterator[None]:
    """Surround an evaluation or predictions with ``setup`` and ``teardown`` of the data module, the callbacks and the module.

    Args:
        callbacks: those of the trainer.
        run: whose model is evaluated.
        stage: ``validate``, ``test`` or ``predict``.
        again: whether the run was opened by an earlier verb, and not with this stage. Otherwise its data and its module are set up.
    """
    trainer = callbacks.show(run)
    state = copy.copy(trainer.state)
    trainer.state.fn, trainer.state.stage = stage, RUNNING[stage]
    try:
        if again:
            _set_up_again(run, trainer, stage.value)
        callbacks.call_users("setup", stage.value)
        yield
        trainer.datamodule.teardown(stage.value)
        callbacks.call_users("teardown", stage.value)
        if again:
            run.engine.hand_over(run.server, run.evaluated_params())
    finally:
        trainer.state.fn, trainer.state.stage = state.fn, state.stage


def _set_up_again(run: Session, trainer: LightningTrainer, stage: str) -> None:
    """Call ``setup`` of the data module and of the module. The run keeps its samples and its weights."""
    module, datamodule = trainer.lightning_module, trainer.datamodule
    hooked, with_loaders = "setup" in written_hooks(module), getattr(datamodule, "loaders_of", None) is module
    trainer.load_global_model()
    with trainer.kept(hooked), keeping_weights(module, stage), trainer.visible_to(module):
        with trainer.visible_to(datamodule):
            datamodule.setup(stage)  # that of a module with its own loaders is the module's
        if hooked and not with_loaders:
            call_hook(module, "setup", stage)
