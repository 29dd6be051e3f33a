"""The command ``flcog deploy``: writes a Flower app from a configuration, or tries it in this process."""

import tempfile
import warnings
from pathlib import Path

from flcog.commands.federated_cli import CommandCLI
from flcog.core.commands import parser_of
from flcog.core.extras import require
from flcog.deploy.application import FLOWER, NODE, PACKAGE, write_app
from flcog.deploy.node import shares
from flcog.deploy.objects import check_run


def deploy(arguments: list[str]) -> None:
    """Write a Flower app of a configuration, for clients at other institutions, or try it in this process.

    All further options are those of flcog fit: flcog deploy -c quickstart -c methods/scaffold --out app
    """
    parser = parser_of("deploy", deploy)
    parser.add_argument("--out", type=Path, metavar="FOLDER", help="the folder of the app")
    help = "train with N nodes in this process, which send Flower's messages to each other"
    parser.add_argument("--try", dest="nodes", type=int, metavar="N", help=help)
    help = "the most samples that a client may have; by default as many as the largest client of the configured data"
    parser.add_argument("--max-client-samples", type=int, metavar="N", help=help)
    options, rest = parser.parse_known_args(arguments)
    if options.out is None and options.nodes is None:
        raise ValueError("flcog deploy needs --out FOLDER, to write an app, or --try N, to train with N nodes in this process")
    if options.nodes is not None:
        if options.nodes < 1:
            raise ValueError(f"--try must be the number of nodes, at least 1; got {options.nodes}")
        require(*FLOWER)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "LightningCLI's args parameter")
        objects = CommandCLI(rest)
    check_run(objects.trainer.methods, objects.trainer.observers)
    federation = objects.datamodule.federation
    clients, most = federation.num_clients, options.max_client_samples or int(federation.split.sizes.max())
    with tempfile.TemporaryDirectory(prefix="flcog-") as temporary:
        app = options.out or Path(temporary, "app")
        assert objects.trainer.config is not None
        write_app(app, objects.trainer.config, clients, options.nodes or clients, most)
        if options.nodes is not None:
            _try(
                app.resolve(), Path(temporary, "states"), clients, options.nodes, Path(objects.trainer.default_root_dir).resolve()
            )
        else:
            print(f"{app}: copy it to the server and to all nodes; each node keeps a file like {app / NODE} (docs/deployment.md)")


def _try(app: Path, states: Path, clients: int, nodes: int, root: Path) -> None:
    """Train in this process."""
    from flwr.common.config import get_fused_config_from_dir  # flwr is an extra

    from flcog.deploy.server import train
    from flcog.deploy.trial import Here, nodes_of

    grid = Here(nodes_of(app, states, shares(clients, nodes)))
    train(app / PACKAGE, grid, get_fused_config_from_dir(app, {"root": str(root)}))  # type: ignore[arg-type]
