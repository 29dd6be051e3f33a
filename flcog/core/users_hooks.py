"""Name the user's hook in an error, so that the command line reports it in one line."""

from typing import Any


def call_hook(owner: Any, hook: str, *arguments: Any, where: str = "") -> Any:
    """Call a hook of a callback or a module.

    Args:
        owner: the callback or module.
        hook: its name.
        arguments: the hook's.
        where: the rest of the note, such as the round.
    """
    try:
        return getattr(owner, hook)(*arguments)
    except Exception as error:
        name_hook(error, owner, hook, where)
        raise


def name_hook(error: Exception, owner: Any, hook: str, where: str = "") -> None:
    """Add a note with the hook to an error of a user's class. flcog's own errors name their cause."""
    if not raised_in_hook(error) and not type(owner).__module__.startswith("flcog."):
        error.add_note(f"in {type(owner).__name__}.{hook}{where}")
        error.in_hook = True  # type: ignore[attr-defined]


def raised_in_hook(error: BaseException) -> bool:
    """Whether a hook raised the error."""
    return getattr(error, "in_hook", False)
