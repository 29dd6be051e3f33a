"""Aggregation: weighted means and sums of the clients' envelopes, added up as replies arrive."""

import math
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any, Literal, NamedTuple, cast

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from flcog.client.messages import ClientReply
from flcog.core.precision import float64_device, number_dtype, to_float64_device, weighted_sum
from flcog.core.processes import Processes
from flcog.core.types import Params, Slot
from flcog.functional.own_steps import LOGGED
from flcog.method import Aggregator, ClientUpload, Cohort, Method, UploadAggregator, UploadChange, method_of
from flcog.server.kept import KeptUploads
from flcog.wire.envelope import Envelope, changes_of, floats, is_sound, of_client, suspects


class Arrived(NamedTuple):
    """Clients that have sent a reply; of each its loss, NaN unless the server reads it, the bytes that it sent and its seconds."""

    clients: list[int]
    loss: list[float]
    up_bytes: list[int]
    seconds: list[float]

    def of(self, clients: Sequence[int]) -> "Arrived":
        """These clients alone."""
        place = {client: k for k, client in enumerate(self.clients)}
        kept = [place[client] for client in clients]
        sizes = [self.up_bytes[k] for k in kept]
        return Arrived(list(clients), [self.loss[k] for k in kept], sizes, [self.seconds[k] for k in kept])


class Sums(NamedTuple):
    """Sums over the clients of a round, each in the shape of one client's value.

    The changes (``delta``, ``buffers``), the ``means`` of messages and the losses are multiplied by the clients' weights; the ``totals`` of
    messages are not. ``directions`` are the changes of the model divided by their norms.
    """

    delta: Params
    buffers: Params
    means: Mapping[str, Any]
    totals: Mapping[str, Any]
    directions: Params
    weight: Tensor
    loss: Tensor
    clients: Tensor
    norm: Tensor


def add_terms(totals: Any, terms: Any, factors: Tensor | None) -> None:
    """Add each client's terms, times its factor, to the sums."""
    values = pytree.tree_leaves(terms)
    # Read the value once, because reading waits for the accelerator.
    alone = float(factors[0]) if factors is not None and any(len(value) == 1 for value in values) else 1.0
    for total, value in zip(pytree.tree_leaves(totals), values, strict=True):
        if len(value) == 1:
            total.add_(value[0], alpha=alone)
        elif factors is None:
            total.add_(value.sum(0, dtype=torch.float64))
        else:
            # Weights are shares: as integers they would be 0, and as bfloat16 they would have errors of 0.4%.
            value = value.to(number_dtype(value.dtype)) if value.is_floating_point() else value.double()
            total.add_(weighted_sum(factors.to(value.dtype), value))


def dtype_of_mean(value: Tensor) -> torch.dtype:
    """The dtype of a mean or a sum of such values: the run's precision, or the values' if higher; for integers at least float32."""
    return torch.promote_types(value.dtype, torch.get_default_dtype()) if value.is_floating_point() else number_dtype()


def norms_of(delta: Params, num_clients: int) -> Tensor:
    if num_clients == 1:
        return torch.stack(torch._foreach_norm(list(delta.values()))).norm().unsqueeze(0)
    return torch.stack([torch.linalg.vector_norm(v.view(num_clients, -1), dim=1) for v in delta.values()]).norm(dim=0)


class BadUpdate(ValueError):
    """A NaN or an infinity in a client's envelope, or in the new model."""


class Aggregate:
    """The running sums of a round over its clients. Single uploads are kept only if a method asks for them.

    Sums are kept in float64, so that the order of addition, and hence the number of processes, changes at most the last bit of a
    float32. They are kept on the clients' device or, if that has no float64, on the CPU.

    After a client was dropped, the sums are invalid: run the round again without that client.
    """

    def __init__(
        self, methods: Sequence[Method], cohort: Cohort, directions: bool, on_bad_update: str, device: torch.device
    ) -> None:
        self.sums: Sums | None = None
        """None before the first client."""
        self._dtypes: Sums | None = None
        in_matrix = [method for method in methods if isinstance(method, UploadAggregator | UploadChange)]
        self._kept = KeptUploads(methods, device) if in_matrix else None
        self._combined: dict[str, Any] | None = None
        self.individual: dict[str, list[ClientUpload]] = {
            method.name: [] for method in methods if method.individual_uploads and method not in in_matrix
        }
        self.dropped: list[int] = []
        self.up_bytes: dict[str, int] = {"model": 0} | {method.name: 0 for method in methods}
        """Bytes that the clients sent, by sender."""
        self._arrived: list[tuple[Sequence[int], Tensor, list[int], float]] = []
        """The clients of each reply, with their losses, their bytes and the seconds of each."""
        self.plain_bytes = 0
        """The total bytes without any encoding."""
        self._rule = method_of(methods, Aggregator)
        self._values: Any = None
        """The values of the aggregation rule that replaces the weighted mean, if there is one."""
        self._logged: dict[str, list[tuple[float, Tensor]]] = {}
        """By column the weights and values of the clients whose module has logged it."""
        self._weights = dict(zip(cohort.clients, cohort.weights.tolist(), strict=True))
        self._directions, self._on_bad_update, self._device = directions, on_bad_update, device

    def add(self, reply: ClientReply, received_buffers: Params, round: int) -> None:
        """Add some clients, whose envelopes are decoded, if their envelopes and states are finite."""
        envelope, loss = reply.envelope, reply.envelope.measured["loss"]
        norms = norms_of(envelope.delta, len(reply.clients)) if envelope.delta else torch.zeros_like(loss)
        changes = changes_of(envelope.buffers, received_buffers)
        bad = bad_clients(reply, changes, norms)
        if bad and self._on_bad_update == "raise":
            client, where = next(iter(bad.items()))
            raise BadUpdate(
                f"the update of client {client} in round {round + 1} is NaN or infinite{where}: lower the learning rate or clip "
                "gradients (`flcog methods` lists methods that do), or set trainer.on_bad_update=drop to go on without such clients"
            )
        self.dropped += bad
        if self.dropped:
            return
        if not torch.isfinite(norms).all():  # squares overflow in float32 from 1e19 on
            norms = norms_of(
                {name: to_float64_device(value).double() for name, value in envelope.delta.items()}, len(reply.clients)
            )
        weights = torch.tensor(
            [self._weights[client] for client in reply.clients], dtype=torch.float64, device=float64_device(self._device)
        )
        self._add_sums(envelope, changes, weights, norms)
        values = {"delta": envelope.delta, "buffers": changes}
        if self._kept is not None:
            self._kept.add(reply.clients, values | {"mean": envelope.mean, "sum": envelope.sum})
        if self._rule is not None:
            if self._values is None:
                self._values = self._rule.init(pytree.tree_map(lambda value: value[0], values))
            self._values = self._rule.add(self._values, values, weights)
        for name, uploads in self.individual.items():
            uploads += self._uploads(reply, name)
        for name, logged in envelope.measured.items():
            if name.startswith(LOGGED):
                rows = zip(weights.tolist(), logged, strict=True)
                self._logged.setdefault(name.removeprefix(LOGGED), []).extend(rows)
        self.count_bytes(reply)

    def _add_sums(self, envelope: Envelope, changes: Params, weights: Tensor, norms: Tensor) -> None:
        """Add the fields that no other rule combines."""
        added, kept = self._rule is None and self._kept is None, self._kept is not None
        terms = Sums(
            delta=envelope.delta if added else {},
            buffers=changes if added else {},
            means={} if kept else envelope.mean,
            totals={} if kept else envelope.sum,
            directions=envelope.delta if self._directions and added else {},
            weight=torch.ones_like(weights),
            loss=envelope.measured["loss"],
            clients=torch.ones_like(weights),
            norm=norms,
        )
        terms = pytree.tree_map(lambda term: term.to(weights.device), terms)  # methods may send numbers on the CPU
        if self.sums is None or self._dtypes is None:
            zeros = pytree.tree_map(lambda t: torch.zeros(t.shape[1:], dtype=torch.float64, device=t.device), terms)
            self.sums, self._dtypes = zeros, pytree.tree_map(dtype_of_mean, terms)
        lengths = 1 / terms.norm.double().clamp(min=1e-30)
        factors = Sums(weights, weights, weights, None, lengths, weights, weights, None, None)  # type: ignore[arg-type]
        for total, term, factor in zip(self.sums, terms, factors, strict=True):
            add_terms(total, term, cast(Tensor | None, factor))

    def count_bytes(self, reply: ClientReply) -> None:
        """Count the bytes that clients have sent."""
        count, own = len(reply.clients), sum(reply.manifest.sizes.values())
        losses = reply.envelope.measured.get("loss", torch.full((count,), math.nan))
        self._arrived.append((reply.clients, losses, [own - masked for masked in reply.masked_bytes], reply.seconds))
        for sender, size in reply.manifest.sizes.items():
            self.up_bytes[sender] = self.up_bytes.get(sender, 0) + size * count
        self.up_bytes["model"] -= sum(reply.masked_bytes)
        self.plain_bytes += sum(reply.manifest.plain_sizes.values()) * count - sum(reply.masked_plain_bytes)

    def _uploads(self, reply: ClientReply, method: str) -> list[ClientUpload]:
        delta, buffers, means, totals, _ = reply.envelope
        parts = (delta, buffers, means.get(method, {}), totals.get(method, {}))
        return [
            ClientUpload(client, self._weights[client], *(of_client(tree, k) for tree in parts))
            for k, client in enumerate(reply.clients)
        ]

    def reduce(self, processes: Processes, somebody_idle: bool, logs: bool = False) -> None:
        """Add up the sums of all processes, which send them as one vector.

        A process without clients does not know the shapes of the sums (``somebody_idle``).
        """
        if processes.count == 1:
            return
        if self.somebody_dropped(processes):
            return
        if somebody_idle:
            self._learn_shapes(processes)
        if self.sums is None:
            return
        leaves, spec = pytree.tree_flatten(self.sums)
        vector = processes.total(torch.cat([leaf.reshape(-1) for leaf in leaves]))
        parts = vector.split([leaf.numel() for leaf in leaves])
        self.sums = pytree.tree_unflatten([p.view(leaf.shape) for p, leaf in zip(parts, leaves, strict=True)], spec)
        self.total_bytes(processes)
        if logs:
            gathered_logs = processes.gather({name: [(w, v.cpu()) for w, v in rows] for name, rows in self._logged.items()})
            names = dict.fromkeys(name for part in gathered_logs for name in part)
            self._logged = {name: [row for part in gathered_logs for row in part.get(name, [])] for name in names}
        if self._kept is not None:
            self._kept.gather(processes)
        if self._rule is not None:
            self._values = self._rule.merge([values for values in processes.gather(self._values) if values is not None])
        if self.individual:
            gathered = processes.gather(self.individual)
            self.individual = {name: [upload for part in gathered for upload in part[name]] for name in self.individual}

    def somebody_dropped(self, processes: Processes) -> bool:
        """Whether any process has dropped a client. All processes learn of all dropped clients."""
        if self._on_bad_update == "drop" and processes.count > 1:
            bad = torch.tensor([int(client in self.dropped) for client in self._weights], device=processes.device)
            self.dropped = [client for client, times in zip(self._weights, processes.total(bad), strict=True) if times]
        return bool(self.dropped)

    @cached_property
    def arrived(self) -> Arrived:
        """The clients that have sent replies, once all have."""
        found = Arrived([], [], [], [])
        for clients, _, sizes, seconds in self._arrived:
            found.clients.extend(clients)
            found.up_bytes.extend(sizes)
            found.seconds.extend([seconds] * len(clients))
        losses = torch.cat([losses for _, losses, *_ in self._arrived]).tolist() if self._arrived else []  # from the device once
        return found._replace(loss=losses)

    def total_bytes(self, processes: Processes) -> None:
        """Add up the bytes of all processes' clients, and share what is known of each client."""
        place = {client: k for k, client in enumerate(self._weights)}
        # A client has trained in one process, so that the sum of its numbers' bits over all processes is these bits.
        own = torch.zeros(3, len(place), dtype=torch.float64)
        own[:, [place[client] for client in self.arrived.clients]] = torch.tensor(self.arrived[1:], dtype=torch.float64)
        counts = torch.tensor([*self.up_bytes.values(), self.plain_bytes], dtype=torch.int64)
        total = processes.total(torch.cat([own.flatten().view(torch.int64), counts]).to(processes.device)).cpu()
        losses, sizes, seconds = total[: own.numel()].view(torch.float64).view(own.shape).tolist()
        self.arrived = Arrived(list(place), losses, list(map(int, sizes)), seconds)
        *sizes, self.plain_bytes = total[own.numel() :].tolist()
        self.up_bytes = dict(zip(self.up_bytes, sizes, strict=True))

    def _learn_shapes(self, processes: Processes) -> None:
        """In a process without clients, get the shapes of the sums from another process, and fill the sums with zeros."""
        shapes = None if self.sums is None else pytree.tree_map(lambda t: tuple(t.shape), self.sums)
        known = next((pair for pair in processes.gather((shapes, self._dtypes)) if pair[0] is not None), None)
        if self.sums is None and known is not None:
            leaves, spec = pytree.tree_flatten(
                known[0], is_leaf=lambda value: isinstance(value, tuple) and not isinstance(value, Sums)
            )
            zeros = [torch.zeros(shape, dtype=torch.float64, device=float64_device(self._device)) for shape in leaves]
            self.sums, self._dtypes = pytree.tree_unflatten(zeros, spec), known[1]

    def combine(self, servers: dict[str, Slot], cohort: Cohort) -> bool:
        """Let methods that compare the uploads combine them, and put their new states into ``servers``.

        Returns:
            False if the model must stay as it is, because there are too few uploads.
        """
        if self._kept is None:
            return True
        combined = self._kept.combine(servers, cohort)
        if combined is None:
            return False
        self._combined, new = combined
        servers.update(new)
        return True

    @property
    def weight(self) -> float:
        """The sum of the weights of all clients that were not dropped."""
        return 0.0 if self.sums is None else float(self.sums.weight)

    @property
    def total(self) -> Envelope:
        """The sums over all clients: of the changes and of the messages with a mean times the weights, and of other messages."""
        assert self.sums is not None
        return Envelope(self.sums.delta, self.sums.buffers, self.sums.means, self.sums.totals)

    def replace(self, total: Envelope) -> None:
        """Take these sums instead, which are means already: they are not divided by the weights."""
        assert self.sums is not None
        self.sums = self.sums._replace(
            delta=total.delta, buffers=total.buffers, means=total.mean, totals=total.sum, weight=torch.ones_like(self.sums.weight)
        )

    def messages(self, method: str) -> tuple[Any, Any]:
        """The weighted mean, and the sum, of the messages to a method."""
        if self._combined is not None:
            return self._combined["mean"].get(method, {}), self._combined["sum"].get(method, {})
        if self.sums is None or self._dtypes is None or method not in self.sums.means:
            return {}, {}
        mean = self._as_sent(self.sums.means[method], self._dtypes.means[method], self.sums.weight)
        return mean, self._as_sent(self.sums.totals[method], self._dtypes.totals[method])

    def mean(self, field: Literal["delta", "buffers"]) -> Params:
        """The weighted mean of the clients' changes of parameters or of buffers. Weights are normalised over the clients."""
        if self._combined is not None:
            combined: Params = self._combined[field]
            return combined
        if self._rule is not None and self._values is not None:
            finished: Params = self._rule.finish(self._values)[field]
            return finished
        if self.sums is None or self._dtypes is None:
            return {}
        return self._as_sent(getattr(self.sums, field), getattr(self._dtypes, field), self.sums.weight)

    def _as_sent(self, sums: Any, dtypes: Any, divisor: Tensor | None = None) -> Any:
        """Means or sums in the precision of the clients' values: a count sent as float32 would lose digits in bfloat16."""

        def sent(total: Tensor, dtype: torch.dtype) -> Tensor:
            return (total if divisor is None else total / divisor).to(dtype).to(self._device)

        return pytree.tree_map(sent, sums, dtypes) if sums else {}

    def figures(self) -> dict[str, float]:
        """The figures of the round: training loss and drift."""
        sums = self.sums
        if sums is None:
            return {}
        clients = float(sums.clients)
        figures = {f"train/{name}": _mean_of(rows) for name, rows in self._logged.items()} | {
            "train/loss": float(sums.loss / sums.weight),
            "clients/participating": clients,
            "drift/norm": float(sums.norm) / clients,
        }
        if sums.directions:
            inner = sum(float((sums.directions[name] * sums.delta[name]).sum()) for name in sums.delta)
            norm = sum(float(value.square().sum()) for value in sums.delta.values()) ** 0.5
            figures["drift/cosine"] = inner / (clients * norm) if norm else 0.0
        return figures


def _mean_of(rows: Sequence[tuple[float, Tensor]]) -> float:
    """The weighted mean over the clients that have a value. A NaN is none: the client has not logged it."""
    values = torch.stack([value.cpu() for _, value in rows]).double()
    weights = torch.tensor([weight for weight, _ in rows], dtype=torch.float64).where(~values.isnan(), 0)
    return float((values.nan_to_num() * weights).sum() / weights.sum())


def bad_clients(reply: ClientReply, changes: Params, norms: Tensor) -> dict[int, str]:
    """The clients with a NaN or infinite value, each with the place of the value. ``changes`` are those of their buffers."""
    envelope, count = reply.envelope, len(reply.clients)
    measured = {name: value for name, value in envelope.measured.items() if not name.startswith(LOGGED)}
    rest = [measured, changes, envelope.mean, envelope.sum]
    suspected = (~torch.isfinite(norms) | suspects(rest, count).to(norms.device)).nonzero().flatten().tolist()
    return {reply.clients[k]: where for k in suspected if (where := _where(envelope._replace(buffers=changes), k)) is not None}


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
