"""A private sum: a method that bounds everything that clients send, and adds noise to its sums before anybody reads them."""

from abc import abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

from torch import Tensor

from flcog.core.types import Slot
from flcog.method.context import Context, GlobalModel
from flcog.method.method import Method
from flcog.method.stage import Kind, Stage
from flcog.wire.envelope import Envelope

Normal = Callable[[tuple[int, ...]], Tensor]
"""Draws independent standard normal numbers of some shape, in float64."""


class Training(NamedTuple):
    """The facts that fix the privacy of a training.

    Args:
        num_clients: the number of all clients.
        cohort_size: the number of clients that ``trainer.clients_per_round`` asks for.
        rounds: the number of rounds.
        methods: the run's methods.
    """

    num_clients: int
    cohort_size: int
    rounds: int
    methods: Sequence[Method]


@dataclass(frozen=True, kw_only=True)
class Withholding(Method, protocol=True):
    """Leaves columns out of the metrics, and acts in all rounds."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.start_round or self.stop_round is not None:
            raise ValueError(
                f"{self.name} acts in all rounds, because a round without it would protect nothing; got start_round={self.start_round} "
                f"and stop_round={self.stop_round}: remove them"
            )

    @abstractmethod
    def withholds(self, column: str) -> bool:
        """Whether a column depends on clients' data beyond the values that the method protects."""


@dataclass(frozen=True, kw_only=True)
class PrivateSum(Withholding, Stage, protocol=True):
    """Replaces the sums over a round's clients by noisy sums, which are all that other methods, observers and users see.

    A round has these steps beside those of other stages. The engine adds up u_k a_k for every field of the envelope, and messages
    that are summed without weights as they are; nothing is divided by the weights that happened to arrive::

        pay             the budget, before the cohort is drawn
        select          from the system's entropy if the method is secret, among the clients that do not rest
        bound           at the client, and again at the server after decoding
        shares          a_k, each computed from the client alone
        noisy           the sums with noise; without any client, noise alone

    Beside a :class:`SealedSum`, clients send ``whole_numbers`` with noise of their own. The server reads their sum after it has paid the
    ``price`` of the clients that have arrived, and adds no noise.

    The other methods' server steps follow. A run has at most one private sum, which acts in all rounds.
    """

    kind: ClassVar[Kind] = "bound"

    @property
    def secret(self) -> bool:
        """Whether cohorts and noise are drawn from the operating system's entropy instead of the run's seed."""
        return True

    @abstractmethod
    def check(self, training: Training) -> None:
        """Refuse a training that the guarantee does not cover."""

    @abstractmethod
    def begin(self, state: Slot, training: Training) -> Slot:
        """The state before the next round, with the scale of the noise."""

    @abstractmethod
    def sentence(self, state: Slot, training: Training, round: int) -> str:
        """A sentence for the summary on the guarantee of all rounds and repeated rounds, after this number of complete rounds."""

    @abstractmethod
    def paid(self, state: Slot) -> float:
        """The number of rounds that are paid for, each by its price."""

    @abstractmethod
    def pay(self, state: Slot, rounds: float, repeated: bool = False) -> Slot | None:
        """The state after this number of rounds was paid for in total; None if that exceeds the budget.

        If rounds are ``repeated``, those since the last payment are lost, and the run repeats them with other noise.
        """

    def resting(self, state: Slot) -> Sequence[int]:
        """The clients that the coming round must not select."""
        return ()

    def remember(self, state: Slot, clients: Sequence[int]) -> Slot:
        """The state after a round with these selected clients."""
        return state

    @abstractmethod
    def shares(self, state: Slot, num_samples: Tensor) -> Tensor:
        """The weight a_k of each client in the sums, float64, a function of its own training set's size alone."""

    @abstractmethod
    def bound(self, envelope: Envelope, sent: Slot, received: GlobalModel) -> Envelope:
        """The bounded envelope of one client. *Pure.*"""

    @abstractmethod
    def noisy(self, state: Slot, total: Envelope, arrived: int, draw: Normal) -> tuple[Envelope, Slot]:
        """The sums with noise, and the method's new state. *Plain Python.*

        ``total`` are the sums over the ``arrived`` clients in float64; ``buffers`` are changes.
        """

    @abstractmethod
    def price(self, state: Slot, arrived: int) -> float:
        """The price of a round of a sealed sum in which this number of clients has arrived; 1 for the expected number."""

    @abstractmethod
    def unit(self, sent: Slot, like: Envelope) -> float:
        """The value of the whole number 1 in a sealed sum. Server and clients know it from the broadcast and the envelope's shapes."""

    @abstractmethod
    def whole_numbers(self, envelope: Envelope, sent: Slot, key: bytes) -> Tensor:
        """A client's values as whole numbers, int64 [n], with its part of the noise. *Plain Python.*"""

    @abstractmethod
    def figures(self, state: Slot) -> dict[str, float]:
        """The columns of a round, such as epsilon."""

    def send(self, envelope: Envelope, ctx: Context) -> tuple[Envelope, Slot]:
        return self.bound(envelope, ctx.broadcast, ctx.received), ctx.state
