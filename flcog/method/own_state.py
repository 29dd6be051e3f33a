"""State that a method must not keep on itself."""

import sys
from types import FrameType
from typing import Any

from flcog.method.observer import Callback

AGAIN_IN_A_RESUMED_RUN = ("configure_model", "prepare_data", "load_state_dict")
"""Hooks that a resumed run calls again, so that they may set attributes, as observers' hooks may."""


class KeepsNoState(Callback):
    """Refuses attributes that a hook sets: checkpoints lack them, and other processes do not see them.

    Observers' hooks may set attributes, and so may every hook of a class with ``state_dict``, whose result checkpoints contain.
    """

    def __setattr__(self, name: str, value: Any) -> None:
        frame: FrameType | None = sys._getframe(1)
        while frame is not None and type(self).state_dict is Callback.state_dict:
            hook, names = frame.f_code.co_name, frame.f_code.co_varnames[: frame.f_code.co_argcount]
            is_hook = names and hook.isidentifier() and not hook.startswith(("_", "on_")) and hook not in AGAIN_IN_A_RESUMED_RUN
            if is_hook and frame.f_locals.get(names[0]) is self:
                raise ValueError(
                    f"{self.name}.{hook} sets self.{name}, which checkpoints lack: keep it in the state that server_step returns (the "
                    "first one comes from init_server) or, for a client, finish_client (the first one comes from init_client)"
                )
            frame = frame.f_back
        super().__setattr__(name, value)
