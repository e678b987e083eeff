"""How inputs are cut into portions, one for each task."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

from snowmelt.load.portion import Portion

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from snowmelt.load.portion import InputFile

SMALLEST_PORTION = 64 * 1024 * 1024


def cut(
    files: Iterable[InputFile],
    *,
    tasks: int,
    splittable: Callable[[InputFile], bool],
    smallest: int = SMALLEST_PORTION,
) -> tuple[Portion, ...]:
    """Cut files into portions of like size, about one for each of `tasks` that run at a time.

    A file that is not splittable (filtered, or its parser must see its beginning), or of unknown
    size, is one portion. None is smaller than `smallest` bytes unless its file is. Portions come
    with the largest first, so that no task begins with a large one when the others are done;
    those of unknown size are the very first.
    """
    listed = tuple(files)
    total = sum(file.size or 0 for file in listed)
    share = max(-(-total // max(tasks, 1)), 1)
    portions = [
        portion
        for file in listed
        for portion in (_parts(file, share, smallest) if splittable(file) else (Portion(file),))
    ]
    return tuple(sorted(portions, key=_order))


def _parts(file: InputFile, share: int, smallest: int) -> Iterator[Portion]:
    size = file.size or 0
    count = min(-(-size // share), size // max(smallest, 1))
    if count <= 1:
        yield Portion(file)
        return
    bounds = [size * number // count for number in range(count + 1)]
    for start, end in itertools.pairwise(bounds):
        yield Portion(file, start, end - start)


def _order(portion: Portion) -> tuple[bool, int]:
    size = portion.file.size if portion.size is None else portion.size
    return size is not None, -(size or 0)
