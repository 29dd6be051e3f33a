"""Writes a client's model and loss as a program that only needs torch, for frameworks in environments without flcog."""

import copy
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.utils import _pytree as pytree

from flcog.client_module import ClientModule
from flcog.core.trees import call
from flcog.models.base import Dropout


def program_of(module: ClientModule, batch: Sequence[Tensor], structure: Any) -> fx.GraphModule:
    """Trace the module's mean loss on a batch as a graph of torch's operations and layers.

    ``torch.fx`` writes plain Python that calls the same layers, so that it runs as fast as the module. A program from ``torch.export``
    would check its inputs at every step.

    Args:
        module: the client's module, which does not change.
        batch: the leaves of inputs and targets of a few samples.
        structure: the structure of the batch.
    """
    loss = _Loss(_with_torchs_dropout(copy.deepcopy(module).train()), len(batch), structure)
    tracer = _Tracer(batch)
    try:
        graph = tracer.trace(loss)
        # Operations that only answered the network's questions are not repeated at every step.
        graph.eliminate_dead_code(lambda node: node not in tracer.answered)
        written = fx.Graph()  # a copy, because the first graph refers to our tracer
        written.output(written.graph_copy(graph, {}))
        return fx.GraphModule(loss, written)
    except Exception as error:  # its type comes from the network's own code
        reason = " ".join(str(error).split()) or type(error).__name__
        raise ValueError(
            f"{type(module).__name__}'s network cannot be written down for other frameworks ({reason}): torch.fx must be "
            "able to trace it"
        ) from error


def _with_torchs_dropout(module: ClientModule) -> ClientModule:
    for layer in list(module.modules()):
        for name, child in layer.named_children():
            if type(child) is Dropout:
                setattr(layer, name, nn.Dropout(child.p))
    return module


class _Loss(nn.Module):
    def __init__(self, module: ClientModule, count: int, structure: Any) -> None:
        super().__init__()
        self.module, self.count, self.structure = module, count, structure

    def forward(self, *leaves: Tensor) -> Tensor:
        inputs, targets = pytree.tree_unflatten([leaves[i] for i in range(self.count)], self.structure)
        # Trace the network itself, because the module's forward checks the values that it returns, which tracing does not have.
        network = self.module.model if type(self.module).forward is ClientModule.forward else self.module
        return self.module.per_example_loss(call(network, inputs), targets).mean()


class _Value(fx.Proxy):
    """A value in a program that is being traced. Its length is the length for the example batch."""

    tracer: "_Tracer"

    def __len__(self) -> int:
        return len(self.tracer.value(self.node))


class _Tracer(fx.Tracer):
    """Answers a network's questions about its inputs, such as their shape, by computing them on a batch."""

    def __init__(self, batch: Sequence[Tensor]) -> None:
        super().__init__()
        self._batch = tuple(batch)
        self.answered: set[fx.Node] = set()

    def proxy(self, node: fx.Node) -> fx.Proxy:
        return _Value(node, self)

    def to_bool(self, obj: fx.Proxy) -> bool:
        return bool(self.value(obj.node))

    def iter(self, obj: fx.Proxy) -> Iterator[Any]:
        parts: Any = obj
        return iter([parts[i] for i in range(len(self.value(obj.node)))])

    @torch.no_grad()
    def value(self, node: fx.Node) -> Any:
        values: dict[fx.Node, Any] = {}
        for earlier in node.graph.nodes:
            values[earlier] = self._computed(earlier, values)
            if earlier is node:
                break
        self.answered.update(values)
        return values[node]

    def _computed(self, node: fx.Node, values: dict[fx.Node, Any]) -> Any:
        arguments, named = fx.node.map_arg((node.args, node.kwargs), values.__getitem__)
        if node.op == "placeholder":
            return self._batch
        if node.op == "get_attr":
            owner, _, name = str(node.target).rpartition(".")
            return getattr(self.root.get_submodule(owner), name)
        if node.op == "call_method":
            return getattr(arguments[0], str(node.target))(*arguments[1:], **named)
        function: Any = self.root.get_submodule(str(node.target)) if node.op == "call_module" else node.target
        return function(*arguments, **named)
