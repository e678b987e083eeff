"""The sources File, Url and Stdin: local files, objects of stores, HTTP and standard input."""

from __future__ import annotations

import atexit
import contextlib
import datetime as dt
import fnmatch
import functools
import glob
import os
import re
import shutil
import stat
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import BinaryIO
from urllib.parse import unquote, urlsplit

import httpx

from snowmelt.clock import SystemClock
from snowmelt.errors import ObjectChanged, ObjectMissing, PhaseFailed, SnowmeltError
from snowmelt.load.phase_definition import PhaseDefinition, PhaseParameter
from snowmelt.load.portion import InputFile, Portion
from snowmelt.storage.store import ObjectInfo, Store
from snowmelt.storage.store_factory import open_store

_READ_BYTES = 1024 * 1024


class FileGlobSource:
    """A source of files by paths or globs (`*`, `?`, `[…]`, and `**` for any depth).

    Paths without a scheme and `file:` URLs are local. `http(s)://` is read by HTTP. Other URLs
    (`s3://bucket/path`) are objects of stores.
    """

    def __init__(self, paths: Sequence[str] = ()) -> None:
        """Set the paths that `files` lists. Tasks do not list files, so they pass no paths."""
        self._paths = tuple(paths)

    def files(self) -> Sequence[InputFile]:
        """List the distinct files. The files of one glob are sorted by name."""
        if not self._paths:
            raise PhaseFailed(reason="no path is given")
        found = {file.path: file for path in self._paths for file in list_files(path)}
        return tuple(found.values())

    def read(self, portion: Portion) -> Iterator[bytes]:
        """Yield the bytes from the portion's offset to the end of the file."""
        return _choose_functions(portion.file.path)[1](portion)


def list_files(path: str) -> Sequence[InputFile]:
    """List the files that a path or glob matches, sorted by name.

    Raises:
        PhaseFailed: If there is none, or the store fails.
    """
    if not path:
        raise PhaseFailed(reason="the path is empty")
    found = _choose_functions(path)[0](path)
    if not found:
        raise PhaseFailed(reason=f"no file matches {path}")
    return found


def find_by_prefix(prefix: str, pattern: str | None = None, after: str = "") -> list[InputFile]:
    """List the files whose paths start with a text, sorted by name; possibly none.

    Omits local files whose names start with a dot.

    Args:
        prefix: Start of the absolute paths or URLs.
        pattern: Regular expression that whole paths match. None: all.
        after: Path of a file; objects of stores up to it are left out.

    Raises:
        PhaseFailed: If the store fails.
    """
    if is_object_url(prefix):
        root, _, key = prefix.partition("://")
        host, _, key = key.partition("/")
        root = f"{root}://{host}"
        with _translating_errors(prefix):
            found = [
                _make_input_file(root, each)
                for each in open_store(root).list_ordered(
                    key, after=after.removeprefix(f"{root}/") if after else ""
                )
                if isinstance(each, ObjectInfo)
            ]
    else:
        found = _find_local_by_prefix(prefix)
    whole = None if pattern is None else re.compile(pattern)
    return [each for each in found if whole is None or whole.fullmatch(each.path)]


def _find_local_by_prefix(prefix: str) -> list[InputFile]:
    prefix = _to_local_path(prefix)
    start = os.path.abspath(prefix) + ("/" if prefix.endswith("/") else "")  # noqa: PTH100
    found: list[InputFile] = []
    for folder, folders, names in os.walk(
        start if start.endswith("/") else start.rpartition("/")[0] or "/"
    ):
        base = folder if folder.endswith("/") else f"{folder}/"
        folders[:] = [
            each
            for each in folders
            if not each.startswith(".")
            and (f"{base}{each}/".startswith(start) or start.startswith(f"{base}{each}/"))
        ]
        for name in names:
            path = f"{base}{name}"
            if name.startswith(".") or not path.startswith(start):
                continue
            # Skip broken links and files that were deleted in the meantime.
            with contextlib.suppress(OSError):
                status = os.stat(path)  # noqa: PTH116
                if stat.S_ISREG(status.st_mode):
                    found.append(_make_local_file(path, status))
    return sorted(found, key=lambda file: file.path)


def delete_file(path: str) -> None:
    """Delete a local file or an object of a store.

    Raises:
        PhaseFailed: If it cannot be deleted.
    """
    if is_object_url(path):
        root, key = _split_url(path)
        with _translating_errors(path):
            open_store(root).delete(key)
        return
    try:
        os.unlink(_to_local_path(path))  # noqa: PTH108
    except FileNotFoundError:
        return
    except OSError as error:
        raise PhaseFailed(reason=f"{path}: {error.strerror}") from error


def find_new_files(pattern: str, after: str = "") -> Sequence[InputFile]:
    """List the files that an absolute path, URL or glob matches; possibly none.

    Args:
        pattern: The path, URL or glob.
        after: Path of a file; objects of stores up to it are left out. Local files are all listed.

    Raises:
        PhaseFailed: If the store fails, or the pattern is a folder.
    """
    if is_object_url(pattern):
        return _find_objects(pattern, after)
    return _choose_functions(pattern)[0](pattern)


def find_file(path: str) -> InputFile | None:
    """Return the local file or object at this absolute path or URL, or None if it does not exist.

    Raises:
        PhaseFailed: If the store fails, or the path is no regular file.
    """
    if not is_object_url(path):
        found = _find_local(path)
        return found[0] if found and found[0].path == path else None
    root, key = _split_url(path)
    with _translating_errors(path):
        info = open_store(root).head(key)
    return None if info is None else _make_input_file(root, info)


def show_path(path: str) -> str:
    """Return a path in which bytes of a local name that are not UTF-8 are escaped in hexadecimal."""
    return os.fsencode(path).decode("utf-8", "backslashreplace")


def find_name_problem(file: InputFile) -> str | None:
    """Return why the catalog cannot store the path of a file, or None if it can."""
    if show_path(file.path) == file.path:
        return None
    return "the name of the file is not UTF-8; rename the file"


def find_base_folder(location: str, *, is_prefix: bool) -> str:
    """Return the folder of a location, with its slash. Names of files are relative to it."""
    fixed = _to_local_path(location)
    if not is_prefix:
        fixed = _GLOB_CHARACTERS.split(fixed)[0]
    return fixed[: fixed.rfind("/") + 1]


def match_location(
    location: str, name: str, *, is_prefix: bool, pattern: str | None = None
) -> str | None:
    """Return the path of a named file if a location would list it, else None.

    Args:
        location: An absolute path, URL or glob, or with `is_prefix` the text that paths start with.
        name: Path of the file, absolute or relative to the folder of the location.
        is_prefix: See `location`.
        pattern: Regular expression that whole paths match. None: all.
    """
    base = find_base_folder(location, is_prefix=is_prefix)
    path = name if name.startswith("/") or "://" in name else base + name
    segments = path.partition("://")[2].split("/") if "://" in path else path[1:].split("/")
    if not {"", ".", ".."}.isdisjoint(segments):
        return None
    whole = _to_local_path(location)
    if not is_prefix:
        return path if _matches_glob(whole.split("/"), path.split("/")) else None
    is_hidden = not is_object_url(path) and any(
        each.startswith(".") for each in path.removeprefix(base).split("/")
    )
    if is_hidden or not path.startswith(whole):
        return None
    return path if pattern is None or re.fullmatch(pattern, path) else None


def is_object_url(path: str) -> bool:
    """Return True for the URL of objects in a store."""
    scheme = path.partition("://")[0].lower() if "://" in path else "file"
    return scheme not in {"file", "http", "https"}


def _choose_functions(
    path: str,
) -> tuple[Callable[[str], Sequence[InputFile]], Callable[[Portion], Iterator[bytes]]]:
    """Return the functions that list and read files of the path's scheme."""
    scheme = path.partition("://")[0].lower() if "://" in path else "file"
    if scheme == "file":
        return _find_local, _read_local
    if scheme in {"http", "https"}:
        return _find_by_http, _read_by_http
    return _find_objects, _read_object


FILE = PhaseDefinition(
    "File",
    lambda file=None: FileGlobSource(() if file is None else (file,)),
    (PhaseParameter("file", str),),
)
URL = PhaseDefinition(
    "Url", lambda url: FileGlobSource((url,)), (PhaseParameter("url", str, required=True),)
)


def _find_local(path: str) -> Sequence[InputFile]:
    """List the file at a path, or those that a glob matches, with absolute paths."""
    path = os.path.abspath(_to_local_path(path))  # noqa: PTH100 - not for globs
    # A file name may contain glob characters. A name that its own glob matches, such as `*.csv`,
    # must not hide the other files.
    if glob.has_magic(path) and (not os.path.lexists(path) or _matches_itself(path)):
        found = []
        for each in sorted(glob.iglob(path, recursive=True)):  # noqa: PTH207
            # Skip broken links and files that were deleted in the meantime.
            with contextlib.suppress(OSError):
                status = os.stat(each)  # noqa: PTH116
                if stat.S_ISREG(status.st_mode):
                    found.append(_make_local_file(each, status))
        return found
    try:
        status = os.stat(path)  # noqa: PTH116
    except FileNotFoundError:
        return ()
    except OSError as error:
        raise PhaseFailed(reason=f"{path}: {error.strerror}") from error
    if stat.S_ISDIR(status.st_mode):
        raise PhaseFailed(reason=f"{path} is a folder. To load its files, use {path.rstrip('/')}/*")
    if not stat.S_ISREG(status.st_mode):
        raise PhaseFailed(reason=f"{path} is not a regular file. To load a pipe, use STDIN")
    return (_make_local_file(path, status),)


def _matches_itself(pattern: str) -> bool:
    parts = pattern.split("/")
    return _matches_glob(parts, parts)


def _read_local(portion: Portion) -> Iterator[bytes]:
    path, offset = portion.file.path, portion.offset
    try:
        with open(path, "rb", buffering=0) as file:  # noqa: PTH123
            _check_unchanged(portion.file, os.fstat(file.fileno()))
            file.seek(offset)
            while piece := file.read(_READ_BYTES):
                offset += len(piece)
                yield piece
            _check_unchanged(portion.file, os.fstat(file.fileno()))
    except OSError as error:
        raise PhaseFailed(reason=f"{path}: {error.strerror}", offset=offset) from error


def _to_local_path(path: str) -> str:
    if not path.lower().startswith("file:"):
        return path
    parts = urlsplit(path)
    if parts.netloc not in {"", "localhost"}:
        raise PhaseFailed(reason=f"{path}: a file: URL must not have a host")
    return unquote(parts.path)


def _make_local_file(path: str, status: os.stat_result) -> InputFile:
    changed_at = dt.datetime.fromtimestamp(status.st_mtime_ns / 1e9, dt.UTC)
    return InputFile(path, status.st_size, _make_version_tag(status), changed_at)


def _make_version_tag(status: os.stat_result) -> str:
    return f"{status.st_mtime_ns:x}-{status.st_size:x}"


def _check_unchanged(file: InputFile, status: os.stat_result) -> None:
    if file.tag is not None and file.tag != _make_version_tag(status):
        raise PhaseFailed(reason=f"{file.path} has changed since the load began")


class SpooledStdinSource:
    """Standard input, spooled to a file, because tasks are other processes and may retry.

    The file is in a new folder below `spool`, which all tasks must be able to read. It is deleted
    by `close`, or when this process ends.
    """

    def __init__(self, spool: str | None = None, *, stream: BinaryIO | None = None) -> None:
        self._spool = spool
        self._stream = stream
        self._folder: str | None = None

    def files(self) -> Sequence[InputFile]:
        """Spool all input, on the driver; return one file."""
        self.close()
        try:
            self._folder = tempfile.mkdtemp(prefix="snowmelt-stdin-", dir=self._spool)
            atexit.register(self.close)
            path = Path(self._folder, "stdin")
            with path.open("xb") as file:
                shutil.copyfileobj(self._stream or sys.stdin.buffer, file, _READ_BYTES)
            return (InputFile(str(path), path.stat().st_size),)
        except OSError as error:
            self.close()
            raise PhaseFailed(reason=f"standard input: {error.strerror}") from error

    def read(self, portion: Portion) -> Iterator[bytes]:
        """Yield the bytes from the portion's offset to the end of the input."""
        return _read_local(portion)

    def close(self) -> None:
        """Delete the file. Idempotent."""
        if self._folder is not None:
            with contextlib.suppress(OSError):
                shutil.rmtree(self._folder)
            atexit.unregister(self.close)
            self._folder = None


STDIN = PhaseDefinition("Stdin", SpooledStdinSource, (PhaseParameter("spool", str),))


# --- HTTP: range requests and version tags if the server supports them.

# Limit per operation. There is no total limit, because files may be large.
_TIMEOUT = httpx.Timeout(60.0)
_RETRY_DELAYS_S = (0.12, 0.36, 1.08)
_CLOCK = SystemClock()


def _find_by_http(path: str) -> Sequence[InputFile]:
    """Return the file with its version tag, and its size if the server supports ranges."""
    try:
        with _open_response("HEAD", path) as answer:
            pass
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        raise PhaseFailed(reason=f"{path}: {error}") from error
    if answer.status_code in {404, 410}:
        return ()
    # The server does not support HEAD. If the file does not exist, reading fails.
    if answer.status_code in {405, 501}:
        return (InputFile(path),)
    if answer.is_error:
        raise PhaseFailed(reason=f"{path}: the server returned {answer.status_code}")
    length = answer.headers.get("content-length", "")
    ranges = answer.headers.get("accept-ranges", "").lower() == "bytes"
    size = int(length) if ranges and length.isdecimal() else None
    return (InputFile(path, size, _make_response_tag(answer)),)


def _read_by_http(portion: Portion) -> Iterator[bytes]:
    """Yield the bytes from the portion's offset. Resume after connection errors."""
    offset, failed = portion.offset, 0
    while True:
        try:
            for piece in _stream_response(portion.file, offset):
                offset, failed = offset + len(piece), 0
                yield piece
        except httpx.HTTPError as error:
            if failed == len(_RETRY_DELAYS_S) or None in {portion.file.size, portion.file.tag}:
                reason = f"{portion.file.path}: {str(error) or type(error).__name__}"
                raise PhaseFailed(reason=reason, offset=offset) from error
            _CLOCK.sleep(_RETRY_DELAYS_S[failed])
            failed += 1
        else:
            break
    if portion.file.size is not None and offset < portion.file.size:
        reason = f"{portion.file.path} ends at byte {offset} of {portion.file.size}"
        raise PhaseFailed(reason=reason, offset=offset)


def _stream_response(file: InputFile, offset: int) -> Iterator[bytes]:
    if file.size is not None and offset >= file.size:
        return
    with _open_response("GET", file.path, offset) as answer:
        if file.tag is not None and answer.is_success and _make_response_tag(answer) != file.tag:
            raise PhaseFailed(reason=f"{file.path} has changed since the load began")
        if answer.status_code != (206 if offset else 200):
            reason = f"{file.path}: the server returned {answer.status_code}"
            raise PhaseFailed(reason=reason, offset=offset)
        yield from answer.iter_raw()


def _open_response(
    method: str, url: str, offset: int = 0
) -> contextlib.AbstractContextManager[httpx.Response]:
    # Without `identity`, servers may compress the transfer, which would make offsets wrong.
    headers = {"Accept-Encoding": "identity"} | ({"Range": f"bytes={offset}-"} if offset else {})
    return httpx.stream(
        method,
        url,
        headers=headers,
        timeout=_TIMEOUT,
        follow_redirects=True,
        verify=_make_tls_context(),
    )


# Cache the context: reading the CA certificates takes as long as loading a small file.
_make_tls_context = functools.cache(httpx.create_ssl_context)


def _make_response_tag(response: httpx.Response) -> str | None:
    mark = response.headers.get("etag") or response.headers.get("last-modified")
    return str(mark) if mark else None


# --- Objects of stores.

_GLOB_CHARACTERS = re.compile(r"[*?[]")


def _find_objects(path: str, after: str = "") -> Sequence[InputFile]:
    """List the object at a URL, or those that a glob matches, sorted by name."""
    root, key = _split_url(path)
    with _translating_errors(path):
        return list_store_files(open_store(root), root, key, after.removeprefix(f"{root}/"))


def list_store_files(store: Store, root: str, key: str, after: str = "") -> Sequence[InputFile]:
    """List the objects of a store that a key or glob matches, sorted by name.

    `root` is the URL of the store. A glob leaves out the objects up to the path `after`.
    """
    if not _GLOB_CHARACTERS.search(key):
        info = store.head(key)
        return () if info is None else (_make_input_file(root, info),)
    parts = key.split("/")
    prefix = _GLOB_CHARACTERS.split(key)[0]
    return [
        _make_input_file(root, each)
        for each in store.list_ordered(prefix, after=after)
        if isinstance(each, ObjectInfo) and _matches_glob(parts, each.path.split("/"))
    ]


def _read_object(portion: Portion) -> Iterator[bytes]:
    """Yield the bytes from the portion's offset to the end of the object."""
    root, key = _split_url(portion.file.path)
    with _translating_errors(portion.file.path):
        yield from read_from_store(open_store(root), key, portion)


def read_from_store(store: Store, key: str, portion: Portion) -> Iterator[bytes]:
    """Yield the bytes of a portion from one store.

    Raises:
        ObjectChanged: If the object has changed since it was listed.
        ObjectMissing: If the object does not exist.
    """
    with contextlib.closing(store.open(key)) as opened:
        if portion.file.tag not in {None, _make_object_tag(opened.info)}:
            raise ObjectChanged(key=key)
        yield from opened.read_blocks(portion.offset)


def _split_url(path: str) -> tuple[str, str]:
    scheme, _, rest = path.partition("://")
    host, _, key = rest.partition("/")
    if not key:
        raise PhaseFailed(
            reason=f"{path} has no object key. For all objects, use {path.rstrip('/')}/*"
        )
    return f"{scheme}://{host}", key


def _matches_glob(pattern_parts: Sequence[str], path_parts: Sequence[str]) -> bool:
    """Return True on a match. Only a pattern that starts with a dot matches a name with one."""
    if not pattern_parts or not path_parts:
        return not pattern_parts and not path_parts
    first, rest = pattern_parts[0], pattern_parts[1:]
    if first == "**":
        shown = next(
            (n for n, name in enumerate(path_parts) if name.startswith(".")), len(path_parts)
        )
        return any(_matches_glob(rest, path_parts[n:]) for n in range(shown + 1))
    if path_parts[0].startswith(".") and not first.startswith("."):
        return False
    return fnmatch.fnmatchcase(path_parts[0], first) and _matches_glob(rest, path_parts[1:])


def _make_input_file(root: str, info: ObjectInfo) -> InputFile:
    return InputFile(f"{root}/{info.path}", info.size, _make_object_tag(info), info.modified_at)


def _make_object_tag(info: ObjectInfo) -> str:
    return info.etag or f"{info.modified_at.timestamp():.6f}-{info.size:x}"


@contextlib.contextmanager
def _translating_errors(path: str) -> Iterator[None]:
    try:
        yield
    except PhaseFailed:
        raise
    except ObjectChanged as error:
        raise PhaseFailed(reason=f"{path} has changed since the load began") from error
    except ObjectMissing as error:
        raise PhaseFailed(reason=f"{path} was deleted") from error
    except SnowmeltError as error:
        # Prefer the field without the object's name, because the path already precedes the text.
        reason = error.fields.get("cause") or error.fields.get("reason", error)
        raise PhaseFailed(reason=f"{path}: {reason}") from error
