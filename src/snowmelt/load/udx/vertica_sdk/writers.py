"""Output of user-defined parsers: rows by column number, and rejected records."""

# ruff: noqa: N802, N815 - the SDK's names

from __future__ import annotations

from snowmelt.load.udx.vertica_sdk.buffers import BufferMisused
from snowmelt.load.udx.vertica_sdk.types import SizedColumnTypes

_MAX_PENDING_ROWS = 65_536


class RejectedRecord:
    """A record that becomes no row, and why.

    Flavours of the SDK disagree on the order; here it is reason, data, terminator, and `length`
    and `offset` may be given by name as the others have them.
    """

    def __init__(
        self,
        reason: str = "",
        data: bytes | str = b"",
        terminator: bytes | str = "\n",
        *,
        length: int | None = None,
        offset: int = 0,
    ) -> None:
        end = None if length is None else offset + length
        self._reason = str(reason)
        self._data = data[offset:end]
        self._terminator = terminator

    def getData(self) -> bytes | str:
        """Return the record."""
        return self._data

    def getReason(self) -> str:
        """Return why it was rejected."""
        return self._reason

    def getTerminator(self) -> bytes | str:
        """Return what ended it."""
        return self._terminator


class StreamWriter:
    """Takes rows, column by column, counted from 0; a column that is not set is NULL."""

    def __init__(self, types: SizedColumnTypes | None = None) -> None:
        self._types = types or SizedColumnTypes()
        self._width = self._types.getColumnCount()
        # By number in a dictionary, so that one below zero is refused.
        self._columns: dict[int, list[object]] = {place: [] for place in range(self._width)}
        self._finished = 0
        self._total = 0

    def getNumCols(self) -> int:
        """Return how many columns there are."""
        return self._width

    def getTotalRowCount(self) -> int:
        """Return how many rows were finished in this stream."""
        return self._total + self._finished

    def getTypeMetadata(self) -> SizedColumnTypes:
        """Return names and types of the columns."""
        return self._types

    getTypeMetaData = getTypeMetadata

    def next(self) -> bool:
        """Finish the row; tell whether there is space for another before OUTPUT_NEEDED."""
        self._finished += 1
        return self._finished < _MAX_PENDING_ROWS

    def setInt(self, idx: int, value: object) -> None:
        """Set a column of the row; all setters take what the column's type takes, and None."""
        try:
            column = self._columns[idx]
        except KeyError:
            raise BufferMisused(
                f"there is no column {idx}; there are {self._width}, counted from 0"
            ) from None
        if len(column) == self._finished:
            column.append(value)
        else:
            self._pad_column(column)[self._finished :] = [value]

    setBool = setDate = setFloat = setInterval = setIntervalYM = setInt
    setNumeric = setString = setTime = setTimeTz = setTimestamp = setTimestampTz = setInt

    def setBinary(self, idx: int, value: object) -> None:
        """Set a column of the row to bytes, which are copied if they may change."""
        if isinstance(value, (bytearray, memoryview)):
            value = bytes(value)
        self.setInt(idx, value)

    def setNull(self, idx: int) -> None:
        """Set a column of the row to NULL."""
        self.setInt(idx, None)

    def _pad_column(self, column: list[object]) -> list[object]:
        """Return a column with NULL for the finished rows that did not set it."""
        column.extend([None] * (self._finished - len(column)))
        return column

    @property
    def pending_rows(self) -> int:
        """How many rows were finished and not taken, for the host."""
        return self._finished

    def pop_rows(self) -> list[list[object]]:
        """Return the columns of the finished rows, for the host; a row that was begun stays."""
        columns = [self._pad_column(column) for column in self._columns.values()]
        begun = [column[self._finished :] for column in columns]
        for column in columns:
            del column[self._finished :]
        self._columns = dict(enumerate(begun))
        self._total += self._finished
        self._finished = 0
        return columns

    def discard_open_row(self) -> bool:
        """Forget the row that was begun; tell whether there was one, for the host."""
        begun = False
        for column in self._columns.values():
            begun |= len(column) > self._finished
            del column[self._finished :]
        return begun
