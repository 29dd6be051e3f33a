"""Sealed replies: each client multiplies its own upload by its weight and seals it, and the server reads only the sum."""

import secrets
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from flcog.client.messages import PRIVATE, ClientReply, Download
from flcog.core.types import Params
from flcog.method import PrivateSum
from flcog.method.sealed_sum import REFUSED, SealedSum
from flcog.wire.envelope import Envelope, Field, Manifest, changes_of

UNWEIGHTED = ("totals", "norm")
"""Sums whose terms are not multiplied by weights."""


def sealed(
    reply: ClientReply, rule: SealedSum, received: Download, weights: Sequence[float], private: PrivateSum | None = None
) -> ClientReply:
    """The reply with words in the place of the clients' values. Its manifest describes the values."""
    keys = received.keys
    assert keys is not None
    # Masks are made on the CPU, which also has float64.
    envelope, buffers = pytree.tree_map(lambda value: value.cpu(), (reply.envelope, received.buffers))
    terms = _terms(envelope, buffers, torch.tensor(weights, dtype=torch.float64))
    if private is not None:
        buffers_moved = {name: value for name, value in terms["buffers"].items() if value.is_floating_point()}
        terms = {name: terms[name] for name in PRIVATE} | {"buffers": buffers_moved}
    fields = pytree.tree_map(lambda value: Field(tuple(value.shape[1:]), value.dtype), terms)
    words, refused = [], []
    for k, client in enumerate(reply.clients):
        if private is not None:
            own = Envelope(*pytree.tree_map(lambda value, k=k: value[k].double(), [*terms.values()]))
            noise_key = secrets.token_bytes(32) if private.secret else repr((received.seed, received.round, client)).encode()
            numbers = private.whole_numbers(own, received.server[private.name], noise_key).double()
            words.append(rule.seal(rule.step * numbers, client, keys))
            refused.append(0.0)
            continue
        factors = {name: 1.0 if name in UNWEIGHTED else weights[k] for name in terms}
        parts = [value[k].reshape(-1).double() * factors[name] for name in terms for value in pytree.tree_leaves(terms[name])]
        values = torch.cat(parts)
        largest = float(values.abs().max())
        refused.append(0.0 if largest <= rule.limit(len(keys.clients)) else largest)
        words.append(rule.seal(torch.zeros_like(values) if refused[-1] else values, client, keys))
    envelope = Envelope(
        {}, {}, sum={rule.name: torch.stack(words)}, measured={REFUSED: torch.tensor(refused, dtype=torch.float64)}
    )
    sizes = _sizes(terms, rule, words[0].element_size())
    nothing = [0] * len(reply.clients)
    manifest = Manifest(sizes, reply.manifest.plain_sizes, {}, {}, fields)
    return ClientReply(reply.clients, envelope, manifest, nothing, nothing, reply.seconds)


def _terms(envelope: Envelope, received_buffers: Params, weights: Tensor) -> dict[str, Any]:
    """The values whose sums the server needs, by the names of the sums, with a leading client axis."""
    ones, delta = torch.ones_like(weights), envelope.delta
    norms = [value.double().reshape(len(weights), -1).norm(dim=1) for value in delta.values()]
    return {
        "delta": delta,
        "buffers": changes_of(envelope.buffers, received_buffers),
        "means": envelope.mean,
        "totals": envelope.sum,
        "weight": ones,
        "loss": envelope.measured["loss"],
        "norm": torch.stack(norms).norm(dim=0) if norms else torch.zeros_like(ones),
    }


def _sizes(terms: dict[str, Any], rule: SealedSum, word: int) -> dict[str, int]:
    """The bytes of one client's words by sender."""

    def size(*trees: Any) -> int:
        return word * sum(value[0].numel() for value in pytree.tree_leaves(trees))

    senders = {**terms["means"], **terms["totals"]}
    sizes = {name: size(terms["means"].get(name, {}), terms["totals"].get(name, {})) for name in senders}
    own = size(*(terms[name] for name in ("weight", "loss", "norm") if name in terms))
    return {"model": size(terms["delta"], terms["buffers"])} | sizes | {rule.name: own + sizes.get(rule.name, 0)}
