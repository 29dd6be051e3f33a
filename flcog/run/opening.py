"""Opens a run in five steps: read, describe, check, make the session, restore."""

import functools
from pathlib import Path
from typing import Any, cast

from flcog.assembly import Assembly, data_modules
from flcog.client.kept_weights import keeping_weights
from flcog.client.model import ClientModel, make_client_model
from flcog.client.setup_trainer import SetupTrainer
from flcog.core.fabric import processes_of
from flcog.core.lightning_packages import lightning_base
from flcog.run import checkpoint, experiment
from flcog.run.lightning_callbacks import LightningCallbacks
from flcog.run.lightning_checkpoint import logged_hyperparameters
from flcog.run.plans import CheckpointFile, Plan, Request
from flcog.run.session import Session
from flcog.run.trackers import Trackers


def open_run(request: Request, plan: Plan) -> Session:
    """The session of a verb. A checkpoint is compared before methods exchange any data and before anything is written,
    unless a module asks for its trainer's ``log_dir`` in ``setup`` or ``configure_optimizers``.

    Args:
        request: the user's arguments of the trainer and its verb.
        plan: how the verb opens a run.
    """
    settings, processes = request.settings, processes_of(request.fabric)
    found = plan.find(request, processes)
    saved = None if found is None else CheckpointFile(found, checkpoint.read(found))

    lightning = next(observer for observer in request.observers if isinstance(observer, LightningCallbacks))
    find_directory = functools.cache(lambda: plan.directory(request, saved, processes))
    trainer = SetupTrainer(settings, request.datamodule, processes, lightning.callbacks, request.root, find_directory)
    trainer.enter(plan.stage)
    _read_data(request, trainer)
    trainer.callbacks = list(lightning.gather(request.model))
    client = make_client_model(settings, request.methods, request.model, request.datamodule, processes, trainer)
    described = _describe(request, plan, saved, client)
    notes = [] if saved is None else plan.check(request, saved, client, described)
    if saved is None and plan.trains:
        client.check_values()
    directory = find_directory()
    trackers = plan.trackers(saved, directory) if processes.is_first else Trackers()
    trackers.log_setting(logged_hyperparameters(request.model, request.datamodule.hooked))  # flcog's own settings follow
    assembly = Assembly(settings, request.methods, client, request.datamodule, processes)
    if request.clients is not None:
        engine, server = assembly.with_clients_elsewhere(request.clients)
    else:
        engine, server = assembly.with_clients_here(Path(request.root) if plan.keep_files else None)
    engine.notes.add(*notes)
    checkpoints = directory / "checkpoints" if directory else saved.path.resolve().parent if saved else None
    run = Session(
        engine,
        server,
        observers=request.observers,
        experiment=described,
        config=request.config,
        directory=directory,
        clients=None if checkpoints is None else checkpoints / "clients",
        trackers=trackers,
    )
    plan.restore(request, run, saved)
    lightning.attach(run, client.hooks, request.root)
    return run


def _describe(request: Request, plan: Plan, saved: CheckpointFile | None, client: ClientModel) -> dict[str, Any]:
    """Describe the experiment. A resumed run keeps the initial weights of its first start, also in its ``config.yaml``."""
    described = experiment.describe(request.settings, request.methods, client, request.datamodule, request.config)
    if origin := plan.origin(saved):
        described["init_from"] = origin
        if request.config is not None and plan.trains:
            request.config["init_from"] = origin["file"]  # an absolute path, which holds in every folder
    return described


def _read_data(request: Request, trainer: SetupTrainer) -> None:
    """Prepare and set up the data. The user's own hooks of this time see their trainer."""
    request.datamodule.seen_in_setup = trainer
    try:
        with request.fabric.rank_zero_first(local=True):
            for module in (request.datamodule, *data_modules(request.methods)):
                module.prepare_data()
            if lightning_base(request.model, "LightningModule"):
                with trainer.visible_to(request.model):
                    cast(Any, request.model).prepare_data()
        with keeping_weights(request.model, trainer.stage):  # a module with its own loaders is set up here
            request.datamodule.setup(trainer.stage)
    finally:
        request.datamodule.seen_in_setup = None
