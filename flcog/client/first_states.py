"""The first states of clients, which tell the form that their later states must have."""

from collections.abc import Sequence

from flcog.core.types import Slot
from flcog.method import Method
from flcog.method.returned import check_kept


class FirstStates:
    """The first states of the clients that train for the first time, until their first new states have been compared with them.

    Args:
        methods: whose states they are.
    """

    def __init__(self, methods: Sequence[Method]) -> None:
        self._methods = {method.name: method for method in methods if method.overrides("init_client")}
        self._states: dict[int, dict[str, Slot]] = {}

    def begin(self) -> None:
        """Forget the states of clients that did not train after all."""
        self._states = {}

    def note(self, client: int, method: str, state: Slot) -> None:
        if method in self._methods:
            self._states.setdefault(client, {})[method] = state

    def check(self, client: int, new: dict[str, Slot]) -> None:
        """Refuse new states of a client that do not have the form of its first ones."""
        for name, first in self._states.pop(client, {}).items():
            if name in new:
                method = self._methods[name]
                hooks = [hook for hook in ("wrap_gradient", "after_step", "finish_client") if method.overrides(hook)]
                check_kept(method, ["init_client", *hooks], new[name], first, f" of client {client}")
