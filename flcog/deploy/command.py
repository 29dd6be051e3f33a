"""The command ``flcog deploy``: writes a Flower app from a configuration, or tries it on this machine."""

import tempfile
import warnings
from pathlib import Path

from flcog.commands.command_cli import CommandCLI
from flcog.core.commands import parser_of
from flcog.core.extras import require
from flcog.deploy.application import NODE, write_app
from flcog.deploy.checks import check_run
from flcog.deploy.numbering import shares

FLOWER = ("flwr", "flcog deploy", "flower")


def deploy(arguments: list[str]) -> None:
    """Write a Flower app of a configuration, for clients at other institutions, or try it on this machine.

    All further options are those of flcog fit: flcog deploy -c quickstart -c methods/scaffold --out app
    """
    parser = parser_of("deploy", deploy)
    parser.add_argument("--out", type=Path, metavar="FOLDER", help="the folder of the app, which flwr run starts")
    help = "start a SuperLink and N SuperNodes on this machine, with TLS and keys, train, and stop them"
    parser.add_argument("--try", dest="nodes", type=int, metavar="N", help=help)
    options, rest = parser.parse_known_args(arguments)
    if options.out is None and options.nodes is None:
        raise ValueError("flcog deploy needs --out FOLDER, to write an app, or --try N, to train on N nodes on this machine")
    if options.nodes is not None:
        if options.nodes < 1:
            raise ValueError(f"--try must be the number of nodes, at least 1; got {options.nodes}")
        require(*FLOWER)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "LightningCLI's args parameter")
        objects = CommandCLI(rest)
    check_run(objects.trainer.methods, objects.trainer.observers)
    clients = objects.datamodule.federation.num_clients
    with tempfile.TemporaryDirectory(prefix="flcog-") as temporary:
        app = options.out or Path(temporary, "app")
        assert objects.trainer.config is not None
        write_app(app, objects.trainer.config, clients, options.nodes or clients)
        if options.nodes is not None:
            _try(app.resolve(), Path(temporary, "try"), clients, options.nodes, Path(objects.trainer.default_root_dir).resolve())
        else:
            print(f"{app}: start it with flwr run {app}; each node keeps a file like {app / NODE} to itself (docs/deployment.md)")


def _try(app: Path, folder: Path, clients: int, nodes: int, root: Path) -> None:
    """Train on this machine, and print the server's output."""
    from flcog.deploy.loopback import Loopback  # needs Flower's packages

    hosted = shares(clients, nodes)
    with Loopback(folder) as loopback:
        print(f"SuperLink at {loopback.address}", flush=True)
        for k, mine in enumerate(hosted):
            loopback.register(f"node{k}")
            words = {"config": str(app / NODE), "clients": " ".join(map(str, mine)), "state": str(folder / f"state{k}")}
            loopback.start_node(f"node{k}", words)
        for k in range(nodes):
            loopback.wait_for_node(f"node{k}")
        print(f"{nodes} SuperNodes are connected", flush=True)
        run = loopback.run(app, {"nodes": nodes, "root": str(root)})
        status = loopback.follow(run)
    if status != "finished:completed":
        raise ValueError(f"the run has ended as {status}: its output is above")
