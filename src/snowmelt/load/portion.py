"""Input files, and the portions into which they are split, one per task."""

from __future__ import annotations

import datetime as dt
import itertools
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class InputFile:
    """One input: its path, size in bytes, version tag and time of its last change, each None if unknown."""

    path: str
    size: int | None = None
    tag: str | None = None
    modified_at: dt.datetime | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True)
class Portion:
    """Byte range of one file, from `offset`. Picklable.

    A `size` of None means up to the end. A record belongs to the portion that contains the byte
    before it. The first record of a file belongs to the first portion. Therefore, a parser that
    starts at an offset above zero first skips to the end of a record. A parser whose range ends
    before the file's end continues to the first record end after its range.
    """

    file: InputFile
    offset: int = 0
    size: int | None = None

    @property
    def is_first(self) -> bool:
        """True if the portion starts at the beginning of the file."""
        return self.offset == 0

    @property
    def is_whole(self) -> bool:
        """True if the portion is the whole file."""
        return self.offset == 0 and self.size is None


MIN_PORTION_BYTES = 64 * 1024 * 1024


def split_into_portions(
    files: Iterable[InputFile],
    *,
    parallelism: int,
    is_splittable: Callable[[InputFile], bool],
    min_portion_bytes: int = MIN_PORTION_BYTES,
) -> tuple[Portion, ...]:
    """Split files into portions of similar size, about one for each of `parallelism` concurrent tasks.

    A file is one portion if its size is unknown, if it is filtered, or if its parser must start at
    the beginning. Portions have at least `min_portion_bytes`, unless their file is smaller.
    Portions of unknown size come first, then the largest, so that large portions do not start last.
    """
    listed = tuple(files)
    total = sum(file.size or 0 for file in listed)
    share = max(-(-total // max(parallelism, 1)), 1)
    portions = [
        portion
        for file in listed
        for portion in (
            _split_file(file, share, min_portion_bytes) if is_splittable(file) else (Portion(file),)
        )
    ]
    return tuple(sorted(portions, key=_largest_first_sort_key))


def _split_file(file: InputFile, target_bytes: int, min_portion_bytes: int) -> Iterator[Portion]:
    size = file.size or 0
    count = min(-(-size // target_bytes), size // max(min_portion_bytes, 1))
    if count <= 1:
        yield Portion(file)
        return
    bounds = [size * number // count for number in range(count + 1)]
    for start, end in itertools.pairwise(bounds):
        yield Portion(file, start, end - start)


def _largest_first_sort_key(portion: Portion) -> tuple[bool, int]:
    size = portion.file.size if portion.size is None else portion.size
    return size is not None, -(size or 0)
