"""Listings in the order of bytes, with groups by a delimiter.

Text in Python compares by code points, which is the order of its UTF-8 bytes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from snowmelt.storage.store import ObjectInfo

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence


def scan_tree(
    children: Callable[[str], Sequence[ObjectInfo | str]],
    prefix: str,
    *,
    after: str,
    delimiter: str,
) -> Iterator[ObjectInfo | str]:
    """Walk a tree of folders in the order of their objects' paths, past what is not asked for.

    Args:
        children: Returns objects, and paths of subfolders (which end in `/`), of a folder.
        prefix: Text that paths begin with.
        after: Entries up to and with this one are left out.
        delimiter: Groups paths beyond the prefix when not empty.
    """
    if delimiter == "/":
        return _one_level(children, prefix, after)
    found = _walk(children, _folder_of(prefix), prefix, after)
    return grouped(found, prefix, after=after, delimiter=delimiter)


def grouped(
    objects: Iterable[ObjectInfo], prefix: str, *, after: str, delimiter: str
) -> Iterator[ObjectInfo | str]:
    """Replace neighbours with the same text up to a delimiter by that text, once."""
    last = after
    for each in objects:
        group = group_of(each.path, prefix, delimiter)
        if group is None:
            yield each
        elif group != last:
            last = group
            yield group


def group_of(path: str, prefix: str, delimiter: str) -> str | None:
    """Return the path up to and with the first delimiter beyond the prefix, None without one."""
    at = path.find(delimiter, len(prefix)) if delimiter else -1
    return None if at < 0 else path[: at + len(delimiter)]


def _one_level(
    children: Callable[[str], Sequence[ObjectInfo | str]], prefix: str, after: str
) -> Iterator[ObjectInfo | str]:
    for each in _sorted(children(_folder_of(prefix))):
        path = _path(each)
        if not path.startswith(prefix):
            continue
        if isinstance(each, ObjectInfo):
            if path > after:
                yield each
        elif after != path and any(True for _ in _walk(children, path, prefix, after)):
            yield path


def _walk(
    children: Callable[[str], Sequence[ObjectInfo | str]], folder: str, prefix: str, after: str
) -> Iterator[ObjectInfo]:
    for each in _sorted(children(folder)):
        if not _path(each).startswith(prefix):
            continue
        if isinstance(each, ObjectInfo):
            if each.path > after:
                yield each
        elif each > after or after.startswith(each):
            yield from _walk(children, each, prefix, after)


def _sorted(children: Sequence[ObjectInfo | str]) -> list[ObjectInfo | str]:
    return sorted(children, key=_path)


def _path(each: ObjectInfo | str) -> str:
    return each.path if isinstance(each, ObjectInfo) else each


def _folder_of(prefix: str) -> str:
    return prefix[: prefix.rfind("/") + 1]
