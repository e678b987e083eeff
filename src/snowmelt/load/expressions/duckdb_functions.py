"""Functions of Vertica that DuckDB lacks, registered on the connection of the evaluator.

They are macros where DuckDB's own functions suffice, and Python functions over whole columns
otherwise.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from snowmelt.errors import InvalidValue
from snowmelt.schema.chunk_types import to_contiguous_array
from snowmelt.schema.conversion.timestamps import TimestampSyntaxError, parse_time, parse_timestamp
from snowmelt.schema.types import TimestampTextFormat

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import duckdb

    from snowmelt.load.expressions.datetime_templates import DatetimeTemplateReader

    Read = Callable[[str], object]

_IS_ASCII_SQL = "regexp_matches(s, '^[\\x00-\\x7F]*$')"
_DIGITS_SQL = "CAST(replace(CAST({0} AS VARCHAR), '.', '') AS HUGEINT)"
# Digits after the point of a number's text.
_SCALE_SQL = (
    "CASE WHEN contains(CAST({0} AS VARCHAR), '.') "
    "THEN strlen(CAST({0} AS VARCHAR)) - strpos(CAST({0} AS VARCHAR), '.') ELSE 0 END"
)
# A quotient has 18 digits after the point.
_QUOTIENT_SCALE = 18
_MACROS = (
    f"unicode_upper(s) AS CASE WHEN {_IS_ASCII_SQL} THEN upper(s) ELSE python_upper(s) END",
    f"unicode_lower(s) AS CASE WHEN {_IS_ASCII_SQL} THEN lower(s) ELSE python_lower(s) END",
    (
        "cut_octets(s, n) AS CASE WHEN strlen(s) <= n THEN s WHEN strlen(s) = length(s) "
        "THEN left(s, n) ELSE python_cut(s, n) END"
    ),
    "hex_digits(s) AS regexp_replace(s, '^0[xX]', '')",
    (
        "hex_to_binary(s) AS CASE WHEN NOT regexp_matches(s, '^(0[xX])?([0-9a-fA-F]{2})*$') "
        "THEN error('HEX_TO_BINARY: expected pairs of hexadecimal digits') "
        "ELSE unhex(hex_digits(s)) END"
    ),
    (
        "hex_to_integer(s) AS CASE WHEN NOT regexp_matches(s, '^(0[xX])?[0-9a-fA-F]{1,15}$') "
        "THEN error('HEX_TO_INTEGER: expected 1 to 15 hexadecimal digits') "
        "ELSE CAST('0x' || hex_digits(s) AS BIGINT) END"
    ),
    "power_of_ten(n) AS CAST(rpad('1', CAST(n + 1 AS INTEGER), '0') AS HUGEINT)",
    f"digits_of(x) AS {_DIGITS_SQL.format('x')}",
    f"scale_of(x) AS {_SCALE_SQL.format('x')}",
    (
        "rounded_quotient(n, d) AS n // d + CASE WHEN abs(n % d) >= abs(d) - abs(n % d) "
        "THEN CASE WHEN (n < 0) = (d < 0) THEN 1 ELSE -1 END ELSE 0 END"
    ),
    (
        "divide_numbers(a, b) AS CAST(rounded_quotient("
        f"digits_of(a) * power_of_ten(greatest({_QUOTIENT_SCALE} + scale_of(b) - scale_of(a), 0)), "
        f"digits_of(b) * power_of_ten(greatest(scale_of(a) - scale_of(b) - {_QUOTIENT_SCALE}, 0))"
        f") AS DECIMAL(38,0)) * CAST('0.{'1':0>{_QUOTIENT_SCALE}}' AS DECIMAL(18,18))"
    ),
)


def register_functions(connection: duckdb.DuckDBPyConnection) -> None:
    """Add all functions but those of templates."""
    _create_function(
        connection, "python_upper", _apply_to_distinct(str.upper, pa.string()), "VARCHAR"
    )
    _create_function(
        connection, "python_lower", _apply_to_distinct(str.lower, pa.string()), "VARCHAR"
    )
    _create_function(connection, "python_cut", _truncate_octets, "VARCHAR", ("VARCHAR", "BIGINT"))
    for name, read, arrow, result in _TEXT_READERS:
        _create_function(connection, f"read_{name}", _apply_to_distinct(read, arrow), result)
        _create_function(
            connection,
            f"try_read_{name}",
            _apply_to_distinct(_return_none_on_error(read), arrow),
            result,
        )
    for macro in _MACROS:
        connection.execute(f"CREATE TEMP MACRO {macro}")


def register_template_readers(
    connection: duckdb.DuckDBPyConnection, readers: Sequence[DatetimeTemplateReader]
) -> None:
    """Add the functions that read texts by templates."""
    for number, reader in enumerate(readers):
        _create_function(
            connection, f"read_template_{number}", _make_template_function(reader), "TIMESTAMP"
        )


def _create_function(
    connection: duckdb.DuckDBPyConnection,
    name: str,
    function: Callable[..., pa.Array],
    result: str,
    parameters: Sequence[str] = ("VARCHAR",),
) -> None:
    # Names of types and kinds as texts: the module that holds them differs between versions.
    create: Any = connection.create_function
    create(name, function, list(parameters), result, type="arrow", null_handling="special")


def _apply_to_distinct(
    parse: Read, arrow_type: pa.DataType
) -> Callable[[pa.ChunkedArray], pa.Array]:
    """Return a function of a column that reads each different text once."""

    def function(texts: pa.ChunkedArray) -> pa.Array:
        found = to_contiguous_array(texts).dictionary_encode()
        try:
            values = [
                None if text is None else parse(text) for text in found.dictionary.to_pylist()
            ]
        except InvalidValue as error:
            raise ValueError(error.fields["reason"]) from None
        return pa.array(values, arrow_type).take(found.indices)

    return function


def _truncate_octets(texts: pa.ChunkedArray, lengths: pa.ChunkedArray) -> pa.Array:
    """Cut texts to a number of octets, and never within a character."""
    cut = [
        None if text is None else text.encode()[:length].decode(errors="ignore")
        for text, length in zip(texts.to_pylist(), lengths.to_pylist(), strict=True)
    ]
    return pa.array(cut, pa.string())


def _make_template_function(
    reader: DatetimeTemplateReader,
) -> Callable[[pa.ChunkedArray], pa.Array]:
    exact = _apply_to_distinct(
        lambda text: _parse_timestamp_us(reader.read(text).iso_timestamp), pa.timestamp("us")
    )

    def function(texts: pa.ChunkedArray) -> pa.Array:
        array = to_contiguous_array(texts)
        if reader.bulk_pattern is None:
            return exact(texts)
        pattern, iso = reader.bulk_pattern
        if pc.all(pc.match_substring_regex(array, pattern)).as_py() is False:
            return exact(texts)
        try:
            return pc.replace_substring_regex(array, pattern, iso).cast(pa.timestamp("us"))
        except pa.ArrowInvalid:
            return exact(texts)

    return function


def _parse_timestamp_us(text: str, *, apply_offset: bool = False) -> int:
    try:
        found = parse_timestamp(text, TimestampTextFormat.VERTICA)
    except TimestampSyntaxError as error:
        reason = error.reason or f"{text[:80]!r} is no date or timestamp"
        raise InvalidValue(reason=reason) from None
    seconds = found.local_s - ((found.offset_s or 0) if apply_offset else 0)
    return seconds * 1_000_000 + found.nanos // 1000


def _parse_epoch_day(text: str) -> int:
    return _parse_timestamp_us(text) // 86_400_000_000


def _parse_time_us(text: str) -> int:
    try:
        seconds, nanos = parse_time(text, TimestampTextFormat.VERTICA)
    except TimestampSyntaxError as error:
        reason = error.reason or f"{text[:80]!r} is no time of day"
        raise InvalidValue(reason=reason) from None
    return seconds * 1_000_000 + nanos // 1000


def _return_none_on_error(parse: Read) -> Read:
    def function(text: str) -> object:
        try:
            return parse(text)
        except InvalidValue:
            return None

    return function


_TEXT_READERS: tuple[tuple[str, Read, pa.DataType, str], ...] = (
    ("timestamp", _parse_timestamp_us, pa.timestamp("us"), "TIMESTAMP"),
    (
        "instant",
        lambda text: _parse_timestamp_us(text, apply_offset=True),
        pa.timestamp("us"),
        "TIMESTAMP",
    ),
    ("date", _parse_epoch_day, pa.date32(), "DATE"),
    ("time", _parse_time_us, pa.time64("us"), "TIME"),
)
