"""Values that a method makes and never reads: random numbers, broadcasts, client states and messages."""

from collections.abc import Iterator
from functools import partial
from typing import Any

from torch.utils import _pytree as pytree

from flcog.advice.finding import Finding
from flcog.advice.trial import Trial, judged
from flcog.method import OBSERVER_HOOKS, Context, Method, Stage, first_contact
from flcog.server.engine import Engine

SOURCES = {
    "draw": ("draws", "draws random numbers"),
    "broadcast": ("server", "sends clients a part of the server's state"),
    "init_client": ("state", "stores a state for every client"),
}
"""For each hook the field of ``ctx`` that holds its values, and a verb phrase for messages."""


def unread_values(engine: Engine, trial: Trial) -> Iterator[Finding]:
    """One finding per value that no hook of its method reads. Methods that also observe may read more, and are not judged."""
    for method in engine.methods:
        if isinstance(method, Stage) or any(map(method.overrides, OBSERVER_HOOKS)):
            continue
        yield from _unread_fields(method, trial)
        yield from _unread_messages(method, trial)


def _unread_fields(method: Method, trial: Trial) -> Iterator[Finding]:
    made = [hook for hook in SOURCES if method.overrides(hook) and judged(partial(_made, method, hook, trial), bool)]
    if not made:
        return
    try:
        read = _fields_read(method, trial)
    except Exception:  # a hook that cannot be tried may read anything
        return
    for hook in made:
        field, does = SOURCES[hook]
        if field not in read:
            yield Finding(method.name, hook, f"{does} that no hook reads as ctx.{field}", f"remove {hook}, or read ctx.{field}")


def _unread_messages(method: Method, trial: Trial) -> Iterator[Finding]:
    contact = method.overrides("init_client") and judged(
        lambda: [first_contact(method, trial.server.params, trial.server.buffers, trial.view).message],
        lambda message: message is not None,
    )
    if contact and not method.overrides("weights"):
        consequence, fix = "returns a message that only the hook weights can read", "return the state alone, or define weights"
        yield Finding(method.name, "init_client", consequence, fix)
    sends = method.overrides("finish_client") and judged(
        lambda: [trial.upload(method, trial.context(method), trial.numbers(1))], lambda upload: bool(upload.mean or upload.sum)
    )
    if sends and not method.overrides("server_step"):
        consequence, fix = "sends messages that only the hook server_step can read", "define server_step, or send no messages"
        yield Finding(method.name, "finish_client", consequence, fix)


def _made(method: Method, hook: str, trial: Trial) -> list[list[Any]]:
    """The tensors and numbers that a hook makes for the context."""
    return [pytree.tree_leaves(getattr(trial.context(method), SOURCES[hook][0]))]


def _fields_read(method: Method, trial: Trial) -> set[str]:
    """The fields of the context that the method's hooks read. An error of a hook is raised."""
    read: set[str] = set()

    class WatchedContext(Context):
        def __getattribute__(self, name: str) -> Any:
            if name in Context._fields:
                read.add(name)
            return super().__getattribute__(name)

    for call in trial.client_hooks(method, trial.context(method, WatchedContext)).values():
        call()
    return read
