"""A function of tensors, compiled by ``torch.compile``."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.fx.experimental.proxy_tensor import make_fx

OPTIONS: dict[str, Any] = {"constant_and_index_propagation": False}
"""With this option torch's compiler treats ``arange(n) * constant``, the beginning of keyed noise, as an address: a product of signed C++
numbers, which must not overflow. This product overflows on purpose, and a C++ compiler then wrote beyond the end of the noise."""


def compiled(function: Callable[..., None], examples: Sequence[Tensor]) -> Callable[..., None]:
    """``torch.compile`` of a function that changes its arguments in place.

    The operations are recorded once, on tensors without values. So torch compiles a list of operations without the Python around
    them (methods, modules and their attributes), and need not check at every call whether this has changed. The compiled program
    changes nothing: it returns the new contents of tensors, which are copied afterwards. torch 2.11 may move an operation that
    changes a parameter before an operation that reads it (https://github.com/pytorch/pytorch/pull/177816), and the gradient is wrong.
    """
    changed: list[int] = []

    def contents(*tensors: Tensor) -> list[Tensor]:
        copies = [tensor.clone() for tensor in tensors]
        before = [copy._version for copy in copies]
        function(*copies)
        changed[:] = [place for place, copy in enumerate(copies) if copy._version > before[place]]
        return [copies[place] for place in changed]

    graph = make_fx(contents, tracing_mode="fake", _allow_non_fake_inputs=True)(*examples)
    program: Callable[..., list[Tensor]] = torch.compile(graph, fullgraph=True, dynamic=False, options=OPTIONS)

    def change(*tensors: Tensor) -> None:
        torch._foreach_copy_([tensors[place] for place in changed], program(*tensors))

    return change
