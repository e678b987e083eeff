"""Input files, and the portions into which they are split, one per task."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class InputFile:
    """One input: its address, bytes (None where that is not known before), and its change mark."""

    path: str
    size: int | None = None
    tag: str | None = None


@dataclass(frozen=True, slots=True)
class Portion:
    """Bytes of one file from `offset` on; picklable.

    `size` is None for "to the end". A record belongs to the portion in which the byte before it
    lies, the first record of a file to the first portion: whoever starts at an offset above zero
    drops everything up to and including the first end of a record, and whoever ends before the
    end of the file reads on through the first end of a record behind its own bytes.
    """

    file: InputFile
    offset: int = 0
    size: int | None = None

    @property
    def is_first(self) -> bool:
        """Whether the file begins here."""
        return self.offset == 0

    @property
    def is_whole(self) -> bool:
        """Whether it is the whole file."""
        return self.offset == 0 and self.size is None


MIN_PORTION_BYTES = 64 * 1024 * 1024


def split_into_portions(
    files: Iterable[InputFile],
    *,
    parallelism: int,
    is_splittable: Callable[[InputFile], bool],
    min_portion_bytes: int = MIN_PORTION_BYTES,
) -> tuple[Portion, ...]:
    """Cut files into portions of like size, about one for each of `parallelism` that run at a time.

    A file that is not splittable (filtered, or its parser must see its beginning), or of unknown
    size, is one portion. None is smaller than `min_portion_bytes` bytes unless its file is. Portions come
    with the largest first, so that no task begins with a large one when the others are done;
    those of unknown size are the very first.
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
