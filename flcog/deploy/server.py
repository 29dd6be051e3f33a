"""The server of a deployment: it trains a federation whose clients live on Flower's nodes. ``flcog server`` waits for runs."""

import time
import traceback
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from queue import Queue
from typing import Any

import httpx
from flwr.common.config import get_fused_config_from_dir
from flwr.common.serde import run_from_proto
from flwr.proto.runtime_pb2 import PullTaskInputRequest
from flwr.serverapp import Grid
from flwr.supercore.constant import TaskType
from flwr.supercore.logger import flush_logs, mirror_output_to_queue, start_log_uploader, stop_log_uploader
from flwr.supercore.run import RunNotRunningException
from flwr.supercore.task_identity import TaskIdentity
from flwr.superlink.grid import HttpGrid

from flcog.commands.complaint import complain
from flcog.commands.refusals import refusal
from flcog.deploy.application import PACKAGE
from flcog.deploy.checks import check_run
from flcog.deploy.clients import DeployedClients, FlowerNode, Progress
from flcog.deploy.node import facts_of
from flcog.deploy.objects import SERVER, make_objects
from flcog.deploy.post import Post
from flcog.deploy.tasks import Runtime, finish, hash_of, refusal_of


def wait_for_runs(runtime: Runtime, app: Path) -> None:
    """Train the runs of an app that somebody submits to the SuperLink, one after another and without end.

    Args:
        runtime: the SuperLink's.
        app: this machine's copy of the app.
    """
    pinned, output = hash_of(app), Queue[str | None]()
    mirror_output_to_queue(output)  # for flwr log
    for token, asked in runtime.tasks(TaskType.SERVER_APP):
        with runtime.work(token) as client:
            started = client.PullTaskInput(PullTaskInputRequest())
            run = run_from_proto(started.run)
            TaskIdentity.task_id, TaskIdentity.run_id, TaskIdentity.node_id = started.task_id, run.run_id, started.context.node_id
            upload = start_log_uploader(output, 0, run.run_id, client)
            failure = refusal_of(app, pinned, asked)
            if failure:
                print(failure, flush=True)
            else:
                grid = HttpGrid(runtime.address, runtime.certificates is None, runtime.certificates, token=token)
                grid.set_run(run)
                try:
                    failure = failure_of(app / PACKAGE, grid, get_fused_config_from_dir(app, run.override_config))
                finally:
                    grid.close()
            flush_logs(output)
            stop_log_uploader(output, upload)
            with suppress(httpx.HTTPError):  # somebody has stopped the run
                finish(client, failure)


def failure_of(folder: Path, grid: Grid, options: Mapping[str, Any]) -> str:
    """Train a run. Returns the reason if it fails."""
    try:
        train(folder, grid, options)
    except RunNotRunningException:
        return "the run was stopped"
    except Exception as error:
        if (reason := refusal(error)) is None:
            traceback.print_exc()
            return f"{type(error).__name__}: {error}"
        complain(reason)
        return reason
    return ""


def train(folder: Path, grid: Grid, options: Mapping[str, Any]) -> None:
    """Train until all rounds are done.

    Args:
        folder: the app's folder, with ``config.yaml`` and ``server.yaml``.
        grid: Flower's.
        options: the run's configuration: ``nodes``, ``clients``, ``max_client_samples``, ``min_clients``, ``timeout``, ``poll``,
            ``ckpt_path``, ``root``.
    """
    post = Post(grid, float(options["poll"]), float(options["timeout"]))
    progress = Progress(post)
    root = ("--trainer.default_root_dir", str(options["root"])) if options["root"] else ()
    objects = make_objects(folder, [folder / SERVER], *root, observers=[progress])
    check_run(objects.trainer.methods, objects.trainer.observers)
    facts = facts_of(objects.datamodule, int(options["clients"]))
    nodes = [FlowerNode(post, number, progress, facts) for number in connected(post, int(options["nodes"]))]
    print(f"{len(nodes)} nodes are connected, and load the model and their data", flush=True)
    counts = [options_of(options, name) for name in ("clients", "max_client_samples", "min_clients")]
    objects.trainer.connect(DeployedClients(nodes, progress, *counts))
    objects.trainer.fit(objects.model, objects.datamodule, ckpt_path=options["ckpt_path"] or None)


def options_of(options: Mapping[str, Any], name: str) -> int:
    """A whole number among a run's options."""
    value = options.get(name)
    if type(value) is not int or value < 1:
        raise ValueError(
            f"the run's option {name} must be a whole number of at least 1; got {value!r}: set it in pyproject.toml or --run-config"
        )
    return value


def connected(post: Post, wanted: int) -> list[int]:
    """Wait until enough nodes are connected, and return their numbers."""
    deadline = time.monotonic() + post.timeout
    while len(nodes := list(post.grid.get_node_ids())) < wanted:
        if time.monotonic() > deadline:
            raise ValueError(
                f"{len(nodes)} of {wanted} nodes are connected after {post.timeout:g} s: start the others, or set nodes"
            )
        time.sleep(post.poll)
    return nodes
