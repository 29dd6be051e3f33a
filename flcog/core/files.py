"""Atomic writes of files: after a kill, a power cut or a full disk, a file has its old or its new content, never half."""

import csv
import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any, Literal

import yaml

REMEDY = "free space or choose another folder"


@contextmanager
def clear_errors(path: str | Path, remedy: str = REMEDY) -> Iterator[None]:
    """Report a full disk, a missing permission and similar errors in one line that names the file and a remedy."""
    try:
        yield
    except (OSError, RuntimeError) as error:
        # After a failed write torch.save raises a second error of its own archive.
        cause = error if isinstance(error, OSError) else error.__context__
        if not isinstance(cause, OSError):
            raise
        raise ValueError(f"cannot write {path}: {cause.strerror or cause}; {remedy}") from error


@contextmanager
def replacing(
    path: str | Path, mode: Literal["wb", "w"] = "wb", remedy: str = REMEDY, permissions: int | None = None
) -> Iterator[IO[Any]]:
    """Open a file that replaces ``path`` once it is completely on the disk.

    The data are written to a temporary file beside it and flushed to the disk. The file is renamed, and then the folder is
    flushed. After a kill or a power cut there is the old file or the new one, never half a file. If writing fails, the temporary
    file is removed and the old file stays. Permissions, as for chmod, are set before the file has contents.
    """
    path = Path(path)
    with clear_errors(path, remedy):
        if path.exists() and not path.is_file():  # write to a device or a pipe instead of replacing it
            with _open(path, mode) as file:
                yield file
            return
        path = Path(os.path.realpath(path))  # replace a link's target, not the link
        make_folder(path.parent)
        aside = _aside(path)
        try:
            with _open(aside, mode) as file:
                if permissions is not None:
                    aside.chmod(permissions)
                yield file
                file.flush()
                os.fsync(file.fileno())
            os.replace(aside, path)
        except BaseException:
            aside.unlink(missing_ok=True)
            raise
        _flush_folder(path.parent)


@contextmanager
def replacing_folder(path: Path, remedy: str = REMEDY) -> Iterator[Path]:
    """Make a folder that is renamed to ``path`` once all its files are on the disk."""
    aside = _aside(path)
    with clear_errors(path, remedy):
        try:
            make_folder(aside)
            yield aside
            for folder, _, names in os.walk(aside):
                for name in names:
                    with Path(folder, name).open("rb") as file:
                        os.fsync(file.fileno())
                _flush_folder(Path(folder))
            os.replace(aside, path)
        except BaseException:
            shutil.rmtree(aside, ignore_errors=True)
            raise
        _flush_folder(path.parent)


def append(path: Path, text: str, remedy: str = REMEDY) -> None:
    """Append to a file and flush it to the disk."""
    with clear_errors(path, remedy), path.open("ab") as file:
        file.write(text.encode())
        file.flush()
        os.fsync(file.fileno())


def make_folder(path: Path) -> None:
    """Make a folder and its parents, and flush them to the disk, so that they survive a power cut."""
    missing = [folder for folder in (path, *path.parents) if not folder.exists()]
    path.mkdir(parents=True, exist_ok=True)
    for folder in missing:
        _flush_folder(folder.parent)


def write_table(
    path: Path, rows: Sequence[Mapping[str, Any]], columns: Sequence[str] | None = None, remedy: str = REMEDY
) -> None:
    """Write rows as CSV, by default with all their columns in order of appearance."""
    columns = columns or list(dict.fromkeys(name for row in rows for name in row))
    with replacing(path, "w", remedy) as file:
        writer = csv.DictWriter(file, columns)
        writer.writeheader()
        writer.writerows(rows)


def write_figure(path: str | Path, figure: Any, dpi: int = 150, remedy: str = REMEDY, **options: Any) -> None:
    """Write a matplotlib figure in the format of the file's extension (.png without an extension)."""
    path = Path(path)
    path = path if path.suffix else path.with_suffix(".png")
    with replacing(path, "wb", remedy) as file:
        figure.savefig(file, format=path.suffix[1:].lower(), dpi=dpi, **options)


def _aside(path: Path) -> Path:
    # The process number keeps two processes apart that write the same file.
    return path.with_name(f".{path.name}.{os.getpid()}")


def _open(path: Path, mode: str) -> IO[Any]:
    return path.open(mode) if "b" in mode else path.open(mode, newline="", encoding="utf-8")


def _flush_folder(path: Path) -> None:
    # Windows and some file systems cannot flush a folder.
    with suppress(OSError):
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


RUN_REMEDY = "free space or choose another trainer.default_root_dir"


def short(path: Path) -> Path:
    """Return the path relative to the working directory if it is inside it."""
    absolute, here = path.absolute(), Path.cwd()
    return absolute.relative_to(here) if absolute.is_relative_to(here) else absolute


OWNER_ONLY = 0o600
"""Permissions of files with secrets."""


def write_yaml(path: Path, content: Any, remedy: str = RUN_REMEDY, permissions: int | None = None) -> None:
    with replacing(path, "w", remedy, permissions) as file:
        file.write(as_yaml(content))


def as_yaml(content: Any) -> str:
    return yaml.safe_dump(content, sort_keys=False, allow_unicode=True)


@contextmanager
def arrays_in(path: str | Path) -> Iterator[Any]:
    """The arrays of an ``.npz`` or ``.npy`` file. ``np.load(path)`` alone does not close a damaged file."""
    import numpy as np

    with open(path, "rb") as file:
        yield np.load(file, allow_pickle=False)
