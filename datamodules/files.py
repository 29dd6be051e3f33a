"""Reading data files: one-line errors for a file that is missing, damaged, or of another kind."""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any


def require_files(data_set: str, paths: Iterable[Path], remedy: str) -> None:
    """Raise a one-line error that names the files that are not there, and says how to get them."""
    missing = [path for path in paths if not path.exists()]
    if missing:
        raise missing_files(data_set, missing, remedy)


def missing_files(data_set: str, missing: Sequence[Path], remedy: str) -> FileNotFoundError:
    """The error for files that were looked for in vain."""
    names = ", ".join(str(path) for path in missing[:3])
    more = f" and {len(missing) - 3} more" if len(missing) > 3 else ""
    return FileNotFoundError(f"{data_set} found no {names}{more} (looked for from {Path.cwd()}): {remedy}")


def require_names(there: Iterable[str], names: Iterable[str], where: str) -> None:
    """Raise a one-line error that names the columns or arrays that are missing."""
    if missing := [name for name in names if name not in there]:
        raise ValueError(
            f"{where} has no {' and no '.join(map(repr, missing))}; it has {', '.join(map(str, there)) or 'neither'}"
        )


def names_of(frame: Any, known: Iterable[str | None]) -> Sequence[Any]:
    """The rows' names: a data frame's index, or the first column that is none of the known ones, or numbers."""
    unknown = next((name for name in frame.columns if name not in [*known]), None)
    if type(frame.index).__name__ != "RangeIndex" or unknown is None:
        return [*frame.index]
    return [*frame[unknown]]


@contextmanager
def reading(path: str | Path, remedy: str = "get it again or repair it") -> Iterator[None]:
    """Add the file's name to any error while it is read: decoders raise nearly every kind of error on damaged files."""
    try:
        yield
    except FileNotFoundError as error:
        raise FileNotFoundError(f"{path} is not there: {remedy}") from error
    except Exception as error:
        # Our own errors are sentences about the file; others need their kind beside them to say something (KeyError: 'x').
        reason = str(error) if type(error) is ValueError else f"{type(error).__name__}: {error}"
        raise ValueError(f"{path} cannot be read, {remedy}: {' '.join(reason.split())}") from error
