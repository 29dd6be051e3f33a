"""The client runtime: it hosts clients with their data, random numbers, training, and states between rounds."""

from collections.abc import Callable, Collection, Generator, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from flcog.client.executor import Assignment, Executor, Result, longest_first
from flcog.client.messages import ClientReply, ClientTask, Download, Question, RollCall, Scores, Split, unsent_by
from flcog.client.program import ClientTensors, Program
from flcog.client.sealing import sealed
from flcog.client.store import ClientStore, StatesInMemory, filled, residual_stages
from flcog.client.work import ClientWork, make_work
from flcog.core.precision import sent
from flcog.core.progress import Progress
from flcog.core.randomness import fold, make_rng
from flcog.core.types import Params, Slot
from flcog.data import Exchange, Federation
from flcog.data.batching import Batching
from flcog.data.reading import Reader
from flcog.functional.apply import OwnForward
from flcog.functional.evaluation import Evaluator
from flcog.functional.model_function import ModelFunction
from flcog.method import (
    ClientView,
    GlobalModel,
    Method,
    Personalisation,
    PrivateSum,
    SealedSum,
    as_tensors,
    first_contact,
    local_names,
    method_of,
)
from flcog.method.client_view import Population
from flcog.method.personal import DOWNLOAD
from flcog.metrics import reweighted
from flcog.models.causal_lm import scales
from flcog.wire.envelope import of_client
from flcog.wire.ledger import masked_bytes

TRAINING = "lightning"
"""The name of the executor that trains clients in Lightning's loops, and of the state that it keeps of each client."""


@dataclass
class ClientRuntime:
    """Does the work of the clients that it hosts. The server communicates with it only by messages.

    ``fine_tune`` trains one client at a time.
    """

    methods: Sequence[Method]
    model: ModelFunction
    optimizer: torch.optim.Optimizer
    federation: Federation
    exchanges: Mapping[str, Exchange]
    batching: Batching
    reader: Reader
    executor: Executor
    seed: int
    evaluator: Evaluator
    fine_tune: Callable[[Assignment], Generator[Result, None, None]]
    store: ClientStore = field(default_factory=StatesInMemory)
    progress: Progress = field(default_factory=Progress)

    may_be_lost: ClassVar[bool] = False

    def __post_init__(self) -> None:
        self.population = self.roll_call().population
        self._provisional: dict[int, dict[str, Slot]] = {}
        self._initial: dict[int, dict[str, Slot]] = {}
        """The states of clients that joined in this round and have not trained yet."""

    @property
    def here(self) -> "ClientRuntime":
        return self

    @cached_property
    def local(self) -> Collection[str]:
        """The parameters and buffers that stay at the clients."""
        return local_names(self.methods, self.model)

    @cached_property
    def stateful(self) -> bool:
        """Whether a method keeps state of each client. ``init_client`` of a method with ``weights`` may serve its message alone."""
        if residual_stages(self.methods) or self.executor.name == TRAINING:
            return True
        first = int(self.federation.partition.sizes.argmax())  # a client that this runtime hosts
        initial = (self.model.params, {name: self.model.buffers[name] for name in self.model.shared_buffers}, self.view(first, 0))
        return any(
            method.overrides("init_client")
            and (not method.overrides("weights") or pytree.tree_leaves(first_contact(method, *initial, self.local).state))
            for method in self.methods
        )

    def view(self, client: int, round: int) -> ClientView:
        """A client's view for the hooks that are plain Python."""
        offsets = self.federation.partition.offsets
        size = int(offsets[client + 1] - offsets[client])
        return ClientView(client, size, round, self.population, self.exchanges, self.federation, self.seed)

    def roll_call(self) -> RollCall:
        """The clients, and the sizes of their data."""
        return RollCall.of(self.federation)

    @torch.no_grad()
    def set_up(self, population: Population, constants: Params) -> None:
        """Take over the facts about all clients, and the weights that no client changes."""
        self.population = population
        self.federation = replace(self.federation, edges=population.bin_edges)
        own = scales(self.model.module)
        for name in sorted(own.keys() | (constants.keys() - self.model.constants.keys())):
            if not _are_equal(own.get(name), constants.get(name)):
                raise ValueError(
                    f"{name} differs from the server's: load the same decoder, with the same weights=, at the server and its clients"
                )
        for name, value in self.model.constants.items():
            value.copy_(constants[name])

    def contact(self, received: Download, newcomers: Mapping[str, Sequence[int]]) -> dict[str, dict[int, Any]]:
        messages: dict[str, dict[int, Any]] = {}
        self._initial = {}
        for method in self.methods:
            for client in newcomers.get(method.name, ()):
                view = self.view(client, received.round)
                state, message = first_contact(method, received.params, received.buffers, view, self.local)
                self._initial.setdefault(client, {})[method.name] = state
                messages.setdefault(method.name, {})[client] = message
        return messages

    def train(self, received: Download, tasks: Sequence[ClientTask]) -> Generator[ClientReply, None, None]:
        for task in tasks:  # only these, because a round may have several broadcasts
            self._provisional.pop(task.client, None)
        assignment = self.assign(received, tasks)
        methods = assignment.program.methods
        names = [method.name for method in methods]
        sealer, private = method_of(methods, SealedSum), method_of(methods, PrivateSum)
        with self._rates_kept(), closing(self.executor.run(assignment)) as results:
            for result in results:
                reply = self._reply(result, names)
                if sealer is not None:
                    reply = sealed(reply, sealer, received, [work.weight for work in result.works], private)
                yield reply

    @contextmanager
    def _rates_kept(self) -> Iterator[None]:
        """Restore the learning rates of the optimiser's groups, which its schedulers go on from, after clients have had their own."""
        rates = [group.get("lr") for group in self.optimizer.param_groups]
        try:
            yield
        finally:
            for group, rate in zip(self.optimizer.param_groups, rates, strict=True):
                group["lr"] = rate

    def commit(self, clients: Sequence[int]) -> None:
        for client in clients:
            if new := self._provisional.get(client):
                self.store.put(client, self.store.get(client) | new)
        self._provisional = {}

    def personal_model(self, received: Download, method: str, client: int, first: Params) -> tuple[Params, Params]:
        params, buffers, forward = self._personal_model(received, method, client, first)
        if forward is not None:
            raise ValueError(f"{method} has a forward of its own for a client's outputs, so that these are of no single network")
        return params, buffers

    def _personal_model(
        self, received: Download, method: str, client: int, first: Params
    ) -> tuple[Params, Params, OwnForward | None]:
        """A client's own parameters and buffers, and the way in which they give outputs.

        A client without a state makes its first state from ``first``, the global parameters.
        """
        chosen, seed = next(each for each in self.methods if isinstance(each, Personalisation)), fold(received.seed, "personal")

        def work(steps: int) -> ClientWork:
            return make_work(self.federation, self.batching, [ClientTask(client, steps, 1.0)], seed, received.round)[0]

        def program(methods: list[Method], params: Params) -> Program:
            broadcasts = [received.server[method.name] for method in methods]
            return Program(
                self.model, methods, broadcasts, GlobalModel(params, received.buffers), received.optimisation, local=self.local
            )

        one, buffers = work(1), received.buffers
        self.prepare([one], [chosen], first, buffers, received.round)
        tensors = ClientTensors(one.states(), one.draws(), [{}], 1, one.num_samples, 1.0)
        (context,) = program([chosen], received.params).contexts(tensors, buffers, 0)
        own, steps, lr, own_statistics, forward = chosen.personal(dict(received.params), context)
        if steps:
            rates = received.rates if lr is None else [lr] * len(received.rates)
            assignment = Assignment(program([], own), [work(steps)], self.reader, rates, seed, received.round)
            with self._rates_kept():
                envelope = next(self.fine_tune(assignment)).envelope
            own = {name: value + envelope.delta[name][0] for name, value in own.items()}
            buffers = {name: value[0].clone() for name, value in envelope.buffers.items()}
        elif (own_statistics or not buffers.keys().isdisjoint(self.local)) and self.model.mixes_rows:
            buffers = self.evaluator.statistics(own, buffers, one.own)
        return own, buffers, forward

    def ask(self, questions: Sequence[Question]) -> Generator[Any, None, None]:
        answers: dict[str, Callable[..., Any]] = {"evaluate": self.evaluate, "personal_scores": self.personal_scores}
        return (answers[name](*arguments) for name, arguments in questions)

    def personal_scores(
        self, received: Download, method: str, clients: Sequence[int], first: Params, split: Split
    ) -> list[float]:
        """The scores of clients' own models on their held-out parts, or on the test set with its classes weighted by the client's."""
        parts, scores = self.federation.client_val if split == "val" else self.federation.client_test, list[float]()
        for client in clients:
            params, buffers, forward = self._personal_model(received, method, client, first)
            if parts is not None:
                scores.append(self.evaluator.on_rows(params, buffers, parts.client(client), forward))
                continue
            assert self.federation.test is not None
            classes = self.evaluator.on_classes(params, buffers, self.federation.test, alone=True, own=forward)
            scores.append(float(reweighted(classes, self.federation.label_counts(client))))
        return scores

    def evaluate(self, params: Params, buffers: Params, split: Split, figures: bool, classes: Tensor | None = None) -> Scores:
        federation = self.federation
        parts = federation.client_val if split == "val" else federation.client_test
        if classes is not None:
            return Scores(torch.stack([reweighted(classes, federation.label_counts(k)) for k in range(federation.num_clients)]))
        assert parts is not None
        if figures:
            nobody = torch.full((federation.num_clients,), torch.nan, dtype=torch.float64)
            measured = self.evaluator.on_set(params, buffers, federation.train, parts.indices, split, lasting=True)
            return Scores(nobody, measured, self.evaluator.joins)
        return Scores(self.evaluator.on_clients(params, buffers, parts))

    def losses(self, received: Download, clients: Sequence[int]) -> list[float]:
        return self.evaluator.losses(received.params, received.buffers, clients)

    def snapshot(self) -> dict[int, dict[str, Slot]]:
        return {client: self.store.get(client) for client in self.store.clients}

    def restore(self, states: Mapping[int, dict[str, Slot]]) -> None:
        self.store = StatesInMemory()
        for client, state in states.items():
            self.store.put(client, state)

    def assign(self, received: Download, tasks: Sequence[ClientTask]) -> Assignment:
        """Combine the tasks with the clients' data, states and random numbers, for an executor."""
        methods = [method for method in self.methods if method.name in received.server]
        works = make_work(self.federation, self.batching, tasks, received.seed, received.round)
        unsent, trains_apart = unsent_by(tasks), self.executor.name == TRAINING
        if trains_apart:
            self.store.fetch([work.client for work in works])
        for work, task in zip(works, tasks, strict=True):
            work.masks = {name: mask for name, mask in task.masks.items() if name not in unsent}
            work.received = task.own
            work.training = self.store.get(work.client).get(TRAINING, {}) if trains_apart else {}
        self.prepare(works, methods, received.params, received.buffers, received.round)
        self._initial = {}
        program = Program(
            self.model,
            methods,
            [received.server[method.name] for method in methods],
            GlobalModel(received.params, received.buffers),
            received.optimisation,
            unsent,
            masked=any(work.masks for work in works),
            progress=self.progress,
            local=self.local,
        )
        return Assignment(program, works, self.reader, received.rates, received.seed, received.round)

    def prepare(
        self, works: Sequence[ClientWork], methods: Sequence[Method], params: Params, buffers: Params, round: int
    ) -> None:
        """Add the clients' states, which are made at first need, and this round's random numbers to their work."""
        kept = residual_stages(methods)
        needed = any(method.overrides("init_client") or method.overrides("draw") for method in methods)
        if not (kept or needed or any(work.received for work in works)):
            nothing = partial(list[Slot], [{}] * len(methods))
            for work in works:
                work.states = work.draws = nothing
            return
        self.store.fetch([work.client for work in works])
        works, states, draws = longest_first(works), list[list[Any]](), list[list[Slot]]()  # works as executors take them
        for work in works:
            view = self.view(work.client, round)
            known = self._initial.get(work.client, {}) | self.store.get(work.client)
            states.append([{} if i in kept else known.get(method.name) for i, method in enumerate(methods)])
            draws.append([])
            for i, method in enumerate(methods):
                if states[-1][i] is None:
                    states[-1][i] = first_contact(method, params, buffers, view, self.local).state
                rng = make_rng(self.seed, round, work.client, "draw", method.name)
                drawn = as_tensors(method.draw(rng, view)) if method.overrides("draw") else {}
                draws[-1].append({**drawn, DOWNLOAD: work.received[method.name]} if method.name in work.received else drawn)
        for work, own_states, own_draws in zip(works, self._on_device(states), self._on_device(draws), strict=True):
            work.states, work.draws = own_states, own_draws
        if kept:
            stages = [filled([self.store.get(work.client).get(methods[i].name, {}) for work in works]) for i in kept]
            by_client = [dict(zip(kept, own, strict=True)) for own in zip(*stages, strict=True)]
            for work, residuals in zip(works, self._on_device(by_client), strict=True):
                work.residuals = residuals

    def _on_device(self, trees: list[Any]) -> list[Callable[[], Any]]:
        """A function for each tree that moves it to the device when it is needed."""
        device = self.reader.device
        if device.type == "cpu":
            return [lambda tree=tree: tree for tree in trees]  # type: ignore[misc]
        return [partial(pytree.tree_map_only, Tensor, lambda tensor: sent(tensor, device), tree) for tree in trees]

    def _reply(self, result: Result, methods: Sequence[str]) -> ClientReply:
        """Keep the new states provisionally, and put the rest in a reply."""
        clients = [work.client for work in result.works]
        kept = {name: state for name, state in zip(methods, result.states, strict=True) if pytree.tree_leaves(state)}
        for k, client in enumerate(clients if kept else ()):
            self._provisional[client] = of_client(kept, k)
        if result.training and self.executor.name == TRAINING:
            self._provisional.setdefault(clients[0], {})[TRAINING] = result.training
        masked, masked_plain = (
            [masked_bytes(work.masks, sizes) if work.masks else 0 for work in result.works]
            for sizes in (result.manifest.params, result.manifest.plain_params)
        )
        return ClientReply(clients, result.envelope, result.manifest, masked, masked_plain, result.seconds)


def _are_equal(one: Tensor | None, other: Tensor | None) -> bool:
    return one is not None and other is not None and one.dtype == other.dtype and torch.equal(one.cpu(), other.cpu())
