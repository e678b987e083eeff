"""What a parser hands on: rows by column number, and rejected records."""

# ruff: noqa: N802, N815 - the SDK's names

from __future__ import annotations

from snowmelt.load.hosting.vertica.buffers import BufferMisused
from snowmelt.load.hosting.vertica.columns import SizedColumnTypes

_SPACE = 65_536


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

    def __init__(
        self, types: SizedColumnTypes | None = None, names: list[str] | None = None
    ) -> None:
        self._types = types or SizedColumnTypes()
        # Rows are kept under the host's names for the columns.
        self._names = names or [name for name, _ in self._types.pairs()]
        self._row: dict[str, object] = {}
        self._rows: list[dict[str, object]] = []
        self._total = 0

    def getNumCols(self) -> int:
        """Return how many columns there are."""
        return len(self._names)

    def getTotalRowCount(self) -> int:
        """Return how many rows were finished in this stream."""
        return self._total + len(self._rows)

    def getTypeMetadata(self) -> SizedColumnTypes:
        """Return names and types of the columns."""
        return self._types

    getTypeMetaData = getTypeMetadata

    def next(self) -> bool:
        """Finish the row; tell whether there is space for another before OUTPUT_NEEDED."""
        self._rows.append(self._row)
        self._row = {}
        return len(self._rows) < _SPACE

    def setInt(self, idx: int, value: object) -> None:
        """Set a column of the row; all setters take what the column's type takes, and None."""
        if idx < 0:
            raise BufferMisused(f"there is no column {idx}; they are counted from 0")
        try:
            self._row[self._names[idx]] = value
        except IndexError:
            raise BufferMisused(
                f"there is no column {idx}; there are {len(self._names)}, counted from 0"
            ) from None

    setBinary = setBool = setDate = setFloat = setInterval = setIntervalYM = setInt
    setNumeric = setString = setTime = setTimeTz = setTimestamp = setTimestampTz = setInt

    def setNull(self, idx: int) -> None:
        """Set a column of the row to NULL."""
        self.setInt(idx, None)

    @property
    def waiting(self) -> int:
        """How many rows were finished and not taken, for the host."""
        return len(self._rows)

    def take(self) -> list[dict[str, object]]:
        """Return the finished rows, for the host."""
        rows, self._rows = self._rows, []
        self._total += len(rows)
        return rows

    def drop_row(self) -> bool:
        """Forget the row that was begun; tell whether there was one, for the host."""
        begun, self._row = bool(self._row), {}
        return begun
