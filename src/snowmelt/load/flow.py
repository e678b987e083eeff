"""What one step of a load hands to the next: counted, placed when it fails, ended by a cancel."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Generic, TypeVar, cast

import numpy as np
import pyarrow as pa

from snowmelt.errors import InternalError, LoadCancelled, LoadFailed, PhaseFailed
from snowmelt.load.hosting import progress

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator

    from snowmelt.load.placing import Placer
    from snowmelt.load.records import Records
    from snowmelt.load.steps import Step

Item = TypeVar("Item")

_END = object()


class Flow(Generic[Item]):
    """The items of one step; `handed` counts the bytes in them, `ended` tells that all came."""

    def __init__(
        self,
        step: Step,
        items: Iterator[Item],
        placer: Placer,
        before: Flow[object] | None,
        *,
        of_user: bool = False,
    ) -> None:
        """Take the items of a step.

        Args:
            step: The step.
            items: What it yields.
            placer: Says where a failure is.
            before: The flow that the step reads, None for a source.
            of_user: The step is code of a user, with its limits.
        """
        self.handed = 0
        self.ended = False
        self._step = step
        self._items = items
        self._placer = placer
        self._before = before
        self._label = progress.label_of(str(step)) if of_user else b""
        self._most_output = progress.limits().most_output if of_user and before else None
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
        items = iter(self._items)
        try:
            while (item := self._next(items)) is not _END:
                self._placer.go_on()
                self.handed += _measured(item)
                self._check_output()
                yield cast("Item", item)
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

    def _next(self, items: Iterator[Item]) -> Item | object:
        ran = progress.enter(self._label)
        try:
            return next(items, _END)
        except (GeneratorExit, KeyboardInterrupt, SystemExit) as error:
            # In a process of their own they come from user code, not from Ctrl-C.
            if not progress.is_isolated():
                raise
            self._placer.go_on()
            raise self._failed(RuntimeError(f"it raised {type(error).__name__}")) from error
        finally:
            progress.enter(ran)

    def _check_output(self) -> None:
        most = self._most_output
        if most is None or self._before is None:
            return
        limit = most(self._before.handed)
        if self.handed > limit:
            raise PhaseFailed(
                reason=f"it has emitted {self.handed:,} bytes for {self._before.handed:,} bytes of "
                f"input, more than the limit of {limit:,} (`user_code_output_bytes`)"
            )

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
