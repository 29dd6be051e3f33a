"""The ServerApp: trains a federation whose clients live on Flower's nodes."""

import logging
import os
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from flcog.commands.complaint import complain
from flcog.commands.refusals import refusal
from flcog.deploy.checks import check_run
from flcog.deploy.clients import DeployedClients, FlowerNode, Progress
from flcog.deploy.node import facts_of
from flcog.deploy.objects import SERVER, make_objects
from flcog.deploy.post import Post
from flcog.deploy.supervision import end_with, start_of

END_SECONDS = 20.0
"""Workers that do not answer the request to end within this time end by themselves when they are idle."""


class RunFailure(Exception):
    """Tells Flower that the run has failed, in one line."""


def server_app(folder: Path) -> ServerApp:
    """The ServerApp of an app.

    Args:
        folder: the app's folder, with ``config.yaml`` and ``server.yaml``.
    """
    app = ServerApp()
    logging.getLogger("flwr").addFilter(_without_traceback)

    @app.main()
    def main(grid: Grid, context: Context) -> None:
        end_with((os.getppid(), start_of(os.getppid())))  # the SuperLink's: without it, a round would wait until the timeout
        try:
            train(folder, grid, context.run_config)
        except Exception as error:
            if (reason := refusal(error)) is None:
                raise
            complain(reason)
            raise RunFailure(reason) from None

    return app


def _without_traceback(record: logging.LogRecord) -> bool:
    """Leave out the traceback of a run that has failed with one line."""
    if record.exc_info and isinstance(record.exc_info[1], RunFailure):
        record.exc_info = None
    return True


def train(folder: Path, grid: Grid, options: Mapping[str, Any]) -> None:
    """Train until all rounds are done.

    Args:
        folder: the app's folder.
        grid: Flower's.
        options: the run's configuration: ``nodes``, ``clients``, ``min_clients``, ``timeout``, ``poll``, ``ckpt_path``, ``root``.
    """
    post = Post(grid, float(options["poll"]), float(options["timeout"]))
    progress = Progress(post)
    root = ("--trainer.default_root_dir", str(options["root"])) if options["root"] else ()
    objects = make_objects(folder, [folder / SERVER], *root, observers=[progress])
    check_run(objects.trainer.methods, objects.trainer.observers)
    facts = facts_of(objects.datamodule)
    nodes = [FlowerNode(post, number, progress, facts) for number in connected(post, int(options["nodes"]))]
    objects.trainer.connect(DeployedClients(nodes, progress, int(options["clients"]), int(options["min_clients"])))
    try:
        objects.trainer.fit(objects.model, objects.datamodule, ckpt_path=options["ckpt_path"] or None)
    finally:
        end(post, nodes)


def end(post: Post, nodes: Sequence[FlowerNode]) -> None:
    """End the nodes' workers, if they answer soon."""
    deadline = time.monotonic() + min(post.timeout, END_SECONDS)
    for identifier in [node.end() for node in nodes]:
        post.wait_for(identifier, deadline)


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
