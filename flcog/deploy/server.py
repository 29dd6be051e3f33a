"""The server of a deployment: it trains a federation whose clients live on Flower's nodes. ``flcog server`` waits for runs."""

import time
import traceback
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

from flcog.commands.errors import complain, refusal
from flcog.core.checks import whole
from flcog.core.commands import parser_of
from flcog.core.extras import require
from flcog.deploy.application import FLOWER, PACKAGE
from flcog.deploy.node import facts_of
from flcog.deploy.objects import SERVER, check_run, make_objects


def server(arguments: list[str]) -> None:
    """Train the runs of an app that are submitted to a SuperLink on this machine, with this machine's own copy of the app.

    flcog server app --secret secret --root-certificates ca.crt
    """
    parser = parser_of("server", server)
    parser.add_argument("app", type=Path, help="this machine's copy of the app's folder, which flcog deploy has written")
    parser.add_argument(
        "--secret", type=Path, required=True, help="the file that the SuperLink has as --superexec-auth-secret-file"
    )
    parser.add_argument("--superlink", default="127.0.0.1:8000", help="the SuperLink's --host and --port (%(default)s)")
    parser.add_argument(
        "--root-certificates", type=Path, help="the authority of its certificate; none for a SuperLink without TLS"
    )
    options = parser.parse_args(arguments)
    require(*FLOWER)
    from flcog.deploy.tasks import Runtime, train_runs

    authority = options.root_certificates and options.root_certificates.read_bytes()
    runtime, app = Runtime(options.superlink, options.secret.read_bytes(), authority), options.app.resolve()
    train_runs(runtime, app, partial(failure_of, app / PACKAGE))


def failure_of(folder: Path, grid: Any, options: Mapping[str, Any]) -> str:
    """Train a run. Returns the reason if it fails."""
    try:
        train(folder, grid, options)
    except Exception as error:
        if (reason := refusal(error)) is None:
            traceback.print_exc()
            return f"{type(error).__name__}: {error}"
        complain(reason)
        return reason
    return ""


def train(folder: Path, grid: Any, options: Mapping[str, Any]) -> None:
    """Train until all rounds are done.

    ``options`` are those of the app's ``pyproject.toml``.
    """
    from flcog.deploy.clients import DeployedClients, FlowerNode, Progress  # these need Flower's packages
    from flcog.deploy.post import Post

    counts = {name: options.get(name, 0) for name in ("clients", "max_client_samples", "min_clients")}
    whole(None, 1, hint="set it in pyproject.toml or --run-config", **counts)
    post = Post(grid, float(options["poll"]), float(options["timeout"]))
    progress = Progress(post)
    root = ("--trainer.default_root_dir", str(options["root"])) if options["root"] else ()
    objects = make_objects(folder, [folder / SERVER], *root, observers=[progress])
    check_run(objects.trainer.methods, objects.trainer.observers)
    facts = facts_of(objects.datamodule, counts["clients"])
    nodes = [FlowerNode(post, number, progress, facts) for number in connected(post, int(options["nodes"]))]
    print(f"{len(nodes)} nodes are connected, and load the model and their data", flush=True)
    objects.trainer.connect(DeployedClients(nodes, progress, *counts.values()))
    objects.trainer.fit(objects.model, objects.datamodule, ckpt_path=options["ckpt_path"] or None)


def connected(post: Any, wanted: int) -> list[int]:
    """Wait until enough nodes are connected, and return their numbers."""
    deadline = time.monotonic() + post.timeout
    while len(nodes := list(post.grid.get_node_ids())) < wanted:
        if time.monotonic() > deadline:
            raise ValueError(
                f"{len(nodes)} of {wanted} nodes are connected after {post.timeout:g} s: start the others, or set nodes"
            )
        time.sleep(post.poll)
    return nodes
