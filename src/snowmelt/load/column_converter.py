"""Conversion of text and value columns into native table columns, with exact per-value fallback.

Arrow casts whole columns of text in forms that are known to be safe. Other text is converted by the
rules for single values (`snowmelt.schema.conversion.value_rules`). Loads accept more forms than
streams: a space between date and time, an hour without minutes, an offset without a colon, and date
formats. They can also trim text, and truncate it to the column's length. Text without a time zone
is in UTC.

`TextNormalizer` rewrites text with a FORMAT before conversion: dates with a template, and bytes
written as hexadecimal, octal or binary digits. The templates are those of `TO_DATE` and
`TO_TIMESTAMP` (`snowmelt.load.expressions.datetime_templates`). `docs/reference/copy-functions.md`
lists what FORMAT accepts.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, replace
from decimal import Decimal
from typing import TYPE_CHECKING
from zoneinfo import ZoneInfo

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from snowmelt.errors import InvalidRow, InvalidValue, LoadRefused
from snowmelt.load.arrow_text_casts import ArrowTextCaster
from snowmelt.load.expressions.datetime_templates import (
    DatetimeTemplateInvalid,
    DatetimeTemplateReader,
)
from snowmelt.load.phase_protocols import ColumnOptions
from snowmelt.schema.chunk_types import make_null_mask, to_contiguous_array
from snowmelt.schema.conversion.column_converter import ColumnConverter
from snowmelt.schema.conversion.default_values import has_defaults, make_default_native_arrays
from snowmelt.schema.conversion.json_text import format_json
from snowmelt.schema.conversion.numbers import TRIMMED_CHARACTERS
from snowmelt.schema.conversion.timestamps import out_of_range_mask
from snowmelt.schema.conversion.value_rules import make_value_rule
from snowmelt.schema.iceberg_table_form import native_fields, native_schema, to_native_table
from snowmelt.schema.types import (
    DEFAULT_ZONE,
    SEMI_STRUCTURED_TYPES,
    TIMESTAMP_TYPES,
    Column,
    Compatibility,
    LogicalType,
    TableSchema,
)

if TYPE_CHECKING:
    import datetime as dt
    from collections.abc import Callable, Mapping, Sequence

    from snowmelt.load.arrow_text_casts import ArraySyntax
    from snowmelt.load.phase_protocols import ParseTarget
    from snowmelt.load.text_cells import TextCells
    from snowmelt.schema.types import StoredValue

if TYPE_CHECKING:
    Places = np.ndarray[tuple[int], np.dtype[np.int64]]
    Mask = np.ndarray[tuple[int], np.dtype[np.bool_]]

COPY_TIME_ZONE = ZoneInfo(DEFAULT_ZONE)
NOT_NULL_VIOLATION = "the value is NULL, and the column is NOT NULL"

_DATE_TIME_KINDS = TIMESTAMP_TYPES | {LogicalType.DATE, LogicalType.TIME}
_NATIVE_PYTHON_TYPES: dict[LogicalType, tuple[type, ...]] = {
    LogicalType.FIXED: (int, Decimal),
    LogicalType.REAL: (float, int, Decimal),
    LogicalType.BOOLEAN: (bool,),
    LogicalType.TEXT: (str,),
    LogicalType.BINARY: (str,),
    **dict.fromkeys(_DATE_TIME_KINDS, (str,)),
}
_TEXT_RULE = make_value_rule(Column("", LogicalType.TEXT, 1), COPY_TIME_ZONE)
_MAX_SHOWN_CHARS = 60
_HEX_PREFIXES = ("0x", "0X")
_EXAMPLE_FORMATS = {
    LogicalType.DATE: "'DD.MM.YYYY'",
    LogicalType.TIME: "'HH24:MI:SS'",
    **dict.fromkeys(TIMESTAMP_TYPES, "'DD.MM.YYYY HH24:MI:SS'"),
}
_NO_OPTIONS = ColumnOptions()
# The value of a column that a record lacks, if the column has a default.
MISSING = object()


class TextColumnConverter:
    """Converter of one column. `column_number` is its 1-based position in the target."""

    def __init__(
        self,
        column: Column,
        column_number: int,
        options: ColumnOptions,
        *,
        enforce_length: bool,
        started_at: dt.datetime | None = None,
    ) -> None:
        self.column = column
        self._started_at = started_at
        self.trim = options.trim
        self.label = f"column {column_number} ({column.display_name} {column.sql_type})"
        self._truncates = not enforce_length and column.kind in {
            LogicalType.TEXT,
            LogicalType.BINARY,
        }
        self.rewrite = make_text_normalizer(column, options.format)
        self._rule = make_value_rule(column, COPY_TIME_ZONE, Compatibility.COPY)
        self._has_format = options.format is not None
        self._is_whole = column.kind is LogicalType.FIXED and not column.scale
        self.truncated_values = 0
        # As in Vertica, an integer column rejects 1.5 from a file, but rounds 1.5 from an
        # expression.
        self.rounds = False
        self._text_caster = ArrowTextCaster(column)
        self._converter = ColumnConverter(column, COPY_TIME_ZONE, Compatibility.COPY)
        self._single_column_schema = TableSchema(1, (_make_nullable(column),))

    @property
    def csv_reader_arrow_type(self) -> pa.DataType | None:
        """Arrow type for `convert_csv_reader_values`, or None if the values must be read as text."""
        if self.trim or not self.rewrite.is_standard_form:
            return None
        return self._text_caster.csv_reader_arrow_type

    def convert_csv_reader_values(self, array: pa.Array) -> list[pa.Array] | None:
        """Convert values of `csv_reader_arrow_type` to native arrays.

        Return None if they must be converted from text.
        """
        parts = self._text_caster.convert_csv_reader_values(array)
        if (
            parts is None
            or self._violates_not_null(array)
            or out_of_range_mask(self.column, parts) is not None
        ):
            return None
        return parts

    def convert_texts(self, texts: pa.Array) -> tuple[list[pa.Array], dict[int, str]]:
        """Convert strings to native arrays. Also return the reason of each rejected row.

        Rejected values are null in the arrays. A null in `texts` is NULL.
        """
        if self.trim:
            texts = pc.utf8_trim(texts, self.trim)
        usual = self._rewrite_texts(texts)
        plain = None if usual is None else self._text_caster.mask_castable(usual)
        if usual is None or plain is None:
            everywhere = np.flatnonzero(~make_null_mask(texts))
            return self._replace_with_exact_values(
                self._make_null_arrays(len(texts)), texts, everywhere
            )
        kept = usual if plain.all() else usual.filter(pa.array(plain))
        parts = (
            self._text_caster.cast_texts(
                usual if plain.all() else _replace_unmasked_with_null(usual, plain)
            )
            if len(kept)
            else None
        )
        if parts is None:
            parts, plain = self._make_null_arrays(len(texts)), np.zeros(len(texts), np.bool_)
        elif (outside := out_of_range_mask(self.column, parts)) is not None:
            # Convert these with the exact rules, which reject them with a reason.
            plain = plain & ~outside
        rest = np.zeros(len(texts), np.bool_) if plain.all() else ~plain & ~make_null_mask(texts)
        return self._replace_with_exact_values(parts, texts, np.flatnonzero(rest))

    def _rewrite_texts(self, texts: pa.Array) -> pa.Array | None:
        """Rewrite texts to the standard form. Texts that do not match become null.

        Return None if they can be rewritten only one by one.
        """
        if self.rewrite.is_standard_form:
            return texts
        if self.rewrite.bulk_pattern is None:
            return None
        pattern, replacement = self.rewrite.bulk_pattern
        known = pc.match_substring_regex(texts, pattern)
        rewritten = pc.replace_substring_regex(texts, pattern, replacement)
        return pc.if_else(known, rewritten, pa.scalar(None, pa.string()))

    def decode_and_convert_texts(self, data: pa.Array) -> tuple[list[pa.Array], dict[int, str]]:
        """Convert bytes as `convert_texts` converts strings. Rejects invalid UTF-8."""
        texts, broken = decode_texts(data, self.label)
        parts, refused = self.convert_texts(texts)
        return parts, {**refused, **broken}

    def convert_cells(self, cells: TextCells) -> tuple[list[pa.Array], dict[int, str]]:
        """Convert cells of delimited text as `decode_and_convert_texts` converts bytes."""
        cast = None
        if not self.trim and self.rewrite.is_standard_form:
            cast = cells.cast(self.column, self._text_caster)
        if cast is None:
            return self.decode_and_convert_texts(cells.to_array(pa.binary()))
        parts, rest = cast
        rows = np.flatnonzero(rest)
        refused: dict[int, str] = {}
        if len(rows):
            exact, reasons = self.decode_and_convert_texts(cells.take(rows).to_array(pa.binary()))
            refused = {int(rows[place]): reason for place, reason in reasons.items()}
            parts = [
                pc.replace_with_mask(part, pa.array(rest), found)
                for part, found in zip(parts, exact, strict=True)
            ]
        if not self.column.nullable:
            reason = f"{self.label}: {NOT_NULL_VIOLATION}"
            refused |= dict.fromkeys(np.flatnonzero(cells.is_null).tolist(), reason)
        return parts, refused

    def make_missing_arrays(self, count: int) -> tuple[list[pa.Array], dict[int, str]]:
        """Return the values for records that lack the column, and rejections as `convert_texts`."""
        if self.column.default is None:
            return self.convert_texts(pa.nulls(count, pa.string()))
        return make_default_native_arrays(self.column, count, self._started_at), {}

    def convert_record_values(self, values: list[object]) -> tuple[list[pa.Array], dict[int, str]]:
        """Convert values like `convert_values`; records that lack the column have MISSING."""
        if self.column.default is None:
            return self.convert_values(values)
        missing = np.fromiter((value is MISSING for value in values), np.bool_, len(values))
        parts, refused = self.convert_values(
            [None if value is MISSING else value for value in values]
        )
        defaults = make_default_native_arrays(self.column, 1, self._started_at)
        filled = [
            pc.if_else(pa.array(missing), default[0], part)
            for default, part in zip(defaults, parts, strict=True)
        ]
        return filled, {row: reason for row, reason in refused.items() if not missing[row]}

    def convert_values(self, values: list[object]) -> tuple[list[pa.Array], dict[int, str]]:
        """Convert values of a typed format. None is NULL. See `convert_texts` for the result.

        Strings are converted as in a text file. An integer in a date or time column is converted as
        the text of its digits. In a text column, maps and lists become JSON.
        """
        usual = _NATIVE_PYTHON_TYPES.get(self.column.kind, ())
        odd = [
            place
            for place, value in enumerate(values)
            if value is not None and (type(value) not in usual or self._has_fraction(value))
        ]
        if not odd:
            return self._convert_uniform_values(values)
        refused: dict[int, str] = {}
        parts = self._make_null_arrays(len(values))
        if len(odd) < len(values):
            others = values.copy()
            for place in odd:
                others[place] = None
            parts, refused = self._convert_uniform_values(others)
        stored: list[StoredValue] = []
        for place in odd:
            refused.pop(place, None)
            try:
                stored.append(self._convert_value(values[place]))
            except InvalidRow as error:
                stored.append(None)
                refused[place] = self.describe_rejection(error, values[place])
        mask = np.zeros(len(values), np.bool_)
        mask[odd] = True
        exact = self.to_native_arrays(stored)
        return [
            pc.replace_with_mask(part, pa.array(mask), found)
            for part, found in zip(parts, exact, strict=True)
        ], refused

    def _convert_uniform_values(
        self, values: list[object]
    ) -> tuple[list[pa.Array], dict[int, str]]:
        """Convert values that are all None or of the column's types in `_NATIVE_PYTHON_TYPES`."""
        if str in _NATIVE_PYTHON_TYPES.get(self.column.kind, ()):
            try:
                return self.convert_texts(pa.array(values, pa.string()))
            except (pa.ArrowException, UnicodeEncodeError):
                pass
        elif self.column.kind is LogicalType.REAL:
            values = [float(value) if type(value) is Decimal else value for value in values]
        elif self.column.kind is LogicalType.FIXED and Decimal in set(map(type, values)):
            values = [Decimal(value) if type(value) is int else value for value in values]
        chunk, positions = self._converter.convert(values)
        refused: dict[int, str] = {}
        for place in positions:
            try:
                self._convert_value(values[place])
            except InvalidRow as error:
                refused[place] = self.describe_rejection(error, values[place])
        return self._split_companions(chunk), refused

    def to_native_arrays(self, values: Sequence[StoredValue]) -> list[pa.Array]:
        """Convert stored values to native arrays."""
        return self._split_companions(self._converter.stored_to_array(values))

    def _split_companions(self, chunk: pa.Array) -> list[pa.Array]:
        table = pa.table([chunk], names=[self.column.name])
        return [
            to_contiguous_array(part)
            for part in to_native_table(table, self._single_column_schema).columns
        ]

    def convert_text_exactly(self, value: str) -> StoredValue:
        """Convert one text by the exact rules. Counts the value if it is truncated.

        Raises:
            InvalidRow: If the column rejects the value.
        """
        value = self.rewrite(value)
        if (
            self.column.kind is LogicalType.BINARY
            and not self._has_format
            and value[:2] in _HEX_PREFIXES
        ):
            value = value[2:]
        if self._truncates:
            shortened = self._truncate_to_column_length(value)
            self.truncated_values += len(shortened) < len(value)
            value = shortened
        stored = self._rule(value, 0)
        if self._is_whole and not self.rounds and _may_have_fraction(value):
            self._check_whole_number(Decimal(value.strip(TRIMMED_CHARACTERS)))
        return stored

    def _check_whole_number(self, value: Decimal | float) -> None:
        if self._has_fraction(value):
            raise InvalidValue(reason=f"Not an integer, as {self.column.sql_type} requires")

    def _has_fraction(self, value: object) -> bool:
        """Return True if the value has a fraction, which an integer column would have to round."""
        if not self._is_whole or self.rounds or not isinstance(value, Decimal | float):
            return False
        if not math.isfinite(value):
            return False
        # `value // 1` fails for a Decimal with more digits than the context's precision.
        whole = value.to_integral_value() if isinstance(value, Decimal) else math.floor(value)
        return value != whole

    def _convert_value(self, value: object) -> StoredValue:
        if isinstance(value, str):
            return (
                self._to_json_text(value)
                if self.column.kind in SEMI_STRUCTURED_TYPES
                else self.convert_text_exactly(value)
            )
        kind = self.column.kind
        if kind in _DATE_TIME_KINDS and type(value) is int:
            return self.convert_text_exactly(str(value))
        if kind is LogicalType.TEXT and isinstance(value, (dict, list)):
            return self.convert_text_exactly(self._to_json_text(value))
        if isinstance(value, Decimal | float):
            self._check_whole_number(value)
        if kind is LogicalType.TEXT and self._truncates and value is not None:
            return self.convert_text_exactly(str(_TEXT_RULE(value, 0)))
        return self._rule(value, 0)

    def _to_json_text(self, value: object) -> str:
        """Return a value as JSON text. A string becomes a JSON string, and is not parsed as JSON."""
        try:
            return (
                str(self._rule(format_json(value, signed_bytes=False), 0))
                if self.column.kind is not LogicalType.TEXT
                else format_json(value, signed_bytes=False)
            )
        except TypeError as error:
            raise InvalidValue(reason=f"no JSON of a {error}") from None
        except ValueError:
            raise InvalidValue(reason="Not a valid JSON") from None

    def describe_rejection(self, error: InvalidRow, value: object) -> str:
        """Return the rejection reason with the column and the value."""
        written = str(error).partition("format: ")[2].partition(", rowIndex")[0]
        reason = error.fields.get("reason") or written or str(error)
        hint = ""
        if self.column.kind in _DATE_TIME_KINDS and not self._has_format:
            form = f"{self.column.display_name} FORMAT {_EXAMPLE_FORMATS[self.column.kind]}"
            hint = f"; for another format, specify {form}"
        shown = repr(value[:_MAX_SHOWN_CHARS]) if isinstance(value, str) else _display_value(value)
        more = "…" if isinstance(value, str) and len(value) > _MAX_SHOWN_CHARS else ""
        return f"{self.label}: {reason}: {shown}{more}{hint}"

    def _truncate_to_column_length(self, value: str) -> str:
        column = self.column
        if column.kind is LogicalType.TEXT and column.length is not None:
            return value[: column.length]
        if column.kind is LogicalType.BINARY and column.byte_length is not None:
            return value[: 2 * column.byte_length]
        return value

    def _violates_not_null(self, array: pa.Array) -> bool:
        return bool(array.null_count) and not self.column.nullable

    def _replace_with_exact_values(
        self,
        arrays: list[pa.Array],
        texts: pa.Array,
        indexes: Places,
    ) -> tuple[list[pa.Array], dict[int, str]]:
        """Convert the values at these indexes again, with the exact rules."""
        refused: dict[int, str] = {}
        if len(indexes):
            values: list[StoredValue] = []
            taken = texts.take(pa.array(indexes)).to_pylist()
            for place, text in zip(indexes.tolist(), taken, strict=True):
                try:
                    values.append(self.convert_text_exactly(text))
                except InvalidRow as error:
                    values.append(None)
                    refused[place] = self.describe_rejection(error, text)
            mask = np.zeros(len(texts), np.bool_)
            mask[indexes] = True
            exact = self.to_native_arrays(values)
            arrays = [
                found
                if len(indexes) == len(texts)
                else pc.replace_with_mask(part, pa.array(mask), found)
                for part, found in zip(arrays, exact, strict=True)
            ]
        if not self.column.nullable and texts.null_count:
            for place in np.flatnonzero(make_null_mask(texts)).tolist():
                refused[place] = f"{self.label}: {NOT_NULL_VIOLATION}"
        return arrays, refused

    def _make_null_arrays(self, count: int) -> list[pa.Array]:
        return [pa.nulls(count, part.type) for part in native_fields(self.column)]


class TableConverter:
    """Converter of all columns of a target. Drops rows that a column rejects."""

    def __init__(
        self,
        target: ParseTarget,
        array_syntax: ArraySyntax | None = None,
        *,
        trim: str | None = None,
    ) -> None:
        """Create the column converters.

        Args:
            target: Columns and their options.
            array_syntax: Syntax of arrays in delimited text. None: JSON.
            trim: Characters to remove from both ends, for columns without the option TRIM.
        """
        self.schema = target.schema
        self.options = target.options
        self.arrow_schema = native_schema(target.schema)
        self.columns: list[TextColumnConverter] = []
        for number, column in enumerate(target.schema.columns, 1):
            options = target.options.get(column.name, _NO_OPTIONS)
            enforce = options.enforce_length
            made = TextColumnConverter(
                column,
                number,
                options,
                enforce_length=target.enforce_length if enforce is None else enforce,
                started_at=target.started_at,
            )
            made.trim = made.trim or trim
            if array_syntax is not None and column.kind is LogicalType.ARRAY:
                made.rewrite = TextNormalizer(
                    array_syntax.convert_array_to_json, is_standard_form=False
                )
            self.columns.append(made)

    @property
    def has_defaults(self) -> bool:
        """True if a column has a default value, which records that lack the column get."""
        return has_defaults(self.schema)

    def make_empty_row(self) -> list[object]:
        """Return the values of a record without fields, for `convert_record_values`."""
        return [None if column.column.default is None else MISSING for column in self.columns]

    def convert_columns(
        self, texts: Sequence[pa.Array | None], count: int
    ) -> tuple[pa.Table, dict[int, tuple[str, str]]]:
        """Convert columns of bytes or text. None is a column that the records lack.

        Returns:
            All rows, with null for rejected values; and by row, the column and reason of each
            rejection.
        """
        arrays: list[pa.Array] = []
        refused: dict[int, tuple[str, str]] = {}
        for column, given in zip(self.columns, texts, strict=True):
            if given is None:
                parts, reasons = column.make_missing_arrays(count)
            elif pa.types.is_string(given.type):
                parts, reasons = column.convert_texts(given)
            else:
                parts, reasons = column.decode_and_convert_texts(given)
            arrays.extend(parts)
            for place, reason in reasons.items():
                refused.setdefault(place, (column.column.display_name, reason))
        return self.make_table(arrays), refused

    def convert_record_columns(
        self, columns: Sequence[list[object]], *, strict: bool
    ) -> tuple[list[pa.Array], dict[int, tuple[str, str]]]:
        """Convert columns of record values to native arrays.

        Also returns the column and reason of each rejected row. Unless `strict`, only NOT NULL
        columns reject rows; values that do not fit other columns are NULL.
        """
        arrays: list[pa.Array] = []
        refused: dict[int, tuple[str, str]] = {}
        for column, values in zip(self.columns, columns, strict=True):
            parts, reasons = column.convert_record_values(values)
            arrays.extend(parts)
            if strict or not column.column.nullable:
                name = column.column.display_name
                refused |= {row: (name, reason) for row, reason in reasons.items()}
        return arrays, refused

    def pop_truncated_count(self) -> int:
        """Return the number of values truncated since the last call."""
        count = sum(column.truncated_values for column in self.columns)
        for column in self.columns:
            column.truncated_values = 0
        return count

    def make_table(self, arrays: Sequence[pa.Array]) -> pa.Table:
        """Return a table of native arrays. NOT NULL columns may still contain nulls."""
        return pa.Table.from_arrays(list(arrays), names=self.arrow_schema.names)

    def drop_rejected_rows(self, table: pa.Table, rejected: Mapping[int, object]) -> pa.Table:
        """Drop rejected rows, and return the others with the target's native schema."""
        if rejected:
            keep = np.ones(table.num_rows, np.bool_)
            keep[list(rejected)] = False
            table = table.filter(pa.array(keep))
        columns = [to_contiguous_array(column) for column in table.columns]
        return pa.Table.from_arrays(columns, schema=self.arrow_schema)


def _may_have_fraction(text: str) -> bool:
    """Return True if the text of a number may have a fraction. A fast check before the exact one."""
    return "." in text or "e" in text or "E" in text


def decode_texts(data: pa.Array, label: str) -> tuple[pa.Array, dict[int, str]]:
    """Decode UTF-8. Invalid bytes become null with a reason that contains their position."""
    try:
        return data.cast(pa.string()), {}
    except pa.ArrowInvalid:
        pass
    texts: list[str | None] = []
    broken: dict[int, str] = {}
    for place, value in enumerate(data.to_pylist()):
        try:
            texts.append(None if value is None else value.decode())
        except UnicodeDecodeError as error:
            texts.append(None)
            broken[place] = f"{label}: illegal UTF-8 at byte {error.start} of the value"
    return pa.array(texts, pa.string()), broken


def _display_value(value: object) -> str:
    """Return a value as text for messages, without Python class names."""
    return str(value) if isinstance(value, Decimal) else repr(value)


def _replace_unmasked_with_null(texts: pa.Array, mask: Mask) -> pa.Array:
    return pc.if_else(pa.array(mask), texts, pa.scalar(None, pa.string()))


def _make_nullable(column: Column) -> Column:
    return column if column.nullable else replace(column, nullable=True)


# --- Normalization of text before conversion: date formats, and bytes written as digits.

_LOOSE_TIMESTAMP = re.compile(
    r"([+-]?[0-9]{4,10}-[0-9]{2}-[0-9]{2})[ Tt]([0-9]{2})(:[0-9]{2}(?::[0-9]{2}(?:\.[0-9]*)?)?)?"
    r" ?([Zz]|[+-][0-9]{2}(?::?[0-9]{2})?)?"
)
_OFFSET_LENGTH_WITHOUT_COLON = 5
_OCTAL_BYTES = re.compile(r"(?:[0-3][0-7]{2})*")
_HEX_BYTES = re.compile(r"(?:0[xX])?((?:[0-9a-fA-F]{2})*)")
_BIT_BYTES = re.compile(r"(?:[01]{8})*")


@dataclass(frozen=True, slots=True)
class TextNormalizer:
    """Rewriter of a column's texts.

    `is_standard_form` is True if there is no FORMAT, so that only standard forms are normalized.
    `bulk_pattern` is a regular expression and its replacement, which rewrite a column in one call.
    """

    _rewrite: Callable[[str], str]
    is_standard_form: bool
    bulk_pattern: tuple[str, str] | None = None

    def __call__(self, text: str) -> str:
        """Return the text in a form that `snowmelt.schema.conversion.value_rules` parses.

        Raises:
            InvalidValue: If it does not have the format.
        """
        return self._rewrite(text)


def make_text_normalizer(column: Column, template: str | None) -> TextNormalizer:
    """Return the normalizer of a column. With the template None, it accepts the standard forms.

    Raises:
        LoadRefused: If the column does not support this format.
    """
    timed = column.kind in {LogicalType.DATE, LogicalType.TIME} or column.kind in TIMESTAMP_TYPES
    if template is None:
        return TextNormalizer(_normalize_timestamp_text if timed else str, is_standard_form=True)
    if timed:
        return _make_template_normalizer(column, template)
    if column.kind is LogicalType.BINARY:
        known = {"HEX": _strip_hex_prefix, "OCTAL": _octal_to_hex, "BITSTRING": _bits_to_hex}
        rewrite = known.get(template.upper())
        if rewrite is not None:
            return TextNormalizer(rewrite, is_standard_form=False)
        _raise_format_rejected(column, "FORMAT of a binary column is HEX, OCTAL or BITSTRING")
    _raise_format_rejected(column, "FORMAT is for dates, times and binary columns")
    raise AssertionError


def _raise_format_rejected(column: Column, reason: str) -> None:
    raise LoadRefused(what=f"column {column.display_name}", reason=reason)


def _normalize_timestamp_text(text: str) -> str:
    """Rewrite a timestamp so that it has a T, minutes, and a colon in its offset."""
    match = _LOOSE_TIMESTAMP.fullmatch(text.strip(TRIMMED_CHARACTERS))
    if match is None:
        return text
    date, hour, rest, offset = match.groups("")
    if len(offset) == _OFFSET_LENGTH_WITHOUT_COLON:
        offset = f"{offset[:3]}:{offset[3:]}"
    return f"{date}T{hour}{rest or ':00'}{offset}"


def _strip_hex_prefix(text: str) -> str:
    match = _HEX_BYTES.fullmatch(text.strip(TRIMMED_CHARACTERS))
    if match is None:
        raise InvalidValue(reason="Not pairs of hexadecimal digits, as FORMAT 'hex' requires")
    return match[1]


def _octal_to_hex(text: str) -> str:
    text = text.strip(TRIMMED_CHARACTERS)
    if not _OCTAL_BYTES.fullmatch(text):
        raise InvalidValue(reason="Not bytes of three octal digits, as FORMAT 'octal' requires")
    return bytes(int(text[at : at + 3], 8) for at in range(0, len(text), 3)).hex()


def _bits_to_hex(text: str) -> str:
    text = text.strip(TRIMMED_CHARACTERS)
    if not _BIT_BYTES.fullmatch(text):
        raise InvalidValue(reason="Not a multiple of eight bits, as FORMAT 'bitstring' requires")
    return f"{int(text, 2):0{len(text) // 4}x}" if text else ""


def _make_template_normalizer(column: Column, template: str) -> TextNormalizer:
    is_time = column.kind is LogicalType.TIME
    try:
        reader = DatetimeTemplateReader(
            template, needs_date=not is_time, needs_time=column.kind is not LogicalType.DATE
        )
    except DatetimeTemplateInvalid as error:
        raise LoadRefused(
            what=f"FORMAT {template!r} of column {column.display_name}", reason=str(error)
        ) from None

    def rewrite(text: str) -> str:
        found = reader.read(text)
        return found.iso_time if is_time else found.iso_timestamp

    return TextNormalizer(rewrite, is_standard_form=False, bulk_pattern=reader.bulk_pattern)
