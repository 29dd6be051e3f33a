"""A real deployment on loopback as docs/deployment.md sets it up: a simulation's numbers, processes that are killed, and strangers."""

import os
import shutil
import signal
import ssl
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("flwr")

import httpx
from flwr.app import Message, RecordDict
from flwr.common.serde import run_from_proto
from flwr.proto.runtime_pb2 import PullTaskInputRequest
from flwr.supercore.constant import TaskType
from flwr.supercore.task_identity import TaskIdentity
from flwr.superlink.grid import HttpGrid

from deploy.deployments import CLIENTS, NODES, Deployment, config, history, rows, simulated, until
from flcog.deploy.application import write_app
from flcog.deploy.tasks import Runtime, finish

pytestmark = [
    pytest.mark.slow,
    pytest.mark.long,
    pytest.mark.skipif(shutil.which("nginx", path=f"{os.environ['PATH']}:/usr/sbin") is None, reason="needs nginx"),
]

FEDCOG = {"class_path": "flcog.callbacks.FedCOG", "init_args": {"start_round": 1, "num_samples": 16, "steps": 3}}


@pytest.fixture
def deployment(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Deployment]:
    write_app(tmp_path / "app", request.param, CLIENTS, NODES, 1000)
    with Deployment(tmp_path / "deployment", tmp_path / "app") as running:
        yield running


def of(*callbacks: Any, **options: Any) -> Any:
    return pytest.mark.parametrize("deployment", [config(*callbacks, **options)], indirect=True, ids=["config"])


ALL = ("flcog.callbacks.SCAFFOLD", "flcog.callbacks.FedDisco", FEDCOG)


@of(*ALL)
def test_a_deployment_equals_a_simulation_and_strangers_run_and_read_nothing(deployment: Deployment, tmp_path: Path) -> None:
    deployment.start_nodes()
    run = deployment.run({"root": str(tmp_path / "runs")})
    assert deployment.finish(run) == "finished:completed", deployment.log("server")
    assert history(tmp_path / "runs") == simulated(tmp_path / "simulated", config(*ALL))
    strangers_at_the_door(deployment, tmp_path)
    a_node_asks_for_the_messages_of_another(deployment)
    the_submitter_sends_another_app(deployment, tmp_path)
    the_server_itself_sends_another_app(deployment, tmp_path)


def strangers_at_the_door(deployment: Deployment, tmp_path: Path) -> None:
    """With the authority's certificate nothing but the nodes' API can be reached; without it the server cannot be believed."""
    door = f"https://localhost:{deployment.door}"
    with httpx.Client(verify=ssl.create_default_context(cafile=str(deployment.folder / "ca.crt"))) as client:
        secrets = (
            "control/start-run",
            "control/register-node",
            "control/list-runs",
            "runtime/acquire-task",
            "runtime/pull-object",
        )
        tricks = (
            "fleet/../control/start-run",
            "fleet/%2e%2e/control/start-run",
            "fleet/..%2fcontrol/start-run",
            "fleet//start-run",
        )
        for path in (
            *(f"/v1/{each}" for each in (*secrets, *tricks)),
            "/docs",
            "/openapi.json",
            "/health",
            "/",
            "//v1/control/start-run",
        ):
            for ask in (client.get, client.post):
                assert ask(door + path).status_code in (400, 403, 404), path
        # the door leads to the nodes' API, which asks for a key
        for name in ("pull-messages", "get-fab", "register-node", "push-object"):
            answer = client.post(f"{door}/v1/fleet/{name}", headers={"content-type": "application/protobuf"})
            assert answer.status_code in (400, 401, 415, 422), (name, answer.status_code, answer.text)
    with pytest.raises(httpx.ConnectError, match="CERTIFICATE_VERIFY_FAILED"):
        httpx.get(door)
    with pytest.raises(ValueError, match=r"404|Not Found|not found"):
        deployment.flwr("run", str(another_app(tmp_path / "stranger", deployment.app)), "public")
    deployment.make_key("stranger")
    (deployment.folder / "other.crt").write_text(ssl.get_server_certificate(("localhost", deployment.port)))
    for key, authority in (("stranger", "ca.crt"), ("node0", "other.crt")):
        deployment.start_supernode(0, key, authority, f"intruder-{key}")
        assert until(60, deployment.processes[f"intruder-{key}"].poll) != 0, deployment.log(f"intruder-{key}")
    assert not list(tmp_path.rglob("stranger-was-here*"))


def another_app(folder: Path, app: Path) -> Path:
    """A copy of the app with code that writes a file wherever it is imported."""
    shutil.copytree(app, folder, ignore=shutil.ignore_patterns("node.yaml"))
    text = (folder / "pyproject.toml").read_text().replace('fab-exclude = ["/node.yaml"]\n', "")
    (folder / "pyproject.toml").write_text(text.replace("flcog.deploy.tasks:", "flcog_app.own:"))
    marker = folder.parent / "stranger-was-here"
    code = f"import os; open({str(marker)!r} + str(os.getpid()), 'w').close()\n"
    (folder / "flcog_app" / "own.py").write_text(code + "server_app = 1\nclient_app = 1\n")
    return folder


def a_node_asks_for_the_messages_of_another(deployment: Deployment) -> None:
    """A node's key opens the nodes' API for this node alone."""
    from cryptography.hazmat.primitives.serialization import load_ssh_private_key
    from flwr.proto.fleet_pb2 import PullMessagesRequest
    from flwr.proto.node_pb2 import Node
    from flwr.supercore.protobuf.client import ProtobufClient
    from flwr.supernode.node_auth_http_interceptor import NodeAuthHttpInterceptor

    numbers = [int(deployment.log(f"supernode{k}").split("SuperNode ID: ")[1].split()[0]) for k in (0, 1)]
    key: Any = load_ssh_private_key((deployment.folder / "node0").read_bytes(), None)
    authority = (deployment.folder / "ca.crt").read_bytes()
    signed = NodeAuthHttpInterceptor(key, key.public_key())
    client = ProtobufClient.from_server_address(f"localhost:{deployment.door}", False, authority, [signed])

    def pull(number: int) -> Any:
        request = PullMessagesRequest(node=Node(node_id=number))
        path, name = "/v1/fleet/pull-messages", "/flwr.proto.Fleet/PullMessages"
        return client._unary_unary(path=path, rpc_method=name, request=request, response_type=type(request))

    with pytest.raises(httpx.HTTPStatusError, match="401"):
        pull(numbers[1])
    client.close()


def the_submitter_sends_another_app(deployment: Deployment, tmp_path: Path) -> None:
    """Somebody on the server's machine may start runs, and only of the app that the server has."""
    run = deployment.run({}, another_app(tmp_path / "submitter", deployment.app))
    assert deployment.finish(run) == "finished:failed"
    assert "the run's app has the hash" in deployment.log("server")
    assert not list(tmp_path.rglob("stranger-was-here*"))


def the_server_itself_sends_another_app(deployment: Deployment, tmp_path: Path) -> None:
    """Somebody with the server's secret sends messages of another app to the nodes, which neither import nor answer it."""
    deployment.kill("server")
    deployment.run({}, another_app(tmp_path / "taken", deployment.app))
    authority = (deployment.folder / "ca.crt").read_bytes()
    runtime = Runtime(f"localhost:{deployment.port}", (deployment.folder / "secret").read_bytes(), authority)
    token, _ = next(runtime.tasks(TaskType.SERVER_APP))
    with runtime.work(token) as client:
        started = client.PullTaskInput(PullTaskInputRequest())
        TaskIdentity.task_id, TaskIdentity.run_id, TaskIdentity.node_id = (
            started.task_id,
            started.run.run_id,
            started.context.node_id,
        )
        grid = HttpGrid(runtime.address, False, authority, token=token)
        grid.set_run(run_from_proto(started.run))
        nodes = list(grid.get_node_ids())
        asked = list(grid.push_messages([Message(RecordDict(), node, "query.begin", ttl=60.0) for node in nodes]))
        replies = until(60, lambda: (found := list(grid.pull_messages(asked))) and found)
        assert all(reply.has_error() and "the run's app has the hash" in reply.error.reason for reply in replies)
        finish(client, "taken")
        grid.close()
    with pytest.raises(ValueError, match="refuses this process"):
        next(Runtime(runtime.address, b"guessed", authority).tasks(TaskType.SERVER_APP))
    assert not list(tmp_path.rglob("stranger-was-here*"))
    deployment.start_server()


@of("flcog.callbacks.SCAFFOLD", rounds=6)
def test_every_kind_of_process_may_be_killed(deployment: Deployment, tmp_path: Path) -> None:
    root = tmp_path / "runs"
    deployment.start_nodes()
    run = deployment.run({"root": str(root)})
    until(120, lambda: len(rows(root)) == 1)
    deployment.kill("node1")  # its reply is lost
    deployment.start_node(1, deployment.app / "node.yaml")
    until(120, lambda: len(rows(root)) == 2)
    deployment.kill("supernode1")
    until(240, lambda: rejoined(deployment))
    until(240, lambda: len(rows(root)) == 3)
    deployment.kill("superlink")
    time.sleep(2)
    deployment.start_superlink()
    until(240, lambda: len(rows(root)) == 4)
    deployment.kill("server")
    deployment.start_server()
    assert deployment.finish(run) == "finished:failed", deployment.log("server")
    run = deployment.run({"root": str(root), "ckpt_path": "last"})
    assert deployment.finish(run) == "finished:completed", deployment.log("server")
    assert history(root) == simulated(tmp_path / "simulated", config("flcog.callbacks.SCAFFOLD", rounds=6))


def rejoined(deployment: Deployment) -> bool:
    """Start the SuperNode again. Returns whether the SuperLink accepts it, which takes it a minute, until it misses a heartbeat."""
    deployment.start_supernode(1, name="supernode1")
    before = deployment.log("supernode1").count("SuperNode ID")
    until(
        90,
        lambda: (
            deployment.log("supernode1").count("SuperNode ID") > before or deployment.processes["supernode1"].poll() is not None
        ),
    )
    return deployment.processes["supernode1"].poll() is None


@of("flcog.callbacks.SCAFFOLD", rounds=4, on_bad_update="drop")
def test_late_and_full_nodes_drop_out(deployment: Deployment, tmp_path: Path) -> None:
    """Node 1 is stopped in one round, and node 2 cannot write its states, like a node with a full disk."""
    deployment.start_nodes()
    run = deployment.run({"root": str(tmp_path / "runs"), "timeout": 45.0, "min_clients": 1})
    until(240, lambda: len(rows(tmp_path / "runs")) == 1)
    os.killpg(deployment.processes["node1"].pid, signal.SIGSTOP)
    full = str(deployment.processes["node2"].pid)
    subprocess.run(["prlimit", "--pid", full, "--fsize=1024:unlimited"], check=True)
    until(240, lambda: len(rows(tmp_path / "runs")) == 2)
    os.killpg(deployment.processes["node1"].pid, signal.SIGCONT)
    subprocess.run(["prlimit", "--pid", full, "--fsize=unlimited"], check=True)
    assert deployment.finish(run) == "finished:completed", deployment.log("server")
    lost = [float(row.get("clients/lost") or 0) for row in rows(tmp_path / "runs")]
    assert lost[0] == lost[3] == 0 and max(lost) == 4 and "File too large" in deployment.log("server"), lost
