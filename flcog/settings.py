"""The settings of a training, with checks: rounds, clients per round, local steps, executor, precision, seed."""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any, Literal

import torch

from flcog.core import checks
from flcog.core.precision import DTYPES, default_dtype, repeatable

Compile = bool | Literal["graphs"]
"""Whether local steps are compiled, or captured as CUDA graphs."""

COMPILES_SINCE = (2, 11)
"""The oldest version of torch that compiles local steps without changing their results."""


def can_compile() -> bool:
    """Whether the installed torch is new enough for ``compile``."""
    return tuple(map(int, torch.__version__.split(".")[:2])) >= COMPILES_SINCE


FREE = {"free": True}
"""A setting that a resumed run may change."""


@dataclass(frozen=True)
class Settings:
    """The arguments of :class:`flcog.FederatedTrainer` that affect rounds. The trainer's docstring describes them.

    A resumed run has the same settings, except those that are ``FREE``, and the seed, which is compared apart from them.
    """

    rounds: int = field(metadata=FREE)
    clients_per_round: int | float
    local_steps: int | None
    local_epochs: float | None
    executor: Literal["auto", "loop", "vmap", "vmap-patches", "lightning"] = field(metadata=FREE)
    chunk_size: int | None = field(metadata=FREE)
    compile: Compile = field(metadata=FREE)
    eval_every: int
    precision: str
    tf32: bool | None
    seed: int = field(metadata=FREE)
    on_bad_update: Literal["raise", "drop"]
    keep_optimizers: bool
    limit_train_batches: int | float
    limit_val_batches: int | float
    limit_test_batches: int | float
    limit_predict_batches: int | float = field(metadata=FREE)
    overfit_batches: int | float
    accumulate_grad_batches: int
    inference_mode: bool = field(metadata=FREE)

    def __post_init__(self) -> None:
        if (self.local_steps is None) == (self.local_epochs is None):
            raise ValueError("set one of trainer.local_steps and trainer.local_epochs, not both")
        for name in ("rounds", "local_steps", "chunk_size", "accumulate_grad_batches"):
            checks.whole(None, 1, **{name: getattr(self, name)})
        checks.whole(None, 0, eval_every=self.eval_every)
        checks.positive_and_finite(None, local_epochs=self.local_epochs)
        checks.one_of(None, ("auto", "loop", "vmap", "vmap-patches", "lightning"), executor=self.executor)
        if self.compile not in (False, True, "graphs"):
            raise ValueError(f"compile must be false, true or graphs; got {self.compile!r}")
        if self.compile and not can_compile():
            raise ValueError(
                f"compile={self.compile} needs torch {'.'.join(map(str, COMPILES_SINCE))} or newer; this is torch {torch.__version__}: set "
                "trainer.compile to false, or install a newer torch"
            )
        checks.one_of(None, ("raise", "drop"), on_bad_update=self.on_bad_update)
        if not (self.tf32 is None or isinstance(self.tf32, bool)):  # torch refuses 1, which is equal to True
            raise ValueError(f"tf32 must be true, false or null; got {self.tf32!r}")
        clients = "null" if self.clients_per_round is None else self.clients_per_round
        checks.count_or_share(None, "(0, 1]", hint="a count has no decimal point", clients_per_round=clients)
        checks.seed(self, "seed")
        for name in (
            "limit_train_batches",
            "limit_val_batches",
            "limit_test_batches",
            "limit_predict_batches",
            "overfit_batches",
        ):
            checks.count_or_share(None, "[0, 1]", **{name: getattr(self, name)})

    @contextmanager
    def in_force(self) -> Iterator[None]:
        """Set torch's precision of new tensors and products to the run's, and make its computations repeatable."""
        with default_dtype(DTYPES.get(self.precision, torch.float32)), repeatable(self.tf32):
            yield

    def autocast(self, device: torch.device) -> AbstractContextManager[Any]:
        """The autocast context of forward passes. Lightning's own context treats every accelerator as CUDA."""
        if not self.precision.endswith("mixed"):
            return nullcontext()
        return torch.autocast(device.type, dtype=torch.bfloat16 if self.precision == "bf16-mixed" else torch.float16)

    def cohort_size(self, num_clients: int, left: int | None = None) -> int:
        """The number of clients in a round.

        Args:
            num_clients: the number of clients of the split. A fraction refers to this number.
            left: the number of clients after methods have merged some of them; None if no method has merged clients.
        """
        size = self.clients_per_round
        if isinstance(size, float):
            size = max(1, round(size * num_clients))
        if size > num_clients:
            raise ValueError(
                f"clients_per_round={self.clients_per_round} but the federation has {num_clients} clients: "
                "lower it, or raise data.num_clients"
            )
        return size if left is None else min(size, left)

    @property
    def limits(self) -> dict[str, int | float]:
        """The limits on the batches of each central set, and of predictions."""
        val = self.overfit_batches or self.limit_val_batches
        return {"val": val, "test": self.limit_test_batches, "predict": self.limit_predict_batches}

    def evaluates(self, done: int) -> bool:
        """Whether the global model is evaluated after this number of rounds."""
        return self.eval_every > 0 and (done % self.eval_every == 0 or done == self.rounds)
