"""A stage: a method that changes *how* clients' envelopes are sent, whatever they hold."""

from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from flcog.core.types import Slot
from flcog.method.context import Context
from flcog.method.method import Method
from flcog.wire.envelope import Envelope

Kind = Literal["alter", "bound", "encode"]
ORDER: tuple[Kind, ...] = ("alter", "bound", "encode")
"""The order in which stages act, wherever they are listed. Between *alter* and *bound*, the engine masks out what stays at the client."""


@dataclass(frozen=True, kw_only=True)
class Stage(Method, protocol=True):
    """Changes the envelope of every client, with the changes of the model and the messages of all methods in it.

    Its state between rounds and its random numbers are declared as any method's, by ``init_client`` and ``draw``.
    """

    kind: ClassVar[Kind]
    """What the stage does, which fixes its place: *alter* (attacks), *bound* (clipping) or *encode* (fewer bytes)."""

    def send(self, envelope: Envelope, ctx: Context) -> tuple[Envelope, Slot]:
        """The envelope as the next stage gets it, and the stage's new state. *Chain; pure.*

        ``flcog.wire.envelope.map_fields`` maps each distinct tensor once, and leaves the measurements alone.
        """
        raise NotImplementedError

    def receive(self, envelope: Envelope, fields: Any) -> Envelope:
        """The inverse at the server, of stages that encode. *Chain in reverse order; pure.*

        Args:
            envelope: one client's, as ``send`` returned it.
            fields: the shape and type of each tensor before it was encoded, a tree of :class:`flcog.wire.envelope.Field`.
        """
        return envelope
