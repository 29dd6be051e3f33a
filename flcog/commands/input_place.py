"""Where in the user's input jsonargparse found a mistake.

jsonargparse reads the options of a class with a parser inside the parser of the surrounding option. Each parser knows only its own part,
so the rest is found by walking up the call stack.
"""

import sys
from collections.abc import Iterator
from types import FrameType


def path() -> list[str]:
    """Return the names of the surrounding options, outermost first."""
    checks = (frame for frame in _frames() if frame.f_code.co_name == "_check_type")
    return [frame.f_locals["self"].dest for frame in checks if hasattr(frame.f_locals.get("self"), "dest")][::-1]


def beside_class_path() -> str | None:
    """Return the first option that the user wrote beside a class path instead of under ``init_args``; None if there is none."""
    for frame in _frames():
        given = frame.f_locals.get("cfg")
        if frame.f_code.co_name == "parse_object" and given is not None and "class_path" in given:
            return next((name for name in vars(given) if name not in ("class_path", "init_args", "dict_kwargs")), None)
    return None


def _frames() -> Iterator[FrameType]:
    frame = sys._getframe()
    while frame.f_back is not None:
        frame = frame.f_back
        yield frame
