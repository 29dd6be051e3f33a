"""EncodedBroadcast: the server sends its model through a codec."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import count
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from flcog.callbacks.codecs.codec import Codec, Noise
from flcog.callbacks.codecs.quantize import Quantize
from flcog.callbacks.parts.noise import draw_key
from flcog.core.types import Slot
from flcog.method import Broadcast, BroadcastStage, SentBroadcast
from flcog.wire.envelope import Field, message_bytes


@dataclass(frozen=True)
class EncodedBroadcast(BroadcastStage):
    """Sends clients the change of the model since the last broadcast through a codec, and lets them train from the decoded model.

    With x the server's model, y the decoded one, which server and clients know, and C the codec::

        y <- y + C(x - y),     clients train from y,     x <- x + sum_k p_k u_k

    If the codec has ``error_feedback``, the server keeps x, so that x - y contains the errors of all earlier broadcasts. Otherwise the
    server continues from y, and the errors are lost. The change of BatchNorm's statistics and the states that methods send, such as
    SCAFFOLD's control variates, pass through the codec in the same way, always with their earlier errors. A tensor's first broadcast,
    whole numbers and tiny tensors are sent unchanged.

    A client that has missed rounds downloads their messages, too, or y itself if that is shorter; so does a client in its first round.
    The codec therefore saves most with sparse messages, or with clients that take part often. It is independent of a codec for uploads.

    Tang et al., DoubleSqueeze, ICML 2019, https://arxiv.org/abs/1905.05957 (error feedback on both sides); Sattler et al., Robust and
    Communication-Efficient Federated Learning from Non-IID Data, 2019, https://arxiv.org/abs/1903.02891 (clients that have missed rounds).

    Args:
        codec: of the broadcast.
    """

    codec: Codec = field(default_factory=Quantize)

    excludes = {
        "LocalParts": "its clients receive the shared parts of the model alone, and the broadcast is encoded whole for all clients",
        "OwnDownload": "each of its clients receives something of its own, and the broadcast is encoded once for all clients",
        "ParameterMask": "its clients receive different parts of the model, and the broadcast is encoded once for all clients",
        "PowerOfChoice": "its candidates download the model before the broadcast is encoded",
    }

    @property
    def server_keeps_its_model(self) -> bool:
        return self.codec.error_feedback

    def send_down(
        self, server: Slot, broadcast: Broadcast, clients: Sequence[int], num_clients: int, rng: torch.Generator
    ) -> SentBroadcast:
        known, key, places = dict(server.get("known", {})), draw_key(rng), count()
        senders: dict[str, Any] = {"model": (broadcast.params, broadcast.buffers), **broadcast.server}
        decoded, changed, whole = dict[str, Any](), dict[str, int](), dict[str, int]()
        for sender, tree in senders.items():
            paths, spec = pytree.tree_flatten_with_path(tree)
            values, sizes = [], []
            # Earlier errors of methods' states always remain, so that the codec has to make them smaller.
            codec = self.codec if sender == "model" else replace(self.codec, error_feedback=True)
            for path, value in paths:
                name = sender + pytree.keystr(path)
                new, size = sent(codec, value, known.get(name), Noise(key.to(getattr(value, "device", "cpu")), next(places)))
                if self.codec.encodes(value):
                    known[name] = new
                values.append(new)
                sizes.append(size)
            decoded[sender] = pytree.tree_unflatten(values, spec)
            changed[sender], whole[sender] = sum(sizes), sum(message_bytes(value) for _, value in paths)
        params, buffers = decoded.pop("model")
        last = server.get("last", torch.full((num_clients,), -1))
        sums = extended(server.get("sums", {}), changed)
        downloads = {sender: downloaded(sums[sender], last[list(clients)], size) for sender, size in whole.items()}
        last = last.index_fill(0, torch.tensor(clients, device=last.device), len(sums["model"]) - 1)
        return SentBroadcast(Broadcast(params, buffers, decoded), {"known": known, "last": last, "sums": sums}, downloads)


def sent(codec: Codec, value: Any, known: Tensor | None, noise: Noise) -> tuple[Any, int]:
    """A tensor as clients see it, and the bytes of its message."""
    if known is None or not codec.encodes(value) or known.shape != value.shape:
        return value, message_bytes(value)
    encoded = codec.encode((value - known).reshape(-1), noise)
    change = codec.decode(encoded, Field((value.numel(),), value.dtype))
    return known + change.to(value.dtype).view(value.shape), sum(map(message_bytes, pytree.tree_leaves(encoded)))


def extended(sums: Mapping[str, Tensor], sizes: Mapping[str, int]) -> dict[str, Tensor]:
    """The bytes of all broadcasts up to each of them, by sender, with one more broadcast. Unknown senders had sent nothing before.

    >>> extended({"model": torch.tensor([800, 810])}, {"model": 20, "SCAFFOLD": 8})
    {'model': tensor([800, 810, 830]), 'SCAFFOLD': tensor([0, 0, 8])}
    """
    length = max(map(len, sums.values()), default=0)
    before = {name: torch.zeros(length, dtype=torch.int64) for name in sizes} | {name: each.cpu() for name, each in sums.items()}
    return {name: torch.cat([each, each[-1:].sum(0, keepdim=True) + sizes.get(name, 0)]) for name, each in before.items()}


def downloaded(sums: Tensor, last: Tensor, whole: int) -> list[int]:
    """The bytes that each client downloads: all broadcasts since its last one (-1 for none), or ``whole``, if that is shorter.

    >>> downloaded(torch.tensor([800, 810, 830, 850]), torch.tensor([2, 1, -1]), whole=800)
    [20, 40, 800]
    """
    last = last.cpu()
    sizes: list[int] = (sums[-1] - sums[last.clamp(min=0)]).clamp(max=whole).where(last >= 0, whole).tolist()
    return sizes
