"""Recordings in place of compiled programs, because torch's compiler takes many seconds for each."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor


@pytest.fixture
def programs(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """The number of calls of each program that is made. A program does not change its inputs."""
    calls: list[int] = []

    def recorded(graph: Callable[..., Any], **options: Any) -> Callable[..., Any]:
        number = len(calls)
        calls.append(0)

        def run(*tensors: Tensor) -> Any:
            calls[number] += 1
            versions = [tensor._version for tensor in tensors]
            made = graph(*tensors)
            assert versions == [tensor._version for tensor in tensors]
            return made

        return run

    monkeypatch.setattr(torch, "compile", recorded)
    yield calls
