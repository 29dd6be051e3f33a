"""Writes a Flower app from a configuration."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from flcog.core.files import replacing, write_yaml
from flcog.core.masking import masked
from flcog.deploy.objects import CONFIG, SERVER

FLOWER = ("flwr", "flcog deploy", "flower")
"""Arguments of ``require``."""

PACKAGE = "flcog_app"
"""The app's package. The server and each node have a copy. Users' own modules that the config names belong beside its files."""

NODE = "node.yaml"
"""An example of the file that each node keeps for itself."""

PROJECT = """# flwr run . NAME, where NAME is a SuperLink in Flower's config.toml
[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"

[project]
name = "flcog-app"
version = "1.0.0"
description = "A federation of flcog"
dependencies = ["flwr>=1.41"]

[tool.hatch.build.targets.wheel]
packages = ["{package}"]

[tool.flwr.app]
publisher = "flcog"
fab-exclude = ["/{node}"]

[tool.flwr.app.components]
serverapp = "flcog.deploy.tasks:server_app"
clientapp = "flcog.deploy.tasks:client_app"

[tool.flwr.app.config]
clients = {clients} # of the whole federation
max_client_samples = {samples} # the most samples that a client may have; a node that claims more is not believed
nodes = {nodes} # the run begins when this number of nodes is connected
timeout = 600.0 # seconds after which a node counts as missing
min_clients = 1 # the run stops if fewer clients of a round reply
poll = 0.2 # seconds between two looks for replies
ckpt_path = "" # a checkpoint to continue from, or last
root = "" # the folder of the runs' directories; by default that of the config, from the SuperLink's working directory
"""


def write_app(folder: Path, config: Mapping[str, Any], clients: int, nodes: int, samples: int) -> None:
    """Write an app.

    ``config`` is that of ``flcog fit``, ``nodes`` the number that the run waits for, and ``samples`` the most that a client may have.
    """
    if masked(config) != config:
        raise ValueError("the configuration contains a password or a key, and all nodes have a copy of the app: remove it")
    if (folder / "pyproject.toml").exists():
        raise ValueError(f"{folder} contains a pyproject.toml already: choose another folder with --out, or remove it")
    package = folder / PACKAGE
    package.mkdir(parents=True, exist_ok=True)
    names = {"package": PACKAGE, "node": NODE, "clients": clients, "nodes": nodes, "samples": samples}
    texts = {folder / "pyproject.toml": PROJECT.format(**names), package / "__init__.py": ""}
    for path, text in texts.items():
        with replacing(path, "w") as file:
            file.write(text)
    write_yaml(package / CONFIG, {name: value for name, value in config.items() if name != "data"})
    write_yaml(package / SERVER, {"data": config["data"]})
    write_yaml(folder / NODE, {"data": config["data"]})
