"""Opens a run in five steps: read, describe, check, make the session, restore."""

from pathlib import Path
from typing import Any

import lightning as L

from flcog.client.model import ClientModel, make_client_model
from flcog.core.fabric import processes_of
from flcog.lightning.checkpoint import logged_hyperparameters
from flcog.run import checkpoint, experiment
from flcog.run.assembly import Assembly, data_modules
from flcog.run.hosting import largest_client
from flcog.run.plans import CheckpointFile, Plan, Request
from flcog.run.session import Session
from flcog.run.trackers import Trackers


def open_run(request: Request, plan: Plan) -> Session:
    """The session of a verb. A checkpoint is compared before methods exchange any data and before anything is written."""
    settings, processes, trainer = request.settings, processes_of(request.fabric, request.lightning.together), request.lightning
    found = plan.find(request, processes)
    saved = None if found is None else CheckpointFile(found, checkpoint.read(found))

    trainer.enter(plan.stage, processes)
    _read_data(request, plan)
    trainer.plan(*largest_client(settings, request.datamodule))
    client = make_client_model(settings, request.methods, request.model, request.datamodule, processes, trainer)
    described = _describe(request, plan, saved, client)
    notes = [] if saved is None else plan.check(request, saved, client, described)
    directory = plan.directory(request, saved, processes)
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
        lightning=trainer,
        datamodule=request.datamodule,
    )
    plan.restore(request, run, saved)
    trainer.finish_opening(run)
    return run


def _describe(request: Request, plan: Plan, saved: CheckpointFile | None, client: ClientModel) -> dict[str, Any]:
    """Describe the experiment. A resumed run keeps the initial weights of its first start, also in its ``config.yaml``."""
    described = experiment.describe(request.settings, request.methods, client, request.datamodule, request.config)
    if origin := plan.origin(saved):
        described["init_from"] = origin
        if request.config is not None and plan.trains:
            request.config["init_from"] = origin["file"]  # an absolute path, which holds in every folder
    return described


def _read_data(request: Request, plan: Plan) -> None:
    """Prepare and set up the data. The user's own hooks of this time see their trainer."""
    request.lightning.show_data(request.datamodule.hooked)
    with request.fabric.rank_zero_first(local=True):
        for module in (request.datamodule, *data_modules(request.methods)):
            module.prepare_data()
        if isinstance(request.model, L.LightningModule):
            request.model.trainer = request.lightning
            request.model.prepare_data()
    request.datamodule.setup(plan.stage.value)
