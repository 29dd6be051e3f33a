"""A function of tensors, compiled by ``torch.compile``."""

import logging
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.fx.experimental.proxy_tensor import make_fx

OPTIONS: dict[str, Any] = {"constant_and_index_propagation": False}
"""With it torch's compiler takes ``arange(n) * constant``, where keyed noise begins, for an address: a product of signed numbers in C++,
which must not overflow, and this one does, on purpose. A C++ compiler that trusts it has written beyond the noise's end."""


def compiled(function: Callable[..., None], examples: Sequence[Tensor]) -> Callable[..., None]:
    """``torch.compile`` of all operations of a function, which changes tensors that it is given.

    They are recorded once, on tensors without numbers, so that torch gets a list of operations and none of the Python around them:
    methods, modules and their attributes, of which it would ask at every call whether they have changed. What is compiled changes
    nothing but makes the tensors' new contents, which are copied afterwards: torch 2.11 may put an operation that changes a
    parameter before another that reads it (https://github.com/pytorch/pytorch/pull/177816), and the gradient is wrong.
    """
    changed: list[int] = []

    def contents(*tensors: Tensor) -> list[Tensor]:
        copies = [tensor.clone() for tensor in tensors]
        before = [copy._version for copy in copies]
        function(*copies)
        changed[:] = [place for place, copy in enumerate(copies) if copy._version > before[place]]
        return [copies[place] for place in changed]

    logging.getLogger("torch.utils.cpp_extension").addFilter(_is_news)
    graph = make_fx(contents, tracing_mode="fake", _allow_non_fake_inputs=True)(*examples)
    program: Callable[..., list[Tensor]] = torch.compile(graph, fullgraph=True, dynamic=False, options=OPTIONS)

    def change(*tensors: Tensor) -> None:
        torch._foreach_copy_([tensors[place] for place in changed], program(*tensors))

    return change


def _is_news(record: logging.LogRecord) -> bool:
    """All but torch's line, as its C++ compiler is looked for, that a machine with CUDA's toolkit has no GPU: the run is on its CPU."""
    return not str(record.msg).startswith("No CUDA runtime is found")
