"""A client's first contact with the server, which creates the client's state and sends a message, happens only once."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch
from harness import assert_close, fit, train
from torch import Tensor

from flcog.method import ClientView, Cohort, Context, FirstContact, Method, Params, Upload


@dataclass(frozen=True)
class Introduced(Method):
    """Weighs each client by a number that depends on the first model it received, and keeps this number in the client's state."""

    calls: list[int] = field(default_factory=list)

    def init_client(self, params: Params, buffers: Params, client: ClientView) -> FirstContact:
        self.calls.append(client.id)
        first = sum(value.abs().sum() for value in params.values()) + client.num_samples + float(client.label_counts[0])
        return FirstContact({"first": first.reshape(1)}, float(first))

    def weights(self, weights: Tensor, messages: Sequence[Any], cohort: Cohort) -> Tensor:
        return torch.tensor(messages, dtype=torch.float64)

    def finish_client(self, delta: Params, params: Params, ctx: Context) -> Upload:
        return Upload({name: ctx.state["first"].to(value) * value for name, value in delta.items()}, ctx.state)


@pytest.mark.parametrize("executor", ["loop", "vmap"])
def test_each_client_is_asked_once(executor: str) -> None:
    method = Introduced()
    trainer = train(method, rounds=4, clients_per_round=5, executor=executor)
    assert len(method.calls) == len(set(method.calls)) > 5
    assert trainer.ledger.up["Introduced"] == 4 * len(method.calls)
    for client in method.calls:
        assert trainer.run.clients.get(client)["Introduced"]["first"].item() == trainer.run.server.messages["Introduced"][client]


def test_messages_survive_a_resume(tmp_path: Path) -> None:
    options: dict[str, Any] = {"clients_per_round": 3, "eval_every": 10}
    straight = fit(tmp_path / "straight", Introduced(), rounds=4, **options)
    half = fit(tmp_path / "half", Introduced(), rounds=2, **options)
    checkpoint, method = half.run_dir / "checkpoints/last.ckpt", Introduced()
    rest = fit(tmp_path / "half", method, rounds=4, ckpt_path=str(checkpoint), **options)
    assert_close(rest.run.params, straight.run.params, 0)
    assert rest.run.server.messages == straight.run.server.messages and rest.run.ledger.up == straight.run.ledger.up
