"""The federated trainer: rounds instead of epochs, on Lightning Fabric."""

import dataclasses
import functools
import inspect
import itertools
import math
import os
import time
import warnings
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing, contextmanager, nullcontext
from pathlib import Path
from typing import Any, Literal, TypeVar, cast
from weakref import WeakSet

import lightning as L
import numpy as np
import torch
from lightning.fabric import Fabric
from lightning.fabric.utilities.exceptions import MisconfigurationException
from lightning.pytorch.loggers import Logger
from torch import Tensor
from torch.utils import _pytree as pytree

from flcog.apply import ModelFunction
from flcog.client import ClientModule, trains_itself
from flcog.core import checks as ranges
from flcog.core import lost_processes, signals
from flcog.core.allocations import keep_allocations
from flcog.core.ledger import Ledger, model_bytes
from flcog.core.randomness import fold, generator, sample_without_replacement, seeded
from flcog.core.signals import RoundDropped, StopSignals
from flcog.core.types import Params, Slot
from flcog.data import FederatedDataModule, Partition
from flcog.engine.aggregation import Aggregate
from flcog.engine.batching import Batching, Work, make_work
from flcog.engine.executors.base import LoopExecutor, Result, Round
from flcog.engine.executors.choice import Job, choose_executor, loop
from flcog.engine.lightning_hooks import check_hooks, written_hooks
from flcog.engine.output_check import check_outputs
from flcog.engine.program import Local, Program, num_bytes
from flcog.evaluation import Evaluator, spread
from flcog.hooks import CLIENT_HOOKS, Callback, ClientView, Cohort, Messages, Method, Optimisation, Plan, check_methods
from flcog.run import checkpoint, experiment
from flcog.run.checkpoint_contents import check_alike
from flcog.run.client_states import ClientStates
from flcog.run.directory import (
    LAST,
    MetricsTable,
    environment,
    find_checkpoint,
    new_run_directory,
    next_command,
    run_of,
    update_yaml,
)
from flcog.run.observers.defaults import default_observers
from flcog.run.partition_report import partition_report, without_clients
from flcog.run.trackers import Trackers, check_environment
from flcog.run.writer_lock import WriterLock

DTYPES = {"32-true": torch.float32, "64-true": torch.float64, "bf16-true": torch.bfloat16, "bf16-mixed": torch.float32}


_trained: WeakSet[L.LightningModule] = WeakSet()
"""Models that a fit was given: another fit does not start from new weights."""

Verb = TypeVar("Verb", bound=Callable[..., Any])


def _in_precision(verb: Verb) -> Verb:
    """New tensors inside ``verb`` have the run's precision; the default is put back after it."""

    @functools.wraps(verb)
    def wrapped(self: "FederatedTrainer", *args: Any, **kwargs: Any) -> Any:
        before = torch.get_default_dtype()
        torch.set_default_dtype(DTYPES[self.precision])
        try:
            with lost_processes.watched(self._how_to_go_on):
                return verb(self, *args, **kwargs)
        finally:
            torch.set_default_dtype(before)

    return cast(Verb, wrapped)


class FederatedTrainer:
    """Trains a client module on a federation.

    Args:
        rounds: communication rounds in all, those of a resumed checkpoint included.
        clients_per_round: how many clients take part in a round: a count (int), or a fraction of all (float in (0, 1]).
        local_steps: optimiser steps of each client in a round; or else
        local_epochs: passes of each client over its own data in a round (fractions are allowed).
        executor: ``loop`` (each client for itself), ``vmap`` (many as one batched program), or ``auto``.
        chunk_size: clients at a time: of one batched program under vmap, on as many threads under loop; None chooses.
        callbacks: methods and observers, in the order in which they act.
        logger: trackers; True is W&B (offline without a login), False none. ``metrics.csv`` is always written.
        eval_every: rounds between evaluations, the last round included in any case; 0 for no evaluation at all.
        default_root_dir: where runs get their directories.
        accelerator, strategy, devices, num_nodes, precision: as Fabric has them; processes share out the clients of a round.
        seed: fixes cohorts, batches, noise: the same at any executor and number of processes.
        on_bad_update: what to do about a client of which something that it sends or keeps is NaN or infinite: ``raise``, or ``drop``
            it, which runs the round again as if it had stayed away: that takes time, and no memory for single clients' updates.
        resume_changed: whether a checkpoint's run may go on with other settings than it was written with (see :meth:`fit`).

    Example:
        >>> import flcog
        >>> from flcog.datamodules import Digits
        >>> trainer = flcog.FederatedTrainer(rounds=1, local_steps=1, logger=False)
    """

    def __init__(
        self,
        rounds: int = 50,
        clients_per_round: int | float = 1.0,
        local_steps: int | None = None,
        local_epochs: float | None = None,
        executor: Literal["auto", "loop", "vmap"] = "auto",
        chunk_size: int | None = None,
        callbacks: list[Callback] | None = None,
        logger: Logger | list[Logger] | bool | None = True,
        eval_every: int = 1,
        default_root_dir: str = "runs",
        accelerator: str = "auto",
        strategy: str = "auto",
        devices: int | str = 1,
        num_nodes: int = 1,
        precision: Literal["32-true", "64-true", "bf16-true", "bf16-mixed"] = "32-true",
        seed: int = 0,
        on_bad_update: Literal["raise", "drop"] = "raise",
        resume_changed: bool = False,
    ) -> None:
        if (local_steps is None) == (local_epochs is None):
            given = "neither" if local_steps is None else "both"
            raise ValueError(f"set exactly one of local_steps and local_epochs; got {given}")
        for name, value, least in (
            ("rounds", rounds, 1),
            ("local_steps", local_steps, 1),
            ("chunk_size", chunk_size, 1),
            ("eval_every", eval_every, 0),
        ):
            if value is not None and value < least:
                raise ValueError(f"{name} must be at least {least}; got {value}")
        if local_epochs is not None and not 0 < local_epochs < math.inf:
            raise ValueError(f"local_epochs must be positive and finite; got {local_epochs}")
        for name, choice, choices in (
            ("executor", executor, ("auto", "loop", "vmap")),
            ("on_bad_update", on_bad_update, ("raise", "drop")),
            ("precision", precision, tuple(DTYPES)),
            ("strategy", strategy, ("auto", "ddp", "single_device")),
        ):
            if choice not in choices:
                raise ValueError(f"{name} must be one of {', '.join(choices)}; got {choice!r}")
        if not clients_per_round > 0 or (isinstance(clients_per_round, float) and clients_per_round > 1):
            raise ValueError(
                f"clients_per_round is a count (1, 2, ...) or a fraction in (0, 1]; got {clients_per_round!r}: a count has no decimal point"
            )
        self.rounds, self.clients_per_round, self.local_steps, self.local_epochs = (
            rounds,
            clients_per_round,
            local_steps,
            local_epochs,
        )
        self.executor_choice, self.chunk_size, self.eval_every = executor, chunk_size, eval_every
        self.logger, self.default_root_dir, self.seed, self.on_bad_update = logger, default_root_dir, seed, on_bad_update
        ranges.seed(self, "seed")
        self.precision, self.num_nodes, self._launched = precision, num_nodes, False
        self.resume_changed = resume_changed
        for callback in callbacks or []:
            if not isinstance(callback, Callback):
                raise ValueError(f"callbacks are flcog methods or observers; got {type(callback).__name__}")
        self.methods: list[Method] = [callback for callback in callbacks or [] if isinstance(callback, Method)]
        check_methods(self.methods)
        self.observers: list[Callback] = default_observers([c for c in callbacks or [] if not isinstance(c, Method)])
        self.fabric = _make_fabric(accelerator, strategy, devices, num_nodes, precision, [*self.methods, *self.observers])

        self.round = 0
        """Rounds done."""
        self.should_stop = False
        """An observer sets this to end the run after the current round."""
        self.config: dict[str, Any] | None = None
        """The full configuration, where the CLI knows it."""
        self._experiment: dict[str, Any] = {}
        """What the run is, for its checkpoints."""
        self.run_dir: Path | None = None
        self._writer = WriterLock()
        self.trackers = Trackers()
        self.table = MetricsTable(None)
        self.ledger = Ledger()
        self.params: Params = {}
        self.buffers: Params = {}
        self.servers: dict[str, Slot] = {}
        """The global model and each method's server state."""
        self.notes: list[str] = []
        """Choices made on the user's behalf, for the run's summary."""

    @property
    def loggers(self) -> list[Logger]:
        """The run's trackers. W&B offline, with no other beside it, is open from the first round's row on."""
        return self.trackers.loggers

    @property
    def history(self) -> list[dict[str, float]]:
        """One row per round: the rows of ``metrics.csv``."""
        return self.table.rows

    # The three verbs --------------------------------------------------------------------------------------------------------------

    @_in_precision
    def fit(self, model: L.LightningModule, datamodule: FederatedDataModule, ckpt_path: str | None = None) -> None:
        """Train for ``rounds`` rounds, or go on from a checkpoint.

        One run, with every hook where it fires (observers' hooks begin with ``on_``)::

            configure_model                                   once: the model, with what methods add to it
            prepare_data                                      once: exchanges of data before round 1
            init_server                                       once: each method's server state
            on_fit_start
            for each round:
                sample the cohort
                on_round_start
                for each client of the cohort:
                    plan                                      its number of steps, or that it drops out
                for each client of the cohort:
                    report                                    once in its life: what it tells the server
                weights                                       aggregation weights of the cohort
                broadcast                                     server -> clients: the model, and a part of each server state
                for each client of the cohort:
                    init_client                               once in its life: its state
                    draw                                      its randomness of this round
                for each client (looped, vmapped in chunks, or spread over processes):
                    client_inputs                             data made for it
                    start                                     where its first step departs
                    for each local step:
                        wrap_gradient
                        loss                                  inside the gradient: task loss + sum of terms
                        correct_gradient
                        (the optimiser steps)
                        after_step
                    over_data                                 means over all its samples
                    finish_client                             clients -> server: delta and messages; its new state
                server_step                                   after summing up: what becomes of the mean delta
                evaluate_at                                   where the global model is evaluated
                personal                                      each client's own model, if a method keeps one
                on_evaluation_end
                on_round_end
            on_fit_end

        Args:
            model: a :class:`flcog.ClientModule`, or any LightningModule with ``training_step`` and ``configure_optimizers``; these
                with ``configure_model``, and ``test_step`` or ``validation_step`` to evaluate it, are all of Lightning's hooks that
                are called. ``self.current_epoch`` is the round, ``batch_idx`` the client's local step.
            datamodule: the federation's data.
            ckpt_path: a checkpoint, a run's directory, or ``last`` for the newest run under ``default_root_dir`` that has this
                trainer's methods. The run that goes on is the same experiment: another seed, list of methods, model, data set or
                partition is refused, and so is any other setting that was changed, unless ``resume_changed`` says that it was
                meant. More rounds are no change, nor is where and how the run is computed and tracked, nor which observers watch.

        Ctrl-C, SIGUSR1, SIGUSR2 and SIGHUP end it after the round in hand, SIGTERM and a second Ctrl-C drop that round (several
        processes always finish it). The run is saved, and fit left by a KeyboardInterrupt after Ctrl-C, else by a SystemExit with
        status 75.
        """
        self.run_dir, self.trackers, status = None, Trackers(), "failed"
        self._signals = StopSignals(lambda text: signals.say(text) if self.is_first else None)
        self._signals.listen()
        try:
            self._set_up(model, datamodule, ckpt_path, stage="fit")
            if model in _trained and ckpt_path is None:
                self.notes.append(
                    "note: an earlier fit trained this model, and this one starts from it: make a new one to start anew"
                )
            _trained.add(model)
            self._observe("on_fit_start")
            self._signals.rounds_begin(shared=self.fabric.world_size > 1)
            while self.round < self.rounds and not self.should_stop:
                self._run_round()
                self._stop_if_told()
            self._signals.rounds_end()
            self._hand_over()
            self._observe("on_fit_end")
            status = "success"
        except BaseException as error:
            exception = lost_processes.explain(error)
            self._observe("on_exception", exception)
            if exception is error:
                raise
            raise exception from None
        finally:
            self._signals.rounds_end()
            try:
                self.trackers.close(status)
            finally:
                self._writer.release()
                self._signals.leave()

    @_in_precision
    def validate(
        self, model: L.LightningModule, datamodule: FederatedDataModule, ckpt_path: str | None = None
    ) -> dict[str, float]:
        """Evaluate on the validation sets, from a checkpoint or as the model is."""
        return self._measure(model, datamodule, ckpt_path, "val")

    @_in_precision
    def test(self, model: L.LightningModule, datamodule: FederatedDataModule, ckpt_path: str | None = None) -> dict[str, float]:
        """Evaluate on the test sets, from a checkpoint or as the model is."""
        return self._measure(model, datamodule, ckpt_path, "test")

    def _measure(
        self, model: L.LightningModule, datamodule: FederatedDataModule, ckpt_path: str | None, split: str
    ) -> dict[str, float]:
        self._set_up(model, datamodule, ckpt_path, stage=split)
        metrics = {name: value for name, value in self._evaluate().items() if name.startswith(f"{split}/")}
        if not metrics:
            raise ValueError(f"{type(datamodule).__name__} has no {split} set: set data.client_{split}, or use the other verb")
        return metrics

    @_in_precision
    def replay(self, model: L.LightningModule, datamodule: FederatedDataModule, run: Path, round: int, client: int) -> None:
        """Run one client's local update of one round again, alone, on the loop executor, printing every step.

        Starts from the latest checkpoint before that round; what lies between is run again, which gives the same numbers.

        Args:
            model, datamodule: as the run had them.
            run: the run's directory.
            round: the round, counted from 0.
            client: its number.
        """
        candidates = [
            (checkpoint.read(path)["round"], path) for path in (run / "checkpoints").glob("*.ckpt") if path.stem != "best"
        ]
        before = [(done, path) for done, path in candidates if done <= round]
        self._set_up(model, datamodule, str(max(before)[1]) if before else None, stage="replay")
        if round >= self.rounds or round < 0:
            raise ValueError(f"the run has rounds 1 to {self.rounds}; got --round {round + 1}")
        clients = self.sample(round)
        if client not in clients:
            raise ValueError(f"client {client} was not in round {round + 1}, whose cohort was {clients}")
        print(f"from round {self.round} of {max(before)[1]}" if before else "from the initial model: no earlier checkpoint")
        while self.round < round:
            self._advance(self.sample(self.round))
        methods = [method for method in self.methods if method.active(round)]
        clients, steps = self._plan(methods, clients, round)
        if client not in clients:
            raise ValueError(f"client {client} dropped out of round {round + 1} before it trained")
        cohort = self._make_cohort(methods, clients, round, {})
        task = self._make_task(methods, cohort, steps, [clients.index(client)])
        work = task.works[0]
        print(f"round {round + 1}, client {client}: {work.num_samples} samples, {work.num_steps} steps, weight {work.weight:.4g}")
        task = task._replace(watch=lambda step, loss: print(f"  step {step + 1:>4}  task loss {loss:.6g}"))
        result = next(LoopExecutor(self.model, self.optimizer).run(task))
        for name, value in (result.delta or {}).items():
            bad = int((~torch.isfinite(value)).sum())
            print(f"  delta {name:<32} norm {float(value.norm()):.6g}" + (f"  {bad} values are not finite" if bad else ""))

    @_in_precision
    def prepare(self, model: L.LightningModule, datamodule: FederatedDataModule) -> None:
        """Everything before the first round but the run's directory: to drive rounds by hand with :meth:`train_round`."""
        self._set_up(model, datamodule, None, stage="prepare")

    @_in_precision
    def train_round(self) -> dict[str, float]:
        """One round of training alone: no evaluation, observers, trackers or checkpoint. Returns its figures."""
        return self._advance(self.sample(self.round))

    def collect(self) -> Aggregate:
        """One round's client side alone, after :meth:`prepare`: what the server would receive. The model stays as it is."""
        methods = [method for method in self.methods if method.active(self.round)]
        clients, steps = self._plan(methods, self.sample(self.round), self.round)
        return self._train_cohort(methods, clients, steps, {}, directions=False)[1]

    # A round ----------------------------------------------------------------------------------------------------------------------

    def _run_round(self) -> None:
        began, round = time.perf_counter(), self.round
        evaluated = self.eval_every > 0 and ((round + 1) % self.eval_every == 0 or round + 1 == self.rounds)
        clients = self.sample(round)
        self._observe("on_round_start", round + 1, clients)
        with self._undone_if_dropped(clients):
            metrics = self._advance(clients, evaluated)
            metrics["time/round"] = time.perf_counter() - began
            if evaluated:
                began = time.perf_counter()
                metrics |= self._evaluate()
                metrics["time/evaluation"] = time.perf_counter() - began
        if evaluated:
            self._observe("on_evaluation_end", self.round, metrics)
        self.table.append(metrics)
        self._observe("on_round_end", self.round, metrics)
        self.trackers.log_metrics(metrics)  # last: a tracker that fails, or is killed while it tries, costs no round

    def _stop_if_told(self) -> None:
        """All processes stop after the same round, whichever of them got the signal."""
        number = self._signals.number
        if self.fabric.world_size > 1:
            largest = torch.tensor(number, device=self.fabric.device)
            torch.distributed.all_reduce(largest, torch.distributed.ReduceOp.MAX)
            number = int(largest)
        if number and self.round < self.rounds and not self.should_stop:
            raise self._signals.stop(number, self.is_first)

    @contextmanager
    def _undone_if_dropped(self, clients: list[int]) -> Iterator[None]:
        """Puts the state back to the last whole round's where a signal drops this one. Its values are replaced, never changed in place."""
        round, params, ledger = self.round, self.params, self.ledger.copy()
        buffers, servers = dict(self.buffers), dict(self.servers)
        reported = {name: known.intersection(clients) for name, known in self._reported.items()}
        try:
            with self.states.noting_changes(), self._signals.round_in_hand():
                yield
        except RoundDropped:
            self.round, self.params, self.buffers, self.servers, self.ledger = round, params, buffers, servers, ledger
            for name, known in self._reported.items():
                known -= set(clients) - reported.get(name, set())
            self.states.undo()
            raise self._signals.stop(self._signals.number, self.is_first) from None

    def sample(self, round: int) -> list[int]:
        """The clients of a round, counted from 0."""
        return sample_without_replacement(self.federation.num_clients, self.cohort_size(), fold(self.seed, round, "cohort"))

    def _advance(self, clients: list[int], directions: bool = False) -> dict[str, float]:
        """One round of training: from the sampled clients to the new global model, and its figures."""
        # What was exchanged before the first round is in its row, so that rows add up to the total.
        round, before = self.round, self.ledger.copy() if self.round else Ledger()
        methods = [method for method in self.methods if method.active(round)]
        clients, steps = self._plan(methods, clients, round)
        metrics: dict[str, float] = {"round": round + 1}
        if clients:
            cohort, aggregate = self._train_cohort(methods, clients, steps, metrics, directions)
            self._server_step(methods, cohort, aggregate)
            metrics |= aggregate.figures()
        else:
            warnings.warn(f"round {round + 1}: every sampled client dropped out; the model stays as it was", stacklevel=2)
        self.round += 1
        return metrics | self.ledger.figures(before)

    def _plan(self, methods: Sequence[Method], clients: list[int], round: int) -> tuple[list[int], list[int]]:
        """Who takes part with how many steps, and what newcomers report."""
        sizes = self.federation.partition.offsets
        planners = [method for method in methods if method.overrides("plan")]
        plans: list[tuple[int, int]] = []
        for client in clients:
            num_samples = int(sizes[client + 1] - sizes[client])
            plan: Plan | None = Plan(self.batching.num_steps(num_samples))
            for method in planners:
                rng = generator(self.seed, round, client, "plan", method.name)
                plan = method.plan(plan, ClientView(client, num_samples, round, self.federation), rng)
                if plan is None:
                    break
            if plan is not None:
                if plan.num_steps < 1:
                    raise ValueError(f"a plan has at least one local step; client {client} got {plan.num_steps}")
                plans.append((client, plan.num_steps))
        taking_part = [client for client, _ in plans]
        for method in methods:
            if method.overrides("report"):
                reports = self._reports.setdefault(method.name, {})
                for client in taking_part:
                    if client not in reports:
                        num_samples = int(sizes[client + 1] - sizes[client])
                        reports[client] = method.report(ClientView(client, num_samples, round, self.federation))
                        if client not in self._reported.setdefault(method.name, set()):
                            self._reported[method.name].add(client)
                            self.ledger.add(method.name, up=sum(map(num_bytes, pytree.tree_leaves(reports[client]))))
        return taking_part, [steps for _, steps in plans]

    def _make_cohort(self, methods: Sequence[Method], clients: list[int], round: int, metrics: dict[str, float]) -> Cohort:
        """The cohort with its aggregation weights: shares of samples, then every method's say."""
        optimisation = self._set_learning_rate(round)
        offsets, ids = self.federation.partition.offsets, np.array(clients)
        num_samples = torch.from_numpy(offsets[ids + 1] - offsets[ids]).double()
        cohort = Cohort(
            round=round,
            clients=clients,
            num_clients=self.federation.num_clients,
            num_samples=num_samples,
            weights=num_samples / num_samples.sum(),
            apply=Program(self.model, [], [], self.params, self.buffers, optimisation, self.plain).apply(self.buffers),
            buffers=self.buffers,
            optimisation=optimisation,
            metrics=metrics,
            seed=self.seed,
        )
        for method in methods:
            if not method.overrides("weights"):
                continue
            reports = self._reports.get(method.name, {})
            proposed = method.weights(cohort.weights, [reports.get(client) for client in clients], cohort).double()
            if proposed.shape != cohort.weights.shape or not torch.isfinite(proposed).all() or (proposed < 0).any():
                raise ValueError(f"{method.name}.weights must return {len(clients)} finite weights of at least 0; got {proposed}")
            if proposed.sum() == 0:
                warnings.warn(
                    f"{method.name} gave every client of round {round + 1} weight 0: keeping the weights before it", stacklevel=2
                )
                continue
            if not torch.equal(proposed, cohort.weights):  # dividing by a sum of 1 up to rounding would move last digits
                cohort.weights = proposed / proposed.sum()
        return cohort

    def _train_cohort(
        self, methods: Sequence[Method], clients: list[int], steps: list[int], metrics: dict[str, float], directions: bool
    ) -> tuple[Cohort, Aggregate]:
        """The clients' side of a round, counted and kept.

        Where a client's update is dropped, all is run again without it. Weights, sums and what the server knows of the cohort are then
        what they were had it stayed away, and as draws are keyed the other clients do the same, to the last bit.
        """
        plans = dict(zip(clients, steps, strict=True))
        while True:
            cohort = self._make_cohort(methods, list(plans), self.round, metrics)
            aggregate = self._train_clients(methods, cohort, list(plans.values()), directions)
            if not aggregate.dropped:
                break
            metrics["clients/dropped"] = metrics.get("clients/dropped", 0) + len(aggregate.dropped)
            plans = {client: count for client, count in plans.items() if client not in aggregate.dropped}
            if not plans:
                break
        self._count_bytes(methods, len(clients), aggregate)
        for client, slots in aggregate.slots.items():
            self._keep(methods, client, slots)
        return cohort, aggregate

    def _train_clients(self, methods: Sequence[Method], cohort: Cohort, steps: list[int], directions: bool) -> Aggregate:
        """Broadcast, run this process's share of the clients, and add up over processes."""
        shares = self._share_out(cohort.clients, steps)
        task = self._make_task(methods, cohort, steps, shares[self.fabric.global_rank])
        aggregate = Aggregate(methods, directions, self.on_bad_update)
        aggregate.down_bytes = [sum(map(num_bytes, pytree.tree_leaves(slot))) for slot in task.program.servers]
        with closing(self._executor_results(task)) as results:
            for result in results:
                aggregate.add(result, self.buffers, cohort.round)
        if self.fabric.world_size > 1:
            if self.on_bad_update == "drop":
                dropped = torch.tensor([int(client in aggregate.dropped) for client in cohort.clients], device=self.fabric.device)
                aggregate.dropped = [client for client, bad in zip(cohort.clients, _all_reduce(dropped), strict=True) if bad]
            if not aggregate.dropped:
                self._reduce(aggregate, somebody_idle=any(not share for share in shares))
        return aggregate

    def _count_bytes(self, methods: Sequence[Method], num_clients: int, aggregate: Aggregate) -> None:
        """What went down to so many clients, and what came up from those that count."""
        for method, count in zip(methods, aggregate.down_bytes, strict=True):
            self.ledger.add(method.name, down=num_clients * count)
        # What no client sends is every client's own: after the first round it is not sent down either.
        sent = {name: self.params[name] for name in aggregate.sums.get("delta", ())} if self.round else {}
        self.ledger.add("model", down=num_clients * model_bytes(sent or self.params, self.buffers))
        for name, count in zip(["model", *(method.name for method in methods)], aggregate.up_bytes, strict=True):
            self.ledger.add(name, up=count)

    def _make_task(self, methods: Sequence[Method], cohort: Cohort, steps: list[int], positions: list[int]) -> Round:
        """What the executor needs to run the clients at these positions of the cohort."""
        works = make_work(
            self.federation,
            self.batching,
            [cohort.clients[i] for i in positions],
            [steps[i] for i in positions],
            cohort.weights[positions].tolist(),
            self.seed,
            cohort.round,
        )
        broadcasts = [method.broadcast(self.servers[method.name]) for method in methods]
        self._add_slots(methods, works, cohort.round)
        program = Program(self.model, methods, broadcasts, self.params, self.buffers, cohort.optimisation, self.plain)
        return Round(program, works, self._read, self.bytes_per_sample, self.seed, cohort.round)

    def _server_step(self, methods: Sequence[Method], cohort: Cohort, aggregate: Aggregate) -> None:
        """Methods turn the mean delta into the server's step; buffers are plainly averaged."""
        if "weighted" not in aggregate.sums or float(aggregate.sums["weighted"]["weight"]) == 0:
            warnings.warn(f"round {cohort.round + 1}: no client's update counts; the model stays as it was", stacklevel=2)
            return
        # First, so that methods which go on training at the server do so with this round's statistics.
        for name, change in aggregate.mean("buffers").items():
            value = self.buffers[name] + change
            self.buffers[name] = value if self.buffers[name].is_floating_point() else value.round().to(self.buffers[name].dtype)
        mean = aggregate.mean("delta")
        delta: Params = {n: mean[n].to(p.dtype) if n in mean else torch.zeros_like(p) for n, p in self.params.items()}
        for i, method in enumerate(methods):
            individual = sorted(aggregate.individual[i], key=lambda upload: upload.client)  # whatever the executor's order
            messages = Messages(aggregate.mean(f"mean/{i}"), aggregate.total(f"sum/{i}"), individual)
            delta, self.servers[method.name] = method.server_step(self.servers[method.name], self.params, delta, messages, cohort)
        self.params = {name: (value + delta[name]).detach() for name, value in self.params.items()}
        if self.fabric.world_size > 1 and any(method.overrides("server_step") for method in methods):
            # Every process takes the server's step. Where it trains there (FedWalk), an accelerator's kernels may differ in the last
            # digits, and processes would drift apart.
            self.params, self.servers = _from_the_first((self.params, self.servers), self.fabric.device)

    def _add_slots(self, methods: Sequence[Method], works: Sequence[Work], round: int) -> None:
        """Each client's state (made when first needed) and this round's draws."""
        if not any(method.overrides("init_client") or method.overrides("draw") for method in methods):
            for work in works:
                work.slots = work.draws = [{}] * len(methods)
            return
        self.states.fetch([work.client for work in works])
        for work in works:
            stored = self.states.get(work.client)
            data = ClientView(work.client, work.num_samples, round, self.federation)
            for method in methods:
                slot = stored.get(method.name)
                work.slots.append(method.init_client(self.params, self.buffers) if slot is None else slot)
                draws = {}
                if method.overrides("draw"):
                    draws = method.draw(generator(self.seed, round, work.client, "draw", method.name), data)
                work.draws.append(self._to_device(draws))

    def _keep(self, methods: Sequence[Method], client: int, slots: list[Slot]) -> None:
        new = {method.name: slot for method, slot in zip(methods, slots, strict=True) if pytree.tree_leaves(slot)}
        if new:
            self.states.put(client, self.states.get(client) | new)

    def _share_out(self, clients: list[int], steps: list[int]) -> list[list[int]]:
        """Positions in the cohort, by process: the longest first, each to the least busy.

        A client whose state a method keeps stays on the process that first trained it; everybody computes the same assignment.
        """
        if self.fabric.world_size == 1:
            return [list(range(len(clients)))]
        shares: list[list[int]] = [[] for _ in range(self.fabric.world_size)]
        load = [0] * self.fabric.world_size
        stateful = any(method.overrides("init_client") for method in self.methods)
        owner = self.states.owner if stateful else {}
        for i in sorted(range(len(clients)), key=lambda i: (clients[i] not in owner, -steps[i], clients[i])):
            rank = owner.get(clients[i])
            if rank is None:
                rank = min(range(len(load)), key=load.__getitem__)
                if stateful:
                    owner[clients[i]] = rank
            shares[rank].append(i)
            load[rank] += steps[i]
        return [sorted(share) for share in shares]

    def _reduce(self, aggregate: Aggregate, somebody_idle: bool) -> None:
        aggregate.reduce(_all_reduce, self.fabric.broadcast, somebody_idle, self.fabric.device)
        counts = torch.tensor(aggregate.up_bytes, dtype=torch.int64, device=self.fabric.device)
        aggregate.up_bytes = _all_reduce(counts).tolist()
        if any(method.individual_uploads for method in self.methods):
            gathered: list[Any] = [None] * self.fabric.world_size
            torch.distributed.all_gather_object(gathered, aggregate.individual)
            aggregate.individual = [[upload for part in gathered for upload in part[i]] for i in range(len(aggregate.individual))]

    # Evaluation -------------------------------------------------------------------------------------------------------------------

    def evaluated_params(self) -> Params:
        """Where the global model is evaluated: the server's parameters, or what methods put in their place."""
        params = self.params
        for method in self.methods:
            if method.overrides("evaluate_at") and method.active(max(0, self.round - 1)):
                params = method.evaluate_at(self.servers[method.name], params)
        return params

    def _evaluate(self) -> dict[str, float]:
        """The global model on the central sets, and its spread over the clients' own held-out parts."""
        params = self.evaluated_params()
        metrics: dict[str, float] = {}
        for split, samples in (("val", self.federation.val), ("test", self.federation.test)):
            if samples is not None:
                figures = self.evaluator.on_set(params, self.buffers, samples)
                metrics |= {f"{split}/{name}": value for name, value in figures.items()}
        if isinstance(self.model.module, ClientModule):
            module = self.model.module
            for split, parts in (("val", self.federation.client_val), ("test", self.federation.client_test)):
                if parts is not None:
                    scores = self.evaluator.on_clients(params, self.buffers, parts)
                    metrics |= spread(scores, f"{split}/client_{module.score_name}", lower_is_better=module.task == "regression")
                    metrics |= self._evaluate_personal(params, parts, split)
        return metrics

    def _evaluate_personal(self, params: Params, parts: Partition, split: str) -> dict[str, float]:
        """Each client's own model on its own held-out part, where a method keeps one."""
        methods = [method for method in self.methods if method.overrides("personal") or method.personal_steps]
        if not methods:
            return {}
        method, module = methods[0], self.model.module
        assert isinstance(module, ClientModule)
        optimisation, seed = self._set_learning_rate(max(0, self.round - 1)), fold(self.seed, "personal")
        broadcasts = [method.broadcast(self.servers[method.name])]
        program = Program(self.model, [method], broadcasts, params, self.buffers, optimisation, self.plain)
        scores = torch.zeros(parts.num_clients, dtype=torch.float64)
        rank, world_size = self.fabric.global_rank, self.fabric.world_size
        for client in np.flatnonzero(parts.sizes).tolist():
            if self.states.owner.get(client, client % world_size) != rank:
                continue
            steps = [max(1, method.personal_steps)]
            work = make_work(self.federation, self.batching, [client], steps, [1.0], seed, self.round)[0]
            self._add_slots([method], [work], self.round)
            local = Local(work.slots, work.draws, [{}], work.num_steps, work.num_samples, 1.0)
            own, buffers = method.personal(params, program.contexts(local, self.buffers, 0)[0]), self.buffers
            if method.personal_steps:
                tuning = Program(self.model, [], [], own, buffers, optimisation, self.plain)
                work.slots, work.draws = [], []
                task = Round(tuning, [work], self._read, self.bytes_per_sample, seed, self.round)
                result = next(LoopExecutor(self.model, self.optimizer).run(task))
                assert result.delta is not None
                own = {name: value + result.delta[name][0] for name, value in own.items()}
                buffers = {name: value[0].clone() for name, value in result.buffers.items()}
            elif method.personal_statistics and self.model.mixes_rows:
                buffers = self.evaluator.statistics(own, buffers, work.own)
            scores[client] = self.evaluator.on_rows(own, buffers, parts.client(client))
        if world_size > 1:
            scores = _all_reduce(scores.to(self.fabric.device)).cpu()
        scores[torch.from_numpy(parts.sizes == 0)] = torch.nan
        return spread(scores, f"{split}/personal_{module.score_name}", lower_is_better=module.task == "regression")

    # Setting up -------------------------------------------------------------------------------------------------------------------

    def _set_up(self, model: L.LightningModule, datamodule: FederatedDataModule, ckpt_path: str | None, stage: str) -> None:
        if not self._launched:
            lost_processes.launch(self.fabric, self.num_nodes)
            self._launched = True
        if self.fabric.world_size > 1 and self.fabric.device.type == "cpu":
            # Processes that each take every core slow one another down a hundredfold.
            here = int(os.environ.get("LOCAL_WORLD_SIZE", self.fabric.world_size // self.num_nodes))
            torch.set_num_threads(max(1, num_cores() // max(1, here)))
        keep_allocations()
        check_hooks(model, (datamodule, *_data_modules(self.methods)), warn=self.is_first)
        found = None if ckpt_path is None else self.fabric.broadcast(self._find_checkpoint(ckpt_path))
        if stage == "fit" and found is not None and found.is_file():
            self._claim(run_of(found))  # before anything is read, which another writer might be about to change
        saved = None if found is None else checkpoint.read(found)
        with self.fabric.rank_zero_first(local=True):
            for module in (datamodule, *_data_modules(self.methods)):
                module.prepare_data()
        datamodule.setup(stage)
        self.datamodule, self._keeps_files = datamodule, stage != "prepare"
        self.round, self.should_stop = 0, False
        self.ledger, self.table, self.notes = Ledger(), MetricsTable(None), []
        if stage == "fit":
            self._open_run(found, None if saved is None else saved["tracker_run"])
        self._set_up_model(model, datamodule)
        clients_dir = (
            found.resolve().parent / "clients" if found else self.run_dir / "checkpoints" / "clients" if self.run_dir else None
        )
        self.states = ClientStates(clients_dir, self.fabric.global_rank, self._receive_state)
        if stage in ("fit", "replay"):
            self._experiment = experiment.describe(self, self.methods, self.model.module, self.optimizer, datamodule, self.config)
        if found is not None and saved is not None:
            self._restore(found, saved, stage)
        if stage == "fit":
            self._log_setting(model, datamodule)

    def _set_up_model(self, model: L.LightningModule, datamodule: FederatedDataModule) -> None:
        """The model with what methods add to it, the data with what they exchange, the servers' states, the executor."""
        federation = datamodule.federation
        self.plain = trains_itself(model)
        if "configure_model" in written_hooks(model):
            with seeded(fold(self.seed, "configure_model"), self.fabric.device):
                _in_float32(model.configure_model)
        if isinstance(model, ClientModule) and model.task != federation.task:
            raise ValueError(
                f"{type(model).__name__} learns {model.task}, but {type(datamodule).__name__} holds {federation.task} data: "
                "use Classifier, MultiLabelClassifier or Regressor accordingly"
            )
        for method in self.methods:
            if federation.task not in method.tasks:
                raise ValueError(
                    f"{method.name} is defined for {' and '.join(method.tasks)}, not for {federation.task} data: remove it"
                )
            if method.overrides("configure_model"):
                if not isinstance(model, ClientModule):
                    raise ValueError(
                        f"{method.name} changes the model, for which it must be a flcog.ClientModule; got {type(model).__name__}"
                    )
                with seeded(fold(self.seed, "configure_model", method.name), self.fabric.device):
                    model = _in_float32(method.configure_model, model)
            if (method.overrides("personal") or method.personal_steps) and federation.client_test is None:
                self.notes.append(f"note: the personal models of {method.name} are measured only with data.client_test above 0")
        model = model.to(self.fabric.device, DTYPES[self.precision])
        if self.fabric.world_size > 1:
            for tensor in model.state_dict().values():
                torch.distributed.broadcast(tensor, 0)
        for method in self.methods:
            if method.start_round >= self.rounds:
                self.notes.append(f"note: {method.name} starts after {method.start_round} rounds, so it never acts in this run")
        for earlier, later in itertools.combinations([method for method in self.methods if method.overrides("weights")], 2):
            # FedDyn goes on without its weights; what does nothing but weigh is lost.
            only_weighs = not any(earlier.overrides(hook) for hook in (*CLIENT_HOOKS, "server_step"))
            if only_weighs and (earlier.active(later.start_round) or later.active(earlier.start_round)):
                self.notes.append(
                    f"note: {later.name} is listed after {earlier.name} and sets the weights: swap them to weigh by {earlier.name}"
                )
        self.model = ModelFunction(model, self.fabric.autocast if self.precision.endswith("mixed") else nullcontext)
        self.params = {name: p.detach().clone() for name, p in self.model.params.items()}
        self.buffers = {name: self.model.buffers[name].detach().clone() for name in self.model.shared_buffers}
        workspace = Path(self.default_root_dir) if self._keeps_files else None
        federation = dataclasses.replace(federation, train=federation.train.to(self.fabric.device), workspace=workspace)
        self._convolves = self.model.convolves
        index = torch.from_numpy(federation.partition.indices[:1]).to(self.fabric.device)
        first = self._convert(federation.load(federation.train, index, self.fabric.device)[0])
        check_outputs(self.model, first, federation)
        for method in self.methods:
            if method.overrides("prepare_data") and method.start_round < self.rounds:
                federation = method.prepare_data(federation, generator(self.seed, "prepare_data", method.name))
        for name, (up, down) in federation.ledger.items():
            self.ledger.add(name, up, down)
        self.federation = federation
        self.batching = Batching(datamodule.batch_size, self.local_steps, self.local_epochs, datamodule.drop_last)
        self.servers = {method.name: method.init_server(self.params) for method in self.methods}
        self._reports: dict[str, dict[int, Any]] = {}
        self._reported: dict[str, set[int]] = {}
        self.bytes_per_sample = first.numel() * first.element_size()
        self.optimizer = _single_optimizer(model)
        self._base_rates = [group["lr"] for group in self.optimizer.param_groups]
        settings = [[group.get(name) for name in ("lr", "momentum", "weight_decay")] for group in self.optimizer.param_groups]
        if any(setting != settings[0] for setting in settings) and self.methods:
            self.notes.append(
                "note: the optimiser's groups differ; a method that needs its learning rate takes the first group's"
            )
        self._job = Job(
            model=self.model,
            optimizer=self.optimizer,
            methods=self.methods,
            plain=self.plain,
            sample=first,
            batch_size=self.batching.batch_size,
            largest_client=int(federation.partition.sizes.max()),
            clients=-(-self.cohort_size() // self.fabric.world_size),
            chunk_size=self.chunk_size,
        )
        self.executor, note = choose_executor(self._job, self.executor_choice)
        self.notes += [note] if note else []
        self.evaluator = Evaluator(
            self.model,
            federation,
            datamodule.eval_batch_size,
            self._convert,
            self.fabric.device,
            self.fabric.global_rank,
            self.fabric.world_size,
            _all_reduce if self.fabric.world_size > 1 else lambda tensor: tensor,
        )

    def _executor_results(self, task: Round) -> Generator[Result, None, None]:
        """The executor's results; a program that torch.func cannot batch is run by the loop instead, from its first chunk on."""
        if isinstance(self.executor, LoopExecutor):
            yield from self.executor.run(task)
            return
        results = self.executor.run(task)
        try:
            first = next(results, None)
        except RuntimeError as error:
            if not any(word in str(error) for word in ("vmap", "Batching rule", "functorch")):
                raise
            reason = str(error).strip().splitlines()[0]
            warnings.warn(f"executor=vmap falls back to loop: this model or method cannot be vectorised ({reason})", stacklevel=2)
            self.executor, note = loop(self._job, reason)
            self.notes.append(note)
            yield from self.executor.run(task)
            return
        if first is not None:
            yield first
            yield from results

    def cohort_size(self) -> int:
        """How many clients are sampled in a round."""
        population = self.federation.num_clients
        if isinstance(self.clients_per_round, float):
            return max(1, round(self.clients_per_round * population))
        if self.clients_per_round > population:
            raise ValueError(
                f"clients_per_round={self.clients_per_round} but the federation has {population} clients: "
                "lower it, or raise data.num_clients"
            )
        return self.clients_per_round

    def _set_learning_rate(self, round: int) -> Optimisation:
        schedule = self.model.module.lr_schedule if isinstance(self.model.module, ClientModule) else None
        factor = 1.0 if schedule is None else schedule(round)
        for group, rate in zip(self.optimizer.param_groups, self._base_rates, strict=True):
            group["lr"] = rate * factor
        group = self.optimizer.param_groups[0]
        return Optimisation(group["lr"], group.get("momentum", 0.0), group.get("weight_decay", 0.0))

    def _read(self, indices: np.ndarray, keys: np.ndarray | None) -> tuple[Tensor, Tensor]:
        chosen = torch.from_numpy(indices).to(self.fabric.device, non_blocking=True)
        inputs, targets = self.federation.load(self.federation.train, chosen, self.fabric.device, keys)
        return self._convert(inputs), targets

    def _convert(self, inputs: Tensor) -> Tensor:
        inputs = inputs.to(DTYPES[self.precision]) if inputs.is_floating_point() else inputs
        # Once for many batches here, where flattening channels-last images would copy each batch of each pass.
        return inputs if self._convolves else inputs.contiguous()

    def _to_device(self, tree: Any) -> Any:
        return pytree.tree_map(lambda t: t.to(self.fabric.device) if isinstance(t, Tensor) else t, tree)

    @torch.no_grad()
    def _hand_over(self) -> None:
        """The user's module ends as the global model, not as the last client left it."""
        for name, value in (self.params | self.buffers).items():
            (self.model.params.get(name, self.model.buffers.get(name))).copy_(value)  # type: ignore[union-attr]

    # The run directory ------------------------------------------------------------------------------------------------------------

    @property
    def is_first(self) -> bool:
        """Whether this process is the one that prints and writes."""
        return self.fabric.is_global_zero

    def _claim(self, run: Path) -> None:
        """Be the only one who writes into a run's directory: the first process, for all of this run."""
        refused = self.fabric.broadcast(self._writer.take(run) if self.is_first else None)
        if refused is not None:
            raise ValueError(refused)

    def _open_run(self, found: Path | None, tracker_run: str | None) -> None:
        """A new run's directory, or the one of the run that goes on."""
        check_environment(self.logger)
        if found is None:
            self.run_dir = Path(self.fabric.broadcast(str(new_run_directory(self.default_root_dir)) if self.is_first else ""))
            self._claim(self.run_dir)
        else:
            self.run_dir = run_of(found)
        self.table = MetricsTable(self.run_dir / "metrics.csv" if self.is_first else None)
        self.trackers = Trackers(self.logger, self.run_dir, tracker_run) if self.is_first else Trackers()

    def _log_setting(self, model: L.LightningModule, datamodule: FederatedDataModule) -> None:
        """What the run is: to its directory and to the trackers."""
        if not self.is_first or self.run_dir is None:
            return
        setting = {
            "methods": [repr(method) for method in self.methods],
            "model": type(getattr(model, "model", model)).__name__,
            "num_parameters": sum(p.numel() for p in self.params.values()),
            "data": type(datamodule).__name__,
            "num_clients": self.federation.num_clients,
            "partition": (numbers := partition_report(self.federation)[1]),
            "executor": self.executor.name,
            "clients_at_once": self.executor.clients_at_once,
            "threads": torch.get_num_threads(),
            "processes": self.fabric.world_size,
            "seed": self.seed,
            **environment(),
        }
        update_yaml(self.run_dir / "run.yaml", setting)
        if self.config is not None:
            update_yaml(self.run_dir / "config.yaml", self.config)
        # The command and the figures of single clients stay in the run's directory.
        told = {name: value for name, value in setting.items() if name != "command"} | {"partition": without_clients(numbers)}
        self.trackers.log_setting({"run": told} | ({"config": self.config} if self.config else {}))
        self.notes += [f"tracker: {tracker}" for tracker in self.trackers.begin()]

    # Checkpoints ------------------------------------------------------------------------------------------------------------------

    def save_checkpoint(self, path: Path, resumable: bool = True) -> None:
        """Write the run's state; every process calls it.

        Args:
            path: where to.
            resumable: whether the clients' states belong to it; without them it can only be evaluated.
        """
        payload: dict[str, Any] = {
            "format": checkpoint.FORMAT,
            "round": self.round,
            "seed": self.seed,
            "params": self.params,
            "buffers": self.buffers,
            "methods": [method.name for method in self.methods],
            "servers": self.servers,
            "reported": {name: sorted(clients) for name, clients in self._reported.items()},
            "ledger": self.ledger.state_dict(),
            "exchanged": checkpoint.digests(self.federation.exchanged),
            "experiment": self._experiment,
            "observers": {name: observer.state_dict() for name, observer in self._named_observers()},
            "tracker_run": self.trackers.run_id,
            "resumable": resumable,
        }
        if resumable:
            self.states.files |= self._gather(self.states.save(self.round))
            payload["clients"] = self.states.files
        if self.is_first:
            checkpoint.write(path, payload)

    def _gather(self, written: dict[int, str]) -> dict[int, str]:
        if self.fabric.world_size == 1 or not any(method.overrides("init_client") for method in self.methods):
            return written
        parts: list[Any] = [None] * self.fabric.world_size
        torch.distributed.all_gather_object(parts, written)
        return {client: name for part in parts for client, name in part.items()}

    def _find_checkpoint(self, ckpt_path: str | Path) -> Path:
        fits = functools.partial(checkpoint.may_have_methods, names=[method.name for method in self.methods])
        return find_checkpoint(ckpt_path, self.default_root_dir, fits)

    def _restore(self, path: Path, saved: dict[str, Any], stage: str) -> None:
        """Take over a checkpoint: the model alone to evaluate it, everything to go on."""
        resume = stage in ("fit", "replay")
        checkpoint.check_same_model(path, saved["params"] | saved["buffers"], self.params | self.buffers)
        self.params = {name: saved["params"][name].to(value) for name, value in self.params.items()}
        self.buffers = {name: saved["buffers"][name].to(value) for name, value in self.buffers.items()}
        names = [method.name for method in self.methods]
        if saved["methods"] == names:
            check_alike(path, "the server's state", saved["servers"], self.servers)
            self.servers = self._to_device(saved["servers"])
        elif resume:
            raise ValueError(
                f"{path} was written by a run with methods {saved['methods']}; this run has {names}: use the same list"
            )
        if not resume:
            self.round = saved["round"]
            if saved["methods"] == names and saved["resumable"]:
                self.states.load(saved["clients"], self.fabric.world_size)  # personal models are evaluated too
            return
        if not saved["resumable"]:
            raise ValueError(f"{path} holds a model to evaluate, not a run to go on with: resume from last.ckpt beside it")
        if saved["seed"] != self.seed:
            raise ValueError(
                f"{path} was written by a run with seed {saved['seed']}; this one has {self.seed}: use the same seed"
            )
        self._check_experiment(path, saved.get("experiment"), stage)
        if "exchanged" in saved:  # older checkpoints have none
            checkpoint.check_same_exchange(path, saved["exchanged"], self.federation.exchanged)
        self.round = saved["round"]
        self._reported = {name: set(clients) for name, clients in saved["reported"].items()}
        self.ledger = Ledger.from_state(saved["ledger"])
        self.states.load(saved["clients"], self.fabric.world_size)
        for name, observer in self._named_observers():
            checkpoint.load_observer(path, name, observer, saved["observers"].get(name, {}))
        self.table.load(self.round)

    def _check_experiment(self, path: Path, saved: dict[str, Any] | None, stage: str) -> None:
        """Refuse to go on as another experiment; changes that were meant are told."""
        if not saved:
            self.notes.append(
                "note: this older checkpoint does not say what its run was: settings and partition are not compared"
            )
            return
        experiment.check_same(path, saved, self._experiment)
        changes = experiment.differences(saved, self._experiment)
        if stage == "replay":
            for change in changes:
                print(f"other numbers than the run's: {change}")
        elif changes and not self.resume_changed:
            raise ValueError(
                f"{path} was written with other settings: {'; '.join(changes)}. Put them back, start a new run without ckpt_path, "
                "or set trainer.resume_changed to true to go on with the changes"
            )
        self.notes += [f"changed: {change}" for change in changes]

    def _named_observers(self) -> Iterator[tuple[str, Callback]]:
        """Observers by the key of their state: their class, numbered where several share one."""
        seen: dict[str, int] = {}
        for observer in self.observers:
            name = type(observer).__name__
            seen[name] = seen.get(name, 0) + 1
            yield (name if seen[name] == 1 else f"{name}-{seen[name]}"), observer

    def _receive_state(self, file: Path, client: int, slots: dict[str, Any]) -> dict[str, Any]:
        """A client's state that was read, once it is known to be what the methods keep."""
        methods = {method.name: method for method in self.methods if method.overrides("init_client")}
        for name, slot in slots.items():
            if name not in methods:
                raise ValueError(
                    f"{file} holds a state of {name}, which is no method of this run: use the list of the run that wrote it"
                )
            begins = methods[name].init_client(self.params, self.buffers)
            check_alike(file, f"{name}'s state of client {client}", slot, begins)
        return cast(dict[str, Any], self._to_device(slots))

    def _how_to_go_on(self) -> str:
        """What to do about a run that was cut off."""
        if self.run_dir is None or not (self.run_dir / LAST).is_file():
            return "start again, for there is no checkpoint yet"
        return "go on with " + next_command("fit", self.run_dir, self.run_dir, cli=self.config is not None)

    def _observe(self, hook: str, *args: Any) -> None:
        self.fabric.call(hook, self, *args)


def num_cores() -> int:
    """The cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _data_modules(methods: Sequence[Method]) -> list[FederatedDataModule]:
    """Data of methods' own, a leash's say."""
    values = [getattr(method, field.name) for method in methods for field in dataclasses.fields(method)]
    return [value for value in values if isinstance(value, FederatedDataModule)]


def _in_float32(function: Callable[..., Any], *args: Any) -> Any:
    """New layers draw the same weights whatever the run's precision, as the model's own did before the run."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float32)
    try:
        return function(*args)
    finally:
        torch.set_default_dtype(before)


def _all_reduce(tensor: Tensor) -> Tensor:
    torch.distributed.all_reduce(tensor)
    return tensor


def _from_the_first(tree: Any, device: torch.device) -> Any:
    """The first process's tensors for everybody, one message for each type of number."""
    leaves, spec = pytree.tree_flatten(tree)
    received: list[Any] = list(leaves)
    for dtype in {leaf.dtype: None for leaf in leaves}:
        places = [i for i, leaf in enumerate(leaves) if leaf.dtype == dtype]
        vector = torch.cat([leaves[i].detach().reshape(-1).to(device) for i in places])
        torch.distributed.broadcast(vector, 0)
        for i, part in zip(places, vector.split([leaves[i].numel() for i in places]), strict=True):
            received[i] = part.view(leaves[i].shape).to(leaves[i].device, copy=True)  # not a view, which would keep them all
    return pytree.tree_unflatten(received, spec)


def _make_fabric(
    accelerator: str, strategy: str, devices: int | str, num_nodes: int, precision: Any, callbacks: list[Callback]
) -> Fabric:
    """Fabric with processes that stay independent: nothing is wrapped in DDP, only sums and the server's step travel."""
    try:
        return Fabric(
            accelerator=accelerator,
            strategy=strategy,
            devices=devices,
            num_nodes=num_nodes,
            precision=precision,
            callbacks=callbacks,
        )
    # TypeError: devices of the wrong kind; ModuleNotFoundError: an accelerator's own package.
    except (MisconfigurationException, ValueError, RuntimeError, TypeError, ModuleNotFoundError) as error:
        raise ValueError(
            f"accelerator={accelerator}, devices={devices}: {str(error).strip().splitlines()[0]} Set trainer.accelerator (cpu, cuda, "
            "mps, or auto) and trainer.devices to what this machine has"
        ) from error


def _single_optimizer(model: L.LightningModule) -> torch.optim.Optimizer:
    """The optimiser of ``configure_optimizers``, in any of the forms Lightning allows that hold one."""
    configured: Any = model.configure_optimizers()
    if isinstance(configured, dict):
        configured = (configured["optimizer"], configured.get("lr_scheduler"))
    scheduler = None
    if isinstance(configured, tuple) and len(configured) == 2 and not isinstance(configured[1], torch.optim.Optimizer):
        configured, scheduler = configured
    if isinstance(configured, list | tuple) and len(configured) == 1:
        configured = configured[0]
    if scheduler:
        warnings.warn("configure_optimizers' scheduler is ignored: clients start anew each round; use lr_schedule", stacklevel=2)
    if not isinstance(configured, torch.optim.Optimizer):
        raise ValueError(
            f"{type(model).__name__}.configure_optimizers must return one optimiser; got {type(configured).__name__}"
        )
    if inspect.signature(type(configured).step).parameters["closure"].default is inspect.Parameter.empty:
        raise ValueError(f"{type(configured).__name__} asks for the loss again within a step, which no client gives: use another")
    return configured
