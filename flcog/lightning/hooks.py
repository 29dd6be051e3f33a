"""The observer that calls Lightning's hooks of whole runs, rounds and evaluations at their places in a federated run."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from lightning.pytorch.callbacks import ProgressBar
from lightning.pytorch.trainer.states import RunningStage, TrainerFn, TrainerStatus

from flcog.lightning.checkpoint import restored
from flcog.lightning.trainer import RoundsTrainer
from flcog.method import Callback


class LightningHooks(Callback):
    """Calls the hooks of the run's ``lightning.Trainer``. Every run has one.

    The module has the global model while a hook runs. A hook between rounds may change it: the server goes on with the changed model.
    """

    def __init__(self, trainer: RoundsTrainer) -> None:
        self.trainer = trainer

    def renew(self) -> None:
        """Make another trainer like this one for another run, which begins at round 1."""
        self.trainer = self.trainer.again()

    @contextmanager
    def verb(self, run: Any, stage: TrainerFn, again: bool) -> Iterator[None]:
        """Surround an evaluation or predictions outside ``fit`` with ``setup`` and ``teardown``.

        A verb that opens an open run ``again`` sets up its data and its module again.
        """
        trainer, module = self.trainer, run.model.module
        trainer.enter(stage, run.processes)
        if again:
            trainer.show_data(run.datamodule.hooked)
            trainer.show(module)
            run.load_global_model()
            run.datamodule.setup(stage.value)
            trainer.set_up(again=run.datamodule.loaders_of is module)
            run.model.find_tensors()
        trainer.call("setup", stage=stage.value, of_module=False)
        try:
            yield
        finally:
            trainer.state.stage = None
        trainer.tear_down(stage.value)
        trainer.state.status = TrainerStatus.FINISHED
        if again:
            run.engine.hand_over(run.server, run.evaluated_params())

    @property
    def draws_progress(self) -> bool:
        """Whether the callbacks include a progress bar, which replaces flcog's."""
        return any(isinstance(callback, ProgressBar) for callback in self.trainer.callbacks)

    @property
    def _looks_on(self) -> bool:
        """Whether clients train outside Lightning's loops, so that its callbacks see one batch of each round."""
        return self.trainer.run.engine.clients.executor.name != "lightning"

    @contextmanager
    def _global_model(self, run: Any) -> Iterator[None]:
        run.load_global_model()
        yield
        if self.trainer.has_users_hooks():
            run.take_over_module()

    def on_fit_start(self, run: Any) -> None:
        trainer = self.trainer
        with self._global_model(run):
            trainer.call("setup", stage="fit", of_module=False)
            with restored(trainer, run.resumed_from):
                trainer.resume_at(run.round, run.server.steps)
                trainer.call("on_fit_start")
            run.resumed_from = None
        if (trainer.max_epochs or 0) > run.settings.rounds:
            raise ValueError(
                "StochasticWeightAveraging would compute the statistics of BatchNorm in another epoch after the last round, in which no "
                "client takes a step: use EMAWeightAveraging, which averages them with the weights, or layers without such statistics"
            )

    @contextmanager
    def sanity_check(self, run: Any) -> Iterator[None]:
        """Surround an evaluation before round 1, whose figures are forgotten."""
        trainer = self.trainer
        trainer.sanity_checking = True
        with self._global_model(run):
            trainer.call("on_sanity_check_start", of_module=False)
            yield
            trainer.call("on_sanity_check_end", of_module=False)
        trainer._logger_connector.reset_results()
        trainer._logger_connector.reset_metrics()
        trainer.state.stage = RunningStage.TRAINING

    def on_train_start(self, run: Any) -> None:
        """The rounds begin."""
        with self._global_model(run):
            self.trainer.fit_loop.on_run_start()

    def on_round_start(self, run: Any, round: int, cohort: list[int]) -> None:
        with self._global_model(run):
            self.trainer.start_round(round - 1, run.server.steps)
            if self._looks_on:
                self.trainer.show_batch("on_train_batch_start")

    def on_evaluation_end(self, run: Any, round: int, metrics: dict[str, float]) -> None:
        if not run.evaluator.own.step_for("validation"):
            self.evaluated(run, metrics)

    def evaluated(self, run: Any, metrics: dict[str, float]) -> None:
        """Call the hooks of an evaluation whose figures come from elsewhere than the module's own steps."""
        with self._global_model(run), self.trainer.in_stage("validation", apart=False, of_tests=False) as loop:
            loop.call_around(lambda: self.trainer.publish(metrics))

    def on_round_metrics(self, run: Any, round: int, metrics: dict[str, float]) -> None:
        trainer = self.trainer
        trainer.publish(metrics)
        with self._global_model(run):
            if self._looks_on:
                trainer.show_batch("on_train_batch_end", {})
            metrics.update({name: value for name, value in trainer.end_round().items() if name not in metrics})

    def on_fit_end(self, run: Any) -> None:
        trainer = self.trainer
        with self._global_model(run):
            trainer.fit_loop.on_run_end()
            trainer.call("on_fit_end")
        trainer.tear_down("fit")
        trainer.state.status, trainer.state.stage = TrainerStatus.FINISHED, None

    def on_exception(self, run: Any, exception: BaseException) -> None:
        trainer = self.trainer
        trainer.state.status = TrainerStatus.INTERRUPTED
        trainer.call("on_exception", exception, of_module=False)
        if trainer.datamodule is not None:
            trainer.datamodule.on_exception(exception)
        trainer.state.stage = None
