"""Convert request bodies to columns of the table, with the conversion rules of the SDK.

The compiled reader is loaded in the background, because importing numba takes 0.5 s, and the first
compilation after an installation several seconds. Services that receive few rows do not load it.
Values of BINARY columns that may be base64 are rejected if hexadecimal digits are expected.
"""

from __future__ import annotations

import logging
import re
import threading
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import TYPE_CHECKING
from zoneinfo import ZoneInfo

import numpy as np
import pyarrow as pa

from snowmelt.catalog.model.records import TableRecord
from snowmelt.catalog.sql.pipe_copy import PipeCopy
from snowmelt.clock import Clock
from snowmelt.errors import InvalidRow, InvalidValue
from snowmelt.ingest.rows.body import ParsedBody, count_nonblank_lines, parse_json_lines
from snowmelt.ingest.rows.columnar_reader import read_field_columns, read_table_columns
from snowmelt.ingest.rows.field_names import (
    parse_scalar_fields,
    quote_field_names,
    resolve_field_case,
)
from snowmelt.ingest.rows.pipe_evaluator import PipeEvaluator
from snowmelt.ingest.rows.pipe_vector_evaluator import VectorPipeEvaluator
from snowmelt.ingest.rows.schema_evolution import MissingColumns, infer_missing_columns
from snowmelt.schema.conversion.default_values import has_defaults
from snowmelt.schema.conversion.row_converter import RowConversion, RowConverter
from snowmelt.schema.error_table import ErrorRow, to_error_row
from snowmelt.schema.types import (
    Column,
    Compatibility,
    LogicalType,
    TableSchema,
    to_internal_name,
    wrong_value_error,
)

if TYPE_CHECKING:
    from snowmelt.ingest.rows.columnar_reader import KernelReader

_MAX_CONVERTERS = 64
_MAX_RETAINED_ERRORS = 1_000
# Columnar conversion takes at least 1 to 2 ms, so it is slower for small bodies.
_MIN_COLUMNAR_BYTES = 24 * 1024
# Limit of a batch, because the response to one body waits for all bodies of its batch.
_MAX_BATCH_BYTES = 8 << 20
# If more than a quarter of the rows need the row evaluator, it evaluates all rows.
_MAX_FALLBACK_DIVISOR = 4


@dataclass(frozen=True, slots=True)
class RowRejection(ErrorRow):
    """A rejected row with its index in the request, from 0.

    If the table has an error table, `row` is the line as received.
    """

    number: int


@dataclass(frozen=True, slots=True)
class ConvertedRows:
    """Rows of a request in chunk form, their approximate size, and the number of rejected rows.

    `rejected` has the first 999 rejections and the last one, or all of them if the table has an
    error table. `missing_columns` are the columns that schema evolution would have to add for these
    rows.
    """

    table: pa.Table
    size_bytes: int
    parsed_count: int
    rejected_count: int
    rejected: tuple[RowRejection, ...]
    missing_columns: MissingColumns | None = None

    def with_evolution_error(self, reason: str) -> ConvertedRows:
        """Return a copy in which errors about missing columns explain why these were not added."""
        refused = tuple(
            replace(each, reason=f"{each.reason} {reason}")
            if each.code == InvalidRow.code
            else each
            for each in self.rejected
        )
        return replace(self, rejected=refused)


class ConverterPool:
    """Converters for each thread and schema version of a table."""

    def __init__(self, zone: ZoneInfo, clock: Clock) -> None:
        self._zone = zone
        self._clock = clock
        self._thread_local = threading.local()
        self.kernel_loader = KernelLoader()

    def convert(
        self,
        data: bytes,
        table: TableRecord,
        copy: PipeCopy | None,
        *,
        from_sdk: bool = False,
        reject_ambiguous_bytes: bool = False,
    ) -> ConvertedRows:
        """Convert a body of newline-delimited JSON. The result excludes rejected rows.

        Args:
            data: The body.
            table: The target table.
            copy: The pipe's transformation, or None.
            from_sdk: Whether the official SDK wrote the rows. A text may then represent a binary
                value.
            reject_ambiguous_bytes: Reject values that may be base64, because the client may write
                base64.
        """
        copy = _drop_trivial_copy(copy)
        converter = self._get_converter(table, _choose_compatibility(copy, from_sdk=from_sdk))
        if len(data) >= _MIN_COLUMNAR_BYTES:
            at_once = self._convert_by_columns(data, table.schema, copy, converter)
            if (
                at_once is not None
                and not at_once.errors
                and (
                    not reject_ambiguous_bytes or has_no_binary_values(at_once.table, table.schema)
                )
            ):
                return _make_fully_converted(at_once.table, at_once.size_bytes)
        return self._convert_by_rows(
            data, table, copy, converter, reject_ambiguous_bytes=reject_ambiguous_bytes
        )

    def convert_all(
        self,
        bodies: Sequence[bytes],
        table: TableRecord,
        copy: PipeCopy | None,
        *,
        from_sdk: bool = False,
    ) -> list[ConvertedRows]:
        """Apply `convert` to each body. Small bodies are converted together by columns."""
        size = sum(map(len, bodies))
        if size < _MIN_COLUMNAR_BYTES or len(bodies) == 1 or has_defaults(table.schema):
            return [self.convert(data, table, copy, from_sdk=from_sdk) for data in bodies]
        found = None
        if size <= _MAX_BATCH_BYTES:
            found = self._convert_together(bodies, table, copy, from_sdk=from_sdk)
        if found is not None:
            return found
        # Bisect to find the body that cannot be read with the others.
        middle = len(bodies) // 2
        return [
            *self.convert_all(bodies[:middle], table, copy, from_sdk=from_sdk),
            *self.convert_all(bodies[middle:], table, copy, from_sdk=from_sdk),
        ]

    def _convert_together(
        self,
        bodies: Sequence[bytes],
        table: TableRecord,
        copy: PipeCopy | None,
        *,
        from_sdk: bool,
    ) -> list[ConvertedRows] | None:
        """Convert bodies together. Return None if the result could differ from that of `convert`."""
        if not all(body.startswith(b"{") for body in bodies):
            return None
        counts = list(map(count_nonblank_lines, bodies))
        ends = list(accumulate(counts))
        pipe = _drop_trivial_copy(copy)
        converter = self._get_converter(table, _choose_compatibility(pipe, from_sdk=from_sdk))
        found = self._convert_by_columns(b"\n".join(bodies), table.schema, pipe, converter)
        if found is None or found.row_count + len(found.errors) != ends[-1]:
            return None
        bad = [error.row_index for error in found.errors]
        converted: list[ConvertedRows] = []
        start = 0
        for data, count, end in zip(bodies, counts, ends, strict=True):
            good = count - (bisect_left(bad, end) - bisect_left(bad, end - count))
            if good == count:
                size = found.size_bytes * count // ends[-1]
                converted.append(_make_fully_converted(found.table.slice(start, count), size))
            else:
                # The row-by-row path creates the rejections, and the rows for the error table.
                converted.append(self.convert(data, table, copy, from_sdk=from_sdk))
            start += good
        return converted

    def _convert_by_columns(
        self,
        data: bytes,
        schema: TableSchema,
        copy: PipeCopy | None,
        converter: RowConverter,
    ) -> RowConversion | None:
        """Convert the rows by columns. Return None if row-by-row conversion could differ."""
        if copy is not None and copy.items is None:
            return None
        # Columns of fields do not distinguish between null and missing fields.
        if copy is None and has_defaults(schema):
            return None
        plain = self.kernel_loader.get_reader(len(data))
        if copy is None:
            columns = read_table_columns(data, schema, plain)
            return None if columns is None else converter.convert_arrow_table(columns)
        found = self._evaluate_pipe_by_columns(data, schema, copy, converter, plain)
        return None if found is None else RowConversion(found, found.num_rows, found.nbytes, [])

    def _convert_by_rows(
        self,
        data: bytes,
        table: TableRecord,
        copy: PipeCopy | None,
        converter: RowConverter,
        *,
        reject_ambiguous_bytes: bool = False,
    ) -> ConvertedRows:
        lines = parse_json_lines(data)
        if copy is None:
            rows = resolve_field_case(lines.rows, table.schema)
        elif copy.items is None:
            rows = quote_field_names(lines.rows)
        else:
            lines = self._evaluate_pipe_by_rows(lines, table.schema, copy)
            rows = lines.rows
        computed = copy is not None and copy.items is not None
        doubted = (
            find_ambiguous_bytes(rows, table.schema, from_pipe=computed)
            if reject_ambiguous_bytes
            else {}
        )
        if doubted:
            rows = [row for number, row in enumerate(rows) if number not in doubted]
        converted = converter.convert(rows)
        refused = [
            RowRejection(error.row_index, told.reason, error.row, told.code, told.column)
            for error in converted.errors
            for told in [to_error_row(error)]
        ]
        if doubted:
            refused = _add_ambiguous_rows(refused, doubted)
        if lines.errors_by_line:
            refused = merge_parse_errors(refused, lines.errors_by_line)
        wanted = None
        if table.schema_evolution and copy is None and converted.errors:
            wanted = infer_missing_columns(converted.errors, table.schema)
        if table.error_table_id is not None:
            kept = _attach_source_lines(refused, data) if refused else ()
        elif len(refused) <= _MAX_RETAINED_ERRORS:
            kept = tuple(refused)
        else:
            kept = (*refused[:999], refused[-1])
        return ConvertedRows(
            converted.table, converted.size_bytes, lines.line_count, len(refused), kept, wanted
        )

    def _evaluate_pipe_by_columns(
        self,
        data: bytes,
        schema: TableSchema,
        copy: PipeCopy,
        converter: RowConverter,
        kernel_reader: KernelReader | None,
    ) -> pa.Table | None:
        """Evaluate a pipe by columns, and the remaining rows one by one.

        Return None if a row is rejected, or if more than a quarter of the rows need the row
        evaluator.
        """
        rows = read_field_columns(data, kernel_reader)
        pipe = VectorPipeEvaluator(copy, schema, self._zone, self._clock)
        made = None if rows is None else pipe.evaluate(rows)
        if made is None:
            return None
        doubtful = np.flatnonzero(made.fallback_rows)
        if len(doubtful) * _MAX_FALLBACK_DIVISOR > len(made.fallback_rows):
            return None
        sure = np.flatnonzero(~made.fallback_rows)
        table = made.table if not len(doubtful) else made.table.take(sure)
        at_once = converter.convert_arrow_table(table)
        if at_once.errors:
            return None
        if not len(doubtful):
            return at_once.table
        given = [line for line in data.split(b"\n") if line.strip()]
        lines = parse_json_lines(b"\n".join(given[place] for place in doubtful))
        rest = converter.convert(self._evaluate_pipe_by_rows(lines, schema, copy).rows)
        if len(rest.table) < len(doubtful):
            return None
        order = np.argsort(np.concatenate((sure, doubtful)))
        return pa.concat_tables((at_once.table, rest.table)).take(order)

    def _evaluate_pipe_by_rows(
        self, lines: ParsedBody, schema: TableSchema, copy: PipeCopy
    ) -> ParsedBody:
        made, failed = PipeEvaluator(copy, schema, self._zone, self._clock).evaluate_rows(
            lines.rows
        )
        if not failed:
            return ParsedBody(made, lines.errors_by_line)
        refused = [RowRejection(number, reason, None) for number, reason in failed.items()]
        both = {
            each.number: each.reason for each in merge_parse_errors(refused, lines.errors_by_line)
        }
        return ParsedBody(made, both)

    def _get_converter(self, table: TableRecord, rules: Compatibility) -> RowConverter:
        known: dict[tuple[int, int, Compatibility], RowConverter] | None
        known = getattr(self._thread_local, "known", None)
        if known is None:
            known = self._thread_local.known = {}
        key = (table.table_id, table.schema.version, rules)
        found = known.get(key)
        if found is None:
            if len(known) >= _MAX_CONVERTERS:
                known.clear()
            found = known[key] = RowConverter(
                table.schema, zone=self._zone, compatibility=rules, get_now=self._clock.now
            )
        return found


def _choose_compatibility(copy: PipeCopy | None, *, from_sdk: bool) -> Compatibility:
    # A text that a pipe computes is not the SDK's representation of bytes.
    is_sent = from_sdk and (copy is None or copy.items is None)
    return Compatibility.SDK_ROWS if is_sent else Compatibility.STRICT


def _drop_trivial_copy(copy: PipeCopy | None) -> PipeCopy | None:
    """Return None for a pipe that computes nothing and matches names case-insensitively."""
    is_plain = copy is not None and copy.items is None and not copy.case_sensitive
    return None if is_plain else copy


def _make_fully_converted(table: pa.Table, size_bytes: int) -> ConvertedRows:
    return ConvertedRows(table, size_bytes, table.num_rows, 0, ())


def merge_parse_errors(
    rejected: list[RowRejection], errors_by_line: dict[int, str]
) -> list[RowRejection]:
    """Add the errors of unreadable lines, which the converter did not see, and renumber its rejections."""
    found: list[RowRejection] = []
    skipped = sorted(errors_by_line)
    passed = 0
    for each in rejected:
        while passed < len(skipped) and skipped[passed] <= each.number + passed:
            passed += 1
        found.append(replace(each, number=each.number + passed))
    found += [RowRejection(number, reason, None) for number, reason in errors_by_line.items()]
    return sorted(found, key=lambda each: each.number)


def _add_ambiguous_rows(
    rejected: list[RowRejection], ambiguous: Mapping[int, InvalidValue]
) -> list[RowRejection]:
    told = merge_parse_errors(rejected, {number: str(error) for number, error in ambiguous.items()})
    return [
        replace(each, code=error.code, column=str(error.fields["column"]))
        if (error := ambiguous.get(each.number)) is not None
        else each
        for each in told
    ]


def _attach_source_lines(rejected: list[RowRejection], data: bytes) -> tuple[RowRejection, ...]:
    lines = [line for line in data.split(b"\n") if line.strip()]
    return tuple(
        replace(each, row=lines[each.number].decode("utf-8", "backslashreplace"))
        for each in rejected
    )


_log = logging.getLogger("snowmelt.ingest")
_MIN_KERNEL_BYTES = 200_000
# The line has a number and a text, so that it runs both kernels.
_WARMUP_LINE = b'{"a":1,"b":""}\n'
_WARMUP_SCHEMA = TableSchema(
    1, (Column("A", LogicalType.FIXED, 1, precision=1, scale=0), Column("B", LogicalType.TEXT, 2))
)


class KernelLoader:
    """Loads the compiled reader in the background. Thread-safe."""

    def __init__(self) -> None:
        self._kernel_reader: KernelReader | None = None
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None

    def get_reader(self, body_bytes: int) -> KernelReader | None:
        """Return the reader if it is loaded. The first large body starts loading it."""
        if self._kernel_reader is None and body_bytes >= _MIN_KERNEL_BYTES:
            with self._lock:
                if self._thread is None:
                    self._thread = threading.Thread(
                        target=self.load, name="rows-compiled", daemon=True
                    )
                    self._thread.start()
        return self._kernel_reader

    def wait_until_loaded(self) -> None:
        """Wait until loading ends, if it has started."""
        if self._thread is not None:
            self._thread.join()

    def load(self) -> None:
        """Load the reader. Blocks."""
        try:
            from snowmelt.ingest.rows.line_reader import read_scalar_lines

            # One call compiles the kernels for all rows.
            read_scalar_lines(_WARMUP_LINE, parse_scalar_fields(_WARMUP_LINE, _WARMUP_SCHEMA) or [])
        except ImportError:
            _log.info("numba is not installed: Arrow reads rows, which costs more CPU time")
        except Exception:  # noqa: BLE001 - the other reader reads the same rows
            _log.exception("compiling the row reader failed")
        else:
            self._kernel_reader = read_scalar_lines


# Standard base64, as the SDK writes it. Any other text is hexadecimal or will be rejected.
_BASE64_PATTERN = re.compile(r"(?:[A-Za-z0-9+/]{4})*(?:[A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=)?")
_AMBIGUOUS_BYTES_REASON = (
    "its client may have written base64, which was the encoding when it was created. Create the"
    " client again; it then writes hexadecimal digits"
)


def list_binary_columns(schema: TableSchema) -> list[Column]:
    """Return the BINARY columns."""
    return [column for column in schema.columns if column.kind is LogicalType.BINARY]


def has_no_binary_values(table: pa.Table, schema: TableSchema) -> bool:
    """Return True if rows in chunk form have no value in any of these columns."""
    return all(
        table.column(column.name).null_count == table.num_rows
        for column in list_binary_columns(schema)
    )


def find_ambiguous_bytes(
    rows: Sequence[object], schema: TableSchema, *, from_pipe: bool
) -> dict[int, InvalidValue]:
    """Return the indexes of rows with a binary value that may be base64.

    With `from_pipe`, every binary value may be base64, because a pipe's result does not show its
    source.
    """
    columns = {column.name: column for column in list_binary_columns(schema)}
    found: dict[int, InvalidValue] = {}
    for number, row in enumerate(rows):
        if not isinstance(row, dict):
            continue
        for key, value in row.items():
            if value is None or not isinstance(key, str):
                continue
            column = columns.get(to_internal_name(key))
            if column is not None and (
                from_pipe or (isinstance(value, str) and value and _BASE64_PATTERN.fullmatch(value))
            ):
                found[number] = wrong_value_error(column, number, _AMBIGUOUS_BYTES_REASON)
                break
    return found
