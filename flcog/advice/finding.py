"""The type of advice: a hook or option, its consequence in this combination of methods, and a fix."""

from typing import NamedTuple


class Finding(NamedTuple):
    """One piece of advice by ``flcog check``.

    Args:
        method: the name of the method, or of the client module.
        hook: its hook or option.
        consequence: the effect on a run.
        fix: the change that avoids it.
    """

    method: str
    hook: str
    consequence: str
    fix: str

    def __str__(self) -> str:
        return f"{self.method}.{self.hook} {self.consequence}: {self.fix}"
