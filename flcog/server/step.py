"""Run methods' server steps, each of which must return a change of every parameter."""

from collections.abc import Collection, Sequence

from flcog.core.trees import containers_copied
from flcog.core.types import Params, Slot
from flcog.method import Cohort, Messages, Method, ParameterMask
from flcog.method.given import model_stays
from flcog.method.returned import check_kept, check_params, check_parts, check_saved
from flcog.server.state import ServerState


class ServerSteps:
    """Takes the server steps of a round.

    Args:
        methods: all methods of the round in their order.
        server: the state before the steps.
        sent: the parameters whose changes clients sent.
    """

    def __init__(self, methods: Sequence[Method], server: ServerState, sent: Collection[str]) -> None:
        self.methods, self.server, self.sent = methods, server, sent

    def take(self, method: Method, delta: Params, messages: Messages, cohort: Cohort) -> tuple[Params, Slot, Params]:
        """Run one method's server step, and return the changed delta, the method's new state and the new buffers.

        Args:
            method: the method.
            delta: the change of the model after the earlier methods.
            messages: the clients' messages to the method.
            cohort: the clients.
        """
        cohort.method = method.name
        try:
            state = containers_copied(self.server.servers[method.name])
            with model_stays(method, "server_step", self.server.params, cohort.buffers):
                result = method.server_step(state, dict(self.server.params), delta, messages, cohort)
        except KeyError as error:
            if error.args and self._is_unsent(method, error.args[0]):
                raise ValueError(self._unsent(method, error.args[0])) from error
            raise
        wanted = "(change, state), or (change, state, buffers)"
        change, state, *buffers = check_parts(method, "server_step", result, wanted, (2, 3))
        check_params(method, "server_step", change, self.server.params, some=True)
        missing = next((name for name in self.server.params if name not in change), None)
        if missing is not None:
            text = f"{method.name}.server_step must return a change of every parameter; it returned none of {missing}"
            raise ValueError(self._unsent(method, missing) if self._is_unsent(method, missing) else text)
        check_saved(method, "server_step", state)
        if self.server.round == method.start_round:
            check_kept(method, ("init_server", "server_step"), state, self.server.servers[method.name])
        for new in buffers:
            check_params(method, "server_step", new, cohort.buffers, some=True, kind="buffer")
        return change, state, cohort.buffers | dict(*buffers)

    def _is_unsent(self, method: Method, name: object) -> bool:
        return method.individual_uploads and name in self.server.params and name not in self.sent

    def _unsent(self, method: Method, name: str) -> str:
        others = [other for other in self.methods if other is not method]
        keepers = [
            other.name for other in others if isinstance(other, ParameterMask) and name in other.mask(self.server.params, 0)
        ]
        names = " or ".join(keepers or [other.name for other in others if other.overrides("finish_client")])
        return f"{method.name} looks at each client's change of {name}, which clients with {names} do not send: remove one of these methods"
