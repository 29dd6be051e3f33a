"""The federated trainer: rounds instead of epochs, on Lightning Fabric."""

import copy
from dataclasses import replace
from pathlib import Path
from typing import Any

from torch import nn

from flcog.advice import Finding, advise
from flcog.client.messages import Split
from flcog.core.output import never_failing
from flcog.run.export import Format, export
from flcog.run.figures import VERBS, Figures, measure, print_figures
from flcog.run.initial_weights import load_initial_weights
from flcog.run.lifecycle import Lifecycle
from flcog.run.plans import ByHandPlan, FitPlan
from flcog.run.predictions import Predictions, predict
from flcog.run_holder import Data, RunHolder, in_precision, takes_loaders
from flcog.server import round as rounds
from flcog.server.aggregate import Aggregate
from flcog.server.evaluate import evaluate
from flcog.wire.ledger import Ledger


class FederatedTrainer(RunHolder):
    """Trains a client module on a federation.

    Args:
        rounds: the total number of communication rounds, including the rounds of a resumed checkpoint.
        clients_per_round: the clients of a round: a count (int), or a fraction of all clients (float in (0, 1]).
        local_steps: optimiser steps of each client in a round. Give either this or ``local_epochs``.
        local_epochs: passes of each client over its own data in a round (fractions are allowed).
        executor: ``loop`` trains one client after another, ``vmap`` many clients as one batched program, ``vmap-patches`` the same with
            convolutions as matrix products. ``auto`` applies a rule. ``fastest`` measures all of them on the first round's clients, so
            two new runs may choose differently and differ in rounding; a resumed run keeps its choice.
        chunk_size: the number of clients at a time: in a batched program under vmap, on threads under loop. None chooses.
        compile: whether ``torch.compile`` makes one program of a local step (gradient, the hooks of methods, optimiser). Results are
            equal up to rounding, and compiling takes up to half a minute once. ``graphs`` also captures the step as a CUDA graph; under
            ``loop`` it replays the plain step for several clients at a time. A step that cannot be compiled runs uncompiled, with a
            warning.
        callbacks: methods, which act in this order, observers, and Lightning's callbacks.
        logger: trackers; True is W&B (offline without a login), False none. ``metrics.csv`` is always written.
        eval_every: rounds between evaluations. The last round is always evaluated. 0 evaluates no round.
        default_root_dir: the folder of the runs' directories.
        accelerator, strategy, devices, num_nodes, precision: the arguments of Fabric. Processes share the clients of a round.
            Under torchrun, ``devices="auto"`` means all processes that it has started.
        tf32: whether GPUs multiply float32 on their tensor cores, with factors rounded to 11 binary digits: ``true`` in all products,
            ``false`` in none. None keeps torch's setting, which by default uses them in convolutions.
        processes_per_device: the number of processes on each device, for a GPU that one process does not fill. Each process holds a
            copy of the data.
        seed: fixes cohorts, batches and noise, for any executor and number of processes.
        on_bad_update: if a client sends or keeps NaN or infinite values, ``raise`` an error, or ``drop`` the client. Dropping runs the
            round again as if the client had stayed away, which takes time but no memory for single clients' updates.
        resume_changed: whether a resumed run may have other settings than its checkpoint (see :meth:`fit`).
        fast_dev_run: a trial of the program: this number of rounds (True is 1) with one local step for each client and one batch of each
            evaluation, without trackers and checkpoints.
        limit_val_batches, limit_test_batches: how much of the central validation and test set is evaluated: a number of batches (int) or
            a fraction (float).
        limit_predict_batches: how much :meth:`predict` predicts, in the same way.
        overfit_batches: how much of the training data each client has, in the same way, in its order and without shuffling: to see
            whether a model can learn a few batches by heart. It is also ``limit_val_batches``. 0 leaves all data.
        accumulate_grad_batches: the number of batches of each optimiser step, whose gradients are averaged: large steps with the memory of
            small batches. Clients train one at a time. ``local_steps`` counts the steps. A pass over a client's data ends a step.
        inference_mode: whether evaluations run in torch's inference mode. False lets a ``validation_step`` use
            ``torch.enable_grad()``.
        num_sanity_val_steps: the number of batches of each central set that are evaluated before round 1, so that a fault in an evaluation
            shows at once.
        gradient_clip_val: the largest norm (or value) of each client's gradient, after the corrections of all methods.
        gradient_clip_algorithm: ``norm`` or ``value``.
        deterministic: whether torch uses deterministic algorithms alone, or warns where it has none.
        detect_anomaly: whether torch's autograd names the operation that gives NaN.
        profiler: ``simple``, ``advanced``, ``pytorch`` or a profiler of Lightning's; it measures rounds and evaluations.
        max_time: stops the run after the round in which this time has passed ("00:12:00:00" is twelve hours).
        enable_progress_bar, enable_checkpointing, enable_model_summary: whether a run shows its progress, writes checkpoints and prints its
            summary.

    Example:
        >>> import flcog
        >>> from flcog.datamodules import Digits
        >>> trainer = flcog.FederatedTrainer(rounds=1, local_steps=1, logger=False)
    """

    @takes_loaders
    @in_precision
    @never_failing()
    def fit(
        self,
        model: nn.Module,
        datamodule: Data,
        ckpt_path: str | None = None,
        init_from: str | None = None,
    ) -> None:
        """Train for ``rounds`` rounds, or resume from a checkpoint.

        One run, with every hook where it fires (observers' hooks begin with ``on_``)::

            configure_model                                   once: methods extend the model
            prepare_data                                      once: exchanges of data before round 1
            init_server                                       once: each method's server state
            on_note                                           once per note; later notes come before on_round_end
            on_fit_start
            for each round:
                select the cohort                         uniformly, or as a Selection does
                on_round_start
                for each client of the cohort:
                    plan                                      its number of steps, or that it drops out
                broadcast                                     server -> clients: the model, and a part of each server state
                for each client of the cohort:
                    init_client                               once in its life: its state, and its message to the server
                weights                                       aggregation weights of the cohort
                for each client of the cohort:
                    draw                                      its randomness of this round
                for each client (looped, vmapped in chunks, or spread over processes):
                    start                                     its first parameters, and data made for it
                    for each local step:
                        wrap_gradient
                        loss                                  inside the gradient: task loss + sum of terms
                        correct_gradient
                        (the optimiser steps)
                        after_step
                    finish_client                             clients -> server: delta and messages; its new state
                server_step                                   the server's change of the model, from the mean delta
                evaluate_at                                   where the global model is evaluated
                personal                                      each client's own model, if a method keeps one
                on_evaluation_end
                on_round_metrics                              the row is about to be written
                on_round_end
            on_fit_end

        Args:
            model: a :class:`flcog.ClientModule`, or any network, around which the module for the data's task is built, or any
                LightningModule with ``training_step`` and ``configure_optimizers``; its ``validation_step`` and ``test_step`` evaluate
                it. ``self.current_epoch`` is the round, ``batch_idx`` the client's local step. ``docs/lightning.md`` lists the hooks of
                Lightning that are called.
            datamodule: the federation's data. A map-style torch data set, a ``DataLoader`` of one or a plain
                ``LightningDataModule`` is divided over ten clients at random, which the summary says. As for ``lightning.Trainer``, it may
                be a loader and a second one for validation (``train_dataloaders=..., val_dataloaders=...``).
            ckpt_path: a checkpoint, a run's directory, or ``last`` for the newest run under ``default_root_dir`` that has this
                trainer's methods, or ``auto``, which resumes the run of the same configuration under ``default_root_dir`` and starts
                one if there are no runs. A resumed run must be the same experiment: another seed, list of methods, model, data set or
                partition is refused. So is any other changed setting, unless ``resume_changed`` is true. These may change freely: the
                number of rounds, devices and processes, trackers and observers.
            init_from: a checkpoint that ``lightning.Trainer`` or flcog wrote, or a file with a ``state_dict``. The model begins with its
                weights; everything else in the file is ignored. A run that resumes with ``auto`` must have the
                ``init_from`` of its first rounds.

        Ctrl-C, SIGUSR1, SIGUSR2 and SIGHUP end the run after the current round. SIGTERM and a second Ctrl-C drop that round, but with
        several processes it is always finished. The run is saved. Then fit raises a KeyboardInterrupt after Ctrl-C, and a SystemExit
        with status 75 after the other signals.
        """
        if self.fast_dev_run and ckpt_path is not None:
            raise ValueError(f"fast_dev_run tries a program and resumes no run; got ckpt_path={ckpt_path}: leave one of them out")
        resumes = ckpt_path not in (None, "auto")
        origin = None if init_from is None else load_initial_weights(model, init_from, resumes)
        self._session = None
        with Lifecycle(self.fabric, self.profiler) as life:
            plan = FitPlan(ckpt_path, self.resume_changed, self.given_logger, life.lock, origin)
            self._session, self._trained = self._open(model, datamodule, plan), (model, datamodule)
            life.train(self._session, self.evaluate, self.num_sanity_val_steps)

    @takes_loaders
    @in_precision
    def validate(
        self, model: nn.Module | None = None, datamodule: Data | None = None, ckpt_path: str | None = None, verbose: bool = True
    ) -> Figures:
        """Evaluate on the validation sets, from a checkpoint or as the model is.

        Args:
            model: without one, the last run's best checkpoint.
            verbose: whether to print the figures.
        """
        return self._measure("val", verbose, model, datamodule, ckpt_path)

    @takes_loaders
    @in_precision
    def test(
        self, model: nn.Module | None = None, datamodule: Data | None = None, ckpt_path: str | None = None, verbose: bool = True
    ) -> Figures:
        """Evaluate on the test sets, from a checkpoint or as the model is.

        Args:
            model: without one, the last run's best checkpoint.
            verbose: whether to print the figures.
        """
        return self._measure("test", verbose, model, datamodule, ckpt_path)

    @takes_loaders
    @in_precision
    def check(self, model: nn.Module, datamodule: Data) -> list[Finding]:
        """Advice on this combination of methods, model and data, as by ``flcog check``. Nothing is trained or written.

        Client hooks run on random numbers, and a round runs with one local step per client. If :meth:`fit` would refuse the run, or
        a hook fails in that round, its error is raised. Files that runs share, such as generated images, are kept as by ``fit``.
        """
        if self._clients is not None:
            raise ValueError("check calls clients' hooks in this process: use a trainer that is not connected to other processes")
        brief = replace(self.settings, local_steps=1, local_epochs=None, executor="loop", chunk_size=None, compile=False)
        run = self._open(copy.deepcopy(model), datamodule, ByHandPlan(None, keep_files=True), brief)
        return advise(run.engine, run.server)

    @takes_loaders
    @in_precision
    def predict(
        self, model: nn.Module | None = None, datamodule: Data | None = None, ckpt_path: str | None = None, inputs: Any = None
    ) -> Predictions | list[Any]:
        """What the global model says of the test set, by name: ``prediction``, ``probability``, ``target``; all on the CPU. A module's own
        ``predict_step`` returns a list with one result for each batch, of the loader of ``predict_dataloader`` if there is one.

        Args:
            model, datamodule: as :meth:`fit` had them; those of the last run by default, as for :meth:`test`.
            ckpt_path: the checkpoint to predict from.
            inputs: predict these instead, in the data set's format (such as uint8 images with channels last).
        """
        with self._evaluation(VERBS["predict"], model, datamodule, ckpt_path) as run:
            return predict(run, inputs)

    def export(
        self,
        path: str | Path,
        format: Format | None = None,
        model: nn.Module | None = None,
        datamodule: Data | None = None,
        ckpt_path: str | None = None,
    ) -> None:
        """Write the trained network for others: a ``state_dict`` that the plain torch module loads, ``safetensors``, or ``onnx``.

        Args:
            path: the file.
            format: by default that of its suffix (.pt, .safetensors, .onnx).
            model, datamodule: as :meth:`fit` had them; those of the last run by default, as for :meth:`test`.
            ckpt_path: the checkpoint to export.
        """
        export(self._run_to_evaluate(model, datamodule, ckpt_path), Path(path), format)

    def plot(self, *columns: str) -> Any:
        """A matplotlib figure of the history: the main score and the losses, or the columns that are named."""
        from flcog.run.history_figure import history_figure  # matplotlib takes half a second to import

        return history_figure(self.history, columns)

    @takes_loaders
    @in_precision
    def prepare(self, model: nn.Module, datamodule: Data, ckpt_path: str | None = None, keep_files: bool = False) -> None:
        """Everything before the first round but the run's directory: to drive rounds by hand with :meth:`train_round`.

        Args:
            model, datamodule: the arguments of :meth:`fit`.
            ckpt_path: a checkpoint to resume from.
            keep_files: whether methods may keep files that runs share, under ``default_root_dir``.
        """
        self._session, self._trained = self._open(model, datamodule, ByHandPlan(ckpt_path, keep_files)), (model, datamodule)

    @in_precision
    def train_round(self) -> dict[str, float]:
        """One round of training alone: no evaluation, observers, trackers or checkpoint. Returns its figures."""
        self._as_lightning("run").current_epoch = self.run.round
        return rounds.advance(self.run.engine, self.run.server)

    @in_precision
    def collect(self, round: int | None = None) -> tuple[Aggregate, Ledger]:
        """One round's client side alone, after :meth:`prepare`: the server's sums, and the bytes sent. The run stays as it is.

        Args:
            round: the round, counted from 0; the next one by default.
        """
        engine, server = self.run.engine, self.run.server.copy(self.run.round if round is None else round)
        planned = rounds.plan(engine, server, rounds.select(engine, server))
        aggregate = rounds.train(engine, server, planned, directions=False)[1]
        engine.clients.commit([])
        return aggregate, server.ledger

    @in_precision
    def evaluate(self) -> dict[str, float]:
        """The figures of an evaluation of the run as it stands."""
        return evaluate(self.run.engine, self.run.server)

    @in_precision
    def sample(self, round: int) -> list[int]:
        """The clients of a round, counted from 0. A selection with a state takes the state as it is now."""
        return list(rounds.select(self.run.engine, self.run.server.copy(round)).clients)

    def _measure(self, split: Split, verbose: bool, *given: Any) -> Figures:
        with self._evaluation(VERBS[split], *given) as run:
            figures = measure(run, self._lightning, split)
        if verbose and self.fabric.is_global_zero:
            print_figures(figures)
        return figures
