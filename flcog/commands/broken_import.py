"""Find the error in a user's module that keeps the class of a class path from being imported."""

import re
from importlib import import_module
from pathlib import Path

from flcog.commands.refusals import keeps_traceback
from flcog.core.files import short
from flcog.core.users_hooks import place_in_users_code

CLASS_PATH = re.compile(r"(?:class_path'?:? '|Given value: )([A-Za-z_]\w*(?:\.\w+)+)")


def broken_import(report: str) -> str | None:
    """Describe why a module cannot be imported, or return None if all modules can be, or are missing.

    jsonargparse tries every type that an option allows and reports the errors of all, so that the error of the module is lost among them.

    Args:
        report: jsonargparse's report, with the class paths.
    """
    for path in CLASS_PATH.findall(report):
        try:
            import_module(path.rpartition(".")[0])
        except ModuleNotFoundError:
            continue  # the report names a missing module
        except SyntaxError as error:
            return f"cannot import {path}: {error.msg} ({short(Path(error.filename or ''))}, line {error.lineno})"
        except Exception as error:
            if keeps_traceback():
                raise
            place = place_in_users_code(error)
            return f"cannot import {path}: {type(error).__name__}: {' '.join(str(error).split())}" + f" ({place})" * bool(place)
    return None
