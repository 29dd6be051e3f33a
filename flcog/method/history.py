"""The work of a run's methods in its first rounds. Runs with equal methods until a round can share these rounds."""

from collections.abc import Sequence
from typing import Any

from flcog.core.arguments import by_name, constructor_arguments
from flcog.method.method import Method


def methods_until(methods: Sequence[Method], round: int) -> dict[str, dict[str, Any]]:
    """Describe each method's work in the first ``round`` rounds: its ``settings``, and whether it ``waits``, that is, does not act yet.

    Methods that do nothing in these rounds are left out.
    """
    found = {method.name: (method, method.until(round)) for method in methods}
    return {
        name: {"waits": until is not method, "settings": by_name(constructor_arguments(until))}
        for name, (method, until) in found.items()
        if until is not None
    }
