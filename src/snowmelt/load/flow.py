"""What one step of a load hands to the next: counted, placed when it fails, ended by a cancel."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Generic, TypeVar

import numpy as np
import pyarrow as pa

from snowmelt.errors import InternalError, LoadCancelled, LoadFailed

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator

    from snowmelt.load.placing import Placer
    from snowmelt.load.records import Records
    from snowmelt.load.steps import Step

Item = TypeVar("Item")


class Flow(Generic[Item]):
    """The items of one step; `handed` counts the bytes in them, `ended` tells that all came."""

    def __init__(
        self, step: Step, items: Iterator[Item], placer: Placer, before: Flow[object] | None
    ) -> None:
        self.handed = 0
        self.ended = False
        self._step = step
        self._items = items
        self._placer = placer
        self._before = before
        self._watched = self._watch()

    @property
    def is_first(self) -> bool:
        """Whether it is the source's."""
        return self._before is None

    def __iter__(self) -> Iterator[Item]:
        """Yield the items.

        Raises:
            LoadFailed: The step failed, or one before it.
            LoadCancelled: The load was cancelled.
        """
        return self._watched

    def close(self) -> None:
        """Close the step; again is harmless."""
        # A thread of Arrow may still be inside; it finds the load cancelled.
        with suppress(ValueError):
            self._watched.close()

    def _watch(self) -> Generator[Item]:
        try:
            for item in self._items:
                self._placer.go_on()
                self.handed += _measured(item)
                yield item
            self.ended = True
        except (LoadFailed, LoadCancelled, InternalError):
            raise
        except Exception as error:
            self._placer.go_on()
            raise self._failed(error) from error
        finally:
            close = getattr(self._items, "close", None)
            if close is not None:
                close()

    def _failed(self, error: Exception) -> LoadFailed:
        before = self._before
        read = self.handed if before is None else before.handed
        of_file = before is None or before.is_first
        return self._placer.failed(self._step, error, read, of_file=of_file)


def size_of_records(records: Records) -> int:
    """Return the number of bytes in a batch of records."""
    if not len(records):
        return 0
    offsets = np.frombuffer(records.buffers()[1], dtype=np.int32)
    return int(offsets[records.offset + len(records)] - offsets[records.offset])


def stream_of(records: Iterator[Records]) -> Iterator[bytes]:
    """Yield the bytes of records without their ends."""
    for batch in records:
        if size := size_of_records(batch):
            offsets = np.frombuffer(batch.buffers()[1], dtype=np.int32)
            start = int(offsets[batch.offset])
            yield batch.buffers()[2].slice(start, size).to_pybytes()


def _measured(item: object) -> int:
    if isinstance(item, bytes):
        return len(item)
    if isinstance(item, pa.BinaryArray):
        if item.null_count:
            raise TypeError("a record is null; a record without bytes is empty")
        return size_of_records(item)
    if hasattr(item, "rows"):
        return 0
    raise TypeError(f"it hands on {type(item).__name__}; bytes or records are expected")
