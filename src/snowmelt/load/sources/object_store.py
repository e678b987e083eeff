"""Objects of stores by URL or glob, such as `s3://bucket/path`."""

from __future__ import annotations

import contextlib
import fnmatch
import re
from collections.abc import Iterator, Sequence

from snowmelt.errors import ObjectChanged, ObjectMissing, PhaseFailed, SnowmeltError
from snowmelt.load.portion import InputFile, Portion
from snowmelt.storage.store import ObjectInfo, Store
from snowmelt.storage.store_factory import open_store

_GLOB_CHARACTERS = re.compile(r"[*?[]")


def find(path: str) -> Sequence[InputFile]:
    """List the object at a URL, or those that a glob matches, sorted by name.

    Raises:
        PhaseFailed: If the store cannot be opened, or fails.
    """
    root, key = _split_url(path)
    with _translating_errors(path):
        return list_store_files(open_store(root), root, key)


def list_store_files(store: Store, root: str, key: str) -> Sequence[InputFile]:
    """List the objects of a store that a key or glob matches, sorted by name.

    `root` is the URL of the store.
    """
    if not _GLOB_CHARACTERS.search(key):
        info = store.head(key)
        return () if info is None else (_make_input_file(root, info),)
    parts = key.split("/")
    fixed = next(n for n, part in enumerate(parts) if _GLOB_CHARACTERS.search(part))
    found = [
        info
        for info in store.list("/".join(parts[:fixed]))
        if _matches_glob(parts, info.path.split("/"))
    ]
    return [_make_input_file(root, info) for info in sorted(found, key=lambda info: info.path)]


def read(portion: Portion) -> Iterator[bytes]:
    """Yield the bytes from the portion's offset to the end of the object.

    Raises:
        PhaseFailed: If the object cannot be read, or has changed since it was listed.
    """
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
        if portion.file.tag not in {None, _make_version_tag(opened.info)}:
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
    """Return True on a match. As in local globs, only `.…` matches names that start with a dot."""
    if not pattern_parts or not path_parts:
        return not pattern_parts and not path_parts
    first, rest = pattern_parts[0], pattern_parts[1:]
    if first == "**":
        shown = next((n for n, name in enumerate(path_parts) if name[0] == "."), len(path_parts))
        return any(_matches_glob(rest, path_parts[n:]) for n in range(shown + 1))
    if path_parts[0].startswith(".") and not first.startswith("."):
        return False
    return fnmatch.fnmatchcase(path_parts[0], first) and _matches_glob(rest, path_parts[1:])


def _make_input_file(root: str, info: ObjectInfo) -> InputFile:
    return InputFile(f"{root}/{info.path}", info.size, _make_version_tag(info))


def _make_version_tag(info: ObjectInfo) -> str:
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
        # Prefer the field without the object's name, because the path precedes it.
        reason = error.fields.get("cause") or error.fields.get("reason", error)
        raise PhaseFailed(reason=f"{path}: {reason}") from error
