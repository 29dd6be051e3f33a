"""Find NaN and infinite values in clients' updates and in the new model."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from flcog.client.messages import ClientReply
from flcog.core.types import Params
from flcog.functional.own_steps import LOGGED
from flcog.wire.envelope import Envelope, floats, is_sound, suspects


class BadUpdate(ValueError):
    """A NaN or an infinity in a client's envelope, or in the new model."""


def bad_clients(reply: ClientReply, changes: Params, norms: Tensor) -> dict[int, str]:
    """The clients with a NaN or infinite value, each with the place of the value. ``changes`` are those of their buffers."""
    envelope, count = reply.envelope, len(reply.clients)
    measured = {name: value for name, value in envelope.measured.items() if not name.startswith(LOGGED)}
    rest = [measured, changes, envelope.mean, envelope.sum]
    suspected = (~torch.isfinite(norms) | suspects(rest, count).to(norms.device)).nonzero().flatten().tolist()
    return {reply.clients[k]: where for k in suspected if (where := _where(envelope._replace(buffers=changes), k)) is not None}


def bad_update(bad: Mapping[int, str], round: int) -> BadUpdate:
    """The error about the first of these clients, which :func:`bad_clients` found."""
    client, where = next(iter(bad.items()))
    return BadUpdate(
        f"the update of client {client} in round {round + 1} is NaN or infinite{where}: lower the learning rate or clip "
        "gradients (`flcog methods` lists methods that do), or set trainer.on_bad_update=drop to go on without such clients"
    )


def check_new_model(params: Params, methods: Sequence[str], round: int) -> None:
    """Raise an error if the server steps have turned finite updates of clients into a model with a NaN or an infinity.

    Otherwise the run would end with such a model, or the next round would blame a client for it.
    """
    if all(bool(torch.isfinite(value).all()) for value in floats(params)):
        return
    raise BadUpdate(
        f"the model is NaN or infinite after the server's step of {' and '.join(methods)} in round {round + 1}, though the clients' "
        "updates are finite: lower the server's learning rate or its other step sizes"
    )


def _where(envelope: Envelope, k: int) -> str | None:
    """The place of one client's first bad value; None if all values are finite and only a norm or a sum overflowed."""
    parts: list[tuple[str, Any]] = [
        ("", [envelope.delta, envelope.measured["loss"]]),
        (" (in the model's buffers)", envelope.buffers),
    ]
    for name in envelope.mean:
        parts.append((f" (in what {name} sends)", [envelope.mean[name], envelope.sum[name]]))
    return next((where for where, tree in parts if not is_sound(tree, k)), None)
