"""Takes tasks from a SuperLink or a SuperNode on this machine, in place of the processes that Flower would start for an app's code.

With ``--isolation process``, Flower hands tasks to any process that knows a secret. ``flcog server`` and ``flcog node`` are such processes.
They run the code that is installed on their machine with their own copy of the app, and never import an app that Flower delivers.
"""

import hashlib
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from queue import Queue
from typing import Any

import httpx
from flwr.app import Context, Error, Message
from flwr.cli.build import build_fab_from_disk
from flwr.clientapp import ClientApp
from flwr.common.config import get_fused_config_from_dir
from flwr.common.constant import ErrorCode, SubStatus
from flwr.common.serde import run_from_proto
from flwr.proto.message_pb2 import PullObjectRequest, PullObjectResponse
from flwr.proto.runtime_pb2 import AcquireTaskRequest, PullTaskInputRequest, PushTaskOutputRequest, SendTaskHeartbeatRequest
from flwr.serverapp import Grid, ServerApp
from flwr.supercore.constant import TaskType
from flwr.supercore.heartbeat import HeartbeatSender
from flwr.supercore.interceptors import (
    RuntimeTokenHttpInterceptor,
    RuntimeVersionHttpInterceptor,
    SuperExecAuthHttpInterceptor,
)
from flwr.supercore.logger import flush_logs, mirror_output_to_queue, start_log_uploader, stop_log_uploader
from flwr.supercore.run import RunNotRunningException
from flwr.supercore.runtime import RuntimeHttpClient
from flwr.supercore.task_identity import TaskIdentity
from flwr.superlink.grid import HttpGrid
from flwr.supernode.runtime.run_clientapp import pull_task_input, push_message

from flcog.deploy.post import REQUEST, from_record, reply_to

POLL_SECONDS = 0.1
"""Seconds between two looks for a task."""

RETRY_SECONDS = 2.0
"""Seconds before a SuperLink or a SuperNode that does not answer is asked again."""

ACQUIRE = "/flwr.proto.Runtime/AcquireTask"


class Client(RuntimeHttpClient):
    """The client for one task.

    A SuperNode announces a message before it has the content. If the run ends at that moment, the content never comes, and Flower would
    wait for it without end. After ``patience`` seconds without any part of it, the message counts as lost.
    """

    patience = 120.0
    heard: float | None = None

    def PullObject(self, request: PullObjectRequest) -> PullObjectResponse:
        found, now = super().PullObject(request), time.monotonic()
        if found.object_available or self.heard is None:
            self.heard = now
        elif now - self.heard > self.patience:
            raise TimeoutError(f"nothing of it arrived for {self.patience:g} s")
        return found


@dataclass(frozen=True)
class Runtime:
    """The interface of a SuperLink or a SuperNode to the processes that work for it.

    ``secret`` is the content of the file that it was started with (``--superexec-auth-secret-file``). ``certificates`` are those of the
    authority that signed its certificate; None for a connection without TLS.
    """

    address: str
    secret: bytes
    certificates: bytes | None = None

    def tasks(self, kind: TaskType) -> Iterator[tuple[str, str]]:
        """Wait for tasks without end. Yields the token of each task, and the hash of its app."""
        client, silent = self._client(SuperExecAuthHttpInterceptor(master_secret=self.secret, protected_methods={ACQUIRE})), False
        while True:
            try:
                found = client.AcquireTask(AcquireTaskRequest(supported_task_types=[kind]))
            except httpx.TransportError as error:
                if not silent:
                    _tell(f"nothing answers at {self.address} ({error}): waiting for it")
                silent = True
                time.sleep(RETRY_SECONDS)
                continue
            except httpx.HTTPStatusError as error:
                raise ValueError(
                    f"{self.address} refuses this process ({error.response.status_code}): start it with --isolation process and "
                    "--superexec-auth-secret-file, and give the same file as --secret"
                ) from None
            silent = False
            if found.token:
                yield found.token, found.task.fab_hash
            else:
                time.sleep(POLL_SECONDS)

    @contextmanager
    def work(self, token: str) -> Iterator[RuntimeHttpClient]:
        """A client for a task. The task counts as lost if this process dies."""
        client = self._client(RuntimeTokenHttpInterceptor(token))

        def is_alive() -> bool:
            try:
                client.SendTaskHeartbeat(SendTaskHeartbeatRequest())
            except httpx.TransportError:
                return False  # Flower tries again sooner
            except httpx.HTTPStatusError:
                pass  # the task was stopped
            return True

        heartbeat = HeartbeatSender(is_alive)
        heartbeat.start()
        try:
            yield client
        finally:
            heartbeat.stop()
            client.close()

    def _client(self, own: Any) -> RuntimeHttpClient:
        version = RuntimeVersionHttpInterceptor(component_name="flcog")
        return Client.from_server_address(self.address, self.certificates is None, self.certificates, [version, own])


def finish(client: RuntimeHttpClient, failure: str = "") -> None:
    """End a task, which has failed if there is a reason."""
    status = SubStatus.FAILED if failure else SubStatus.COMPLETED
    client.PushTaskOutput(PushTaskOutputRequest(sub_status=status, details=failure))


def hash_of(app: Path) -> str:
    """The hash that Flower gives to an app."""
    return hashlib.sha256(build_fab_from_disk(app)).hexdigest()


def refusal_of(app: Path, pinned: str, asked: str) -> str:
    """The reason to refuse a run of another app; empty for a run of this one."""
    if asked == pinned:
        return ""
    return (
        f"the run's app has the hash {asked[:16]}, and {app} has {pinned[:16]}: copy the same folder to the server and to all nodes, "
        "install the same version of Flower, and start flcog server and flcog node again"
    )


def answer_messages(runtime: Runtime, app: Path, answer: Callable[[Mapping[str, bytes]], bytes]) -> None:
    """Answer the messages that a SuperNode receives, without end."""
    pinned = hash_of(app)
    for token, asked in runtime.tasks(TaskType.CLIENT_APP):
        with runtime.work(token) as client:
            try:
                message, context, _, _ = pull_task_input(client)
                if refused := refusal_of(app, pinned, asked):
                    _tell(refused)
                    reply = Message(Error(ErrorCode.INVALID_FAB, refused), reply_to=message)
                else:
                    began = time.monotonic()
                    answered = answer(from_record(message.content.get(REQUEST)))
                    seconds = time.monotonic() - began
                    reply = reply_to(message, answered, seconds)
                    _tell(f"round {message.metadata.group_id}: answered {message.metadata.message_type} in {seconds:.1f} s")
                push_message(client, reply, context)
                finish(client)
            except Exception as error:  # the server asks again, or does without this node
                _tell(f"a message could not be answered: {type(error).__name__}: {error}")


def _tell(text: str) -> None:
    with suppress(OSError):  # the disk with the output may be full
        print(f"{time.strftime('%H:%M:%S')} {text}", flush=True)


def train_runs(runtime: Runtime, app: Path, failure_of: Callable[[Grid, Mapping[str, Any]], str]) -> None:
    """Train the runs of an app that somebody submits to a SuperLink, one after another and without end.

    ``failure_of`` trains a run with its options, and returns the reason if it fails.
    """
    pinned, output = hash_of(app), Queue[str | None]()
    mirror_output_to_queue(output)  # for flwr log
    for token, asked in runtime.tasks(TaskType.SERVER_APP):
        with runtime.work(token) as client:
            started = client.PullTaskInput(PullTaskInputRequest())
            run = run_from_proto(started.run)
            TaskIdentity.task_id, TaskIdentity.run_id, TaskIdentity.node_id = started.task_id, run.run_id, started.context.node_id
            upload = start_log_uploader(output, 0, run.run_id, client)
            if failure := refusal_of(app, pinned, asked):
                _tell(failure)
            else:
                grid = HttpGrid(runtime.address, runtime.certificates is None, runtime.certificates, token=token)
                grid.set_run(run)
                try:
                    failure = failure_of(grid, get_fused_config_from_dir(app, run.override_config))
                except RunNotRunningException:
                    failure = "the run was stopped"
                finally:
                    grid.close()
            flush_logs(output)
            stop_log_uploader(output, upload)
            with suppress(httpx.HTTPError):  # somebody has stopped the run
                finish(client, failure)


UNINVITED = "flcog runs no code that Flower delivers: start flower-superlink and flower-supernode with --isolation process"

# The components that the app's description must name. They tell of a wrong start: flcog server and flcog node do the work.
server_app = ServerApp()
client_app = ClientApp()


@server_app.main()
def _server(grid: Any, context: Context) -> None:
    raise ValueError(UNINVITED)


@client_app.query()
@client_app.train()
@client_app.evaluate()
def _client(message: Message, context: Context) -> Message:
    raise ValueError(UNINVITED)
