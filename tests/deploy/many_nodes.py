"""Train over many nodes in this process: python tests/deploy/many_nodes.py NODES. Ten of the nodes take part in a round.

It needs flcog[flower]. The tests' stand-in for Flower's network delivers the messages. The script prints the number of messages
of each kind, and the bytes on the wire and the seconds of each round.
"""

import os
import sys
from collections import Counter
from pathlib import Path
from tempfile import TemporaryDirectory

import torch

sys.path.insert(0, str(Path(__file__).parents[1]))


from deploy.deployments import rows
from deploy.test_node import softmax
from deploy.test_server import Grid, train_app
from flcog.deploy.application import write_app


def main(nodes: int) -> None:
    torch.set_num_threads(1)
    os.environ |= {"PL_GLOBAL_SEED": "0", "PL_SEED_WORKERS": "0"}
    content = softmax(num_clients=nodes, partitioner="flcog.datamodules.IID")
    content["trainer"] |= {"rounds": 6, "clients_per_round": 10, "callbacks": ["flcog.callbacks.SCAFFOLD"]}
    with TemporaryDirectory() as place:
        folder = Path(place)
        write_app(folder / "app", content, nodes, nodes, 1000)
        grid = Grid(folder / "app", folder / "state", lambda *message: None, nodes, nodes)
        train_app(folder, grid, clients=nodes, timeout=600.0)
        messages: Counter[str] = Counter()
        for (_, kind), count in grid.seen.items():
            messages[kind] += count
        print(f"{nodes} nodes; messages: {dict(messages)}")
        for row in rows(folder / "runs"):
            print(f"round {row['round']}: {row['comm/wire_up_bytes']} bytes up, {float(row['time/round']):.3f} s")


if __name__ == "__main__":
    main(int(sys.argv[1]))
