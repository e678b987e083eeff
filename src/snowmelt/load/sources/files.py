"""The sources File and Url: files by path or glob, local, in an object store, or by HTTP."""

from __future__ import annotations

from typing import TYPE_CHECKING

from snowmelt.errors import PhaseFailed
from snowmelt.load.phase_definition import PhaseDefinition, PhaseParameter
from snowmelt.load.sources import http as web
from snowmelt.load.sources import local_files, object_store

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from types import ModuleType

    from snowmelt.load.portion import InputFile, Portion


class FileGlobSource:
    """Files by paths, each of which may be a glob: `*`, `?`, `[…]`, and `**` for any depth.

    Paths without a scheme are of this machine, as are `file:` URLs; `http(s)://` is the web;
    other URLs (`s3://bucket/path` …) are opened as stores with the credentials of stores.
    """

    def __init__(self, paths: Sequence[str] = ()) -> None:
        """Take the paths that `files` lists; tasks, which only read, need none."""
        self._paths = tuple(paths)

    def files(self) -> Sequence[InputFile]:
        """List the files, those of one glob by name; a file that is named twice is there once.

        Raises:
            PhaseFailed: No path is given, one leads to no file, or a store does not answer.
        """
        if not self._paths:
            raise PhaseFailed(reason="no path is given")
        found = {file.path: file for path in self._paths for file in list_files(path)}
        return tuple(found.values())

    def read(self, portion: Portion) -> Iterator[bytes]:
        """Yield the bytes from the portion's offset on, to the end of the file if asked.

        Raises:
            PhaseFailed: The file cannot be read, or has changed since it was listed.
        """
        pieces: Iterator[bytes] = _choose_source_module(portion.file.path).read(portion)
        return pieces


def list_files(path: str) -> Sequence[InputFile]:
    """List the files that one path or glob leads to, by name.

    Raises:
        PhaseFailed: There is none, or the store does not answer.
    """
    if not path:
        raise PhaseFailed(reason="an empty path leads to no file")
    found: Sequence[InputFile] = _choose_source_module(path).find(path)
    if not found:
        raise PhaseFailed(reason=f"no file matches {path}")
    return found


def is_readable_anywhere(path: str) -> bool:
    """Return whether a file's address is the same on every machine."""
    return "://" in path and not path.lower().startswith("file:")


def _choose_source_module(path: str) -> ModuleType:
    scheme = path.partition("://")[0].lower() if "://" in path else "file"
    if scheme == "file":
        return local_files
    return web if scheme in {"http", "https"} else object_store


def _make_path_source(file: str | None = None) -> FileGlobSource:
    return FileGlobSource(() if file is None else (file,))


def _make_url_source(url: str) -> FileGlobSource:
    return FileGlobSource((url,))


FILE = PhaseDefinition("File", _make_path_source, (PhaseParameter("file", str),))
URL = PhaseDefinition("Url", _make_url_source, (PhaseParameter("url", str, required=True),))
