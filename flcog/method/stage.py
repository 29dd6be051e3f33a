"""A stage: a method that changes *how* clients send their envelopes, for example in fewer bytes."""

from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from flcog.core.types import Slot
from flcog.method.context import Context, GlobalModel
from flcog.method.method import Method
from flcog.method.returned import check_parts, check_type
from flcog.wire.envelope import Envelope

Kind = Literal["alter", "smooth", "bound", "encode"]
ORDER: tuple[Kind, ...] = ("alter", "smooth", "bound", "encode")
"""The order of stages, independent of the list of methods. Attackers skip *smooth* and *bound*."""


@dataclass(frozen=True, kw_only=True)
class Stage(Method, protocol=True):
    """Changes the envelope of every client, with the changes of the model and the messages of all methods in it.

    Like any method, a stage declares its state in ``init_client`` and its random numbers in ``draw``. Its ``server_step`` runs before
    those of other methods.
    """

    kind: ClassVar[Kind]
    """The purpose of the stage, which fixes its place: *alter* (attacks), *smooth* (momentum over rounds), *bound* (clipping) or
    *encode* (fewer bytes)."""

    @property
    def keeps_residual(self) -> bool:
        """Whether the state of a client is a dict of tensors like those in its envelope, by name, such as the part that was not sent.

        It is empty before the client's first upload; zeros then take the place of missing tensors. Only ``send`` sees the state.
        """
        return False

    def send(self, envelope: Envelope, ctx: Context) -> tuple[Envelope, Slot]:
        """The changed envelope, and the stage's new state. *Chain; pure.*

        ``flcog.wire.envelope.map_fields`` maps each distinct tensor once, and leaves the measurements alone.
        """
        raise NotImplementedError

    def receive(self, envelope: Envelope, fields: Any, received: GlobalModel) -> Envelope:
        """Decode the envelope at the server. *Chain in reverse order; pure.*

        Args:
            envelope: one client's, as ``send`` returned it.
            fields: the shape and type of each tensor before it was encoded, a tree of :class:`flcog.wire.envelope.Field`.
            received: the global model that the client received.
        """
        return envelope


def sent_by(stage: Stage, envelope: Envelope, ctx: Context) -> tuple[Envelope, Slot]:
    """The envelope and the state that a stage returns, which must be both."""
    wanted = "(envelope, state)"
    changed, state = check_parts(stage, "send", stage.send(envelope, ctx), wanted)
    return check_type(stage, "send", changed, Envelope, wanted), state
