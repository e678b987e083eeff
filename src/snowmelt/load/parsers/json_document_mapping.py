"""Single JSON documents: validates them, extracts their records and maps their keys to columns.

The options are those of FJSONPARSER and KAFKAJSONPARSER.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import orjson

from snowmelt.json.exact import parse_row_number

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

# --- Options of FJSONPARSER and KAFKAJSONPARSER.


@dataclass(frozen=True, slots=True)
class FlexJsonOptions:
    """Options of FJSONPARSER with its defaults.

    A value that does not fit its column is NULL, or rejects the record with
    `reject_on_materialized_type_error`. After a record that is not JSON, parsing resumes after the
    next line end or `record_terminator`. With a terminator, which then ends every record, files can
    be split.
    """

    flatten_maps: bool = True
    flatten_arrays: bool = False
    reject_on_duplicate: bool = False
    reject_on_empty_key: bool = False
    omit_empty_keys: bool = False
    record_terminator: str = ""
    reject_on_materialized_type_error: bool = False
    start_point: str = ""
    start_point_occurrence: int = 1
    suppress_nonalphanumeric_key_chars: bool = False
    key_separator: str = "."
    skip: int = 0
    max_record: int = 0


@dataclass(frozen=True, slots=True)
class JsonOptions(FlexJsonOptions):
    """Options of Snowmelt's parser JSON: a value that does not fit its column rejects the record."""

    reject_on_materialized_type_error: bool = True


@dataclass(frozen=True, slots=True)
class KafkaJsonOptions(FlexJsonOptions):
    """Options of KAFKAJSONPARSER, which parses one message at a time. `enforce_length` is ignored."""

    enforce_length: bool = False


if TYPE_CHECKING:
    Object = dict[str, Any]

_MAX_CACHED_KEYS = 10_000
_NON_ALPHANUMERIC = re.compile(r"[^0-9A-Za-z]")


class InvalidJsonDocument(ValueError):
    """Raised if the input is not one JSON object. The message is the reason."""


class DuplicateKeyObject(dict[str, Any]):
    """JSON object with a duplicate key, whose name is `key`."""

    key = ""


class JsonDocumentReader:
    """Reader of single documents."""

    def __init__(self, options: FlexJsonOptions) -> None:
        self._options = options
        hook = _make_object if options.reject_on_duplicate else None
        self._decoder = json.JSONDecoder(parse_float=parse_row_number, object_pairs_hook=hook)
        # Keep the sign of -0 for floating-point columns: an int has no negative zero.
        self._signed_zero_decoder = json.JSONDecoder(
            parse_float=parse_row_number, parse_int=_parse_whole_number, object_pairs_hook=hook
        )

    def check_document(self, data: bytes) -> None:
        """Validate one document.

        Raises:
            InvalidJsonDocument: If the bytes are not exactly one JSON object.
        """
        try:
            value = orjson.loads(data)
        except orjson.JSONDecodeError as error:
            raise InvalidJsonDocument(
                f"not JSON: {error.msg} at byte {_to_byte_offset(data, error.pos)}"
            ) from None
        if not isinstance(value, dict):
            raise InvalidJsonDocument(
                f"not a JSON object but {_TYPE_DESCRIPTIONS.get(type(value), 'a number')}"
            )

    def is_object(self, data: bytes) -> bool:
        """Return True if the bytes are one JSON object."""
        try:
            self.check_document(data)
        except InvalidJsonDocument:
            return False
        return True

    def extract_records(self, data: bytes) -> list[Object]:
        """Return the records of a validated document: the document itself, or the start point's value.

        Raises:
            InvalidJsonDocument: If the start point does not occur `start_point_occurrence` times,
                its value is not an object or an array of objects, or a record has a key that the
                options reject.
        """
        try:
            document = (self._signed_zero_decoder if b"-0" in data else self._decoder).decode(
                data.decode()
            )
        except (ValueError, RecursionError) as error:
            raise InvalidJsonDocument(f"not JSON: {error}") from None
        start = self._options.start_point
        found = [document]
        if start:
            occurrences = list(_iter_values_of_key(document, start))
            at = self._options.start_point_occurrence
            if len(occurrences) < at:
                raise InvalidJsonDocument(f"no key {start!r} number {at}")
            value = occurrences[at - 1]
            found = value if isinstance(value, list) else [value]
        if start or self._options.reject_on_duplicate or self._options.reject_on_empty_key:
            for record in found:
                self._reject_keys(record)
        return found

    def _reject_keys(self, record: object) -> None:
        if not isinstance(record, dict):
            raise InvalidJsonDocument("the value at the start point is not an object")
        if self._options.reject_on_duplicate and (key := _find_duplicate_key(record)) is not None:
            raise InvalidJsonDocument(f"key {key!r} occurs twice")
        if self._options.reject_on_empty_key and _has_empty_key(record):
            raise InvalidJsonDocument("a key is empty")


class JsonColumnFinder:
    """Mapping of record keys and key paths to columns, ignoring case."""

    def __init__(self, names: Sequence[str], options: FlexJsonOptions) -> None:
        self._options = options
        self._folded_indexes = {
            name.upper(): place for place, name in reversed(list(enumerate(names)))
        }
        self._exact_indexes = {name: place for place, name in enumerate(names)}
        separator = options.key_separator
        self._prefixes = {
            upper[: end + 1]
            for upper in self._folded_indexes
            for end in range(len(upper))
            if separator and upper[: end + 1].endswith(separator.upper())
        }

        self._cached_indexes: dict[str, int] = {}
        self.is_plain = not (
            self._prefixes or options.suppress_nonalphanumeric_key_chars or options.omit_empty_keys
        )

    def fill_row(self, record: Object, values: list[object]) -> None:
        """Store each value that belongs to a column at the column's index."""
        if self.is_plain:
            known = self._cached_indexes
            for key, value in record.items():
                place = known.get(key, -2)
                if place == -2:
                    place = self._cache_column_of_key(key)
                if place >= 0:
                    values[place] = value
        else:
            self._fill_nested(record, "", "", values)

    def _cache_column_of_key(self, key: str) -> int:
        place = self.find_column_index(key)
        if len(self._cached_indexes) >= _MAX_CACHED_KEYS:
            self._cached_indexes.clear()
        self._cached_indexes[key] = -1 if place is None else place
        return self._cached_indexes[key]

    def find_column_index(self, name: str) -> int | None:
        """Return the column index of a key or joined key path, or None."""
        place = self._exact_indexes.get(name)
        return self._folded_indexes.get(name.upper()) if place is None else place

    def find_path(self, path: tuple[str, ...]) -> tuple[int | None, bool]:
        """Return the column index of a key path, and True if longer paths may match columns."""
        separator = self._options.key_separator
        name = separator.join(path)
        has_inner = self._options.flatten_maps and (name + separator).upper() in self._prefixes
        return self.find_column_index(name), has_inner

    def _fill_nested(self, record: Object, exact: str, upper: str, values: list[object]) -> None:
        options = self._options
        for given, value in record.items():
            if not given and options.omit_empty_keys:
                continue
            key = given
            if options.suppress_nonalphanumeric_key_chars:
                key = _NON_ALPHANUMERIC.sub("_", given)
            name, folded = exact + key, upper + key.upper()
            place = self._exact_indexes.get(name)
            if place is None:
                place = self._folded_indexes.get(folded)
            if place is not None:
                values[place] = value
            inner = self._get_nested_members(value)
            if inner is not None:
                separator = options.key_separator
                if folded + separator.upper() in self._prefixes:
                    self._fill_nested(inner, name + separator, folded + separator.upper(), values)

    def _get_nested_members(self, value: object) -> Object | None:
        if isinstance(value, dict):
            return value if self._options.flatten_maps else None
        if isinstance(value, list) and self._options.flatten_arrays:
            return {str(index): item for index, item in enumerate(value)}
        return None


_TYPE_DESCRIPTIONS: dict[type, str] = {
    list: "an array",
    str: "a text",
    bool: "true or false",
    type(None): "null",
}


def _to_byte_offset(data: bytes, position: int) -> int:
    """Convert a character offset to a byte offset."""
    if data.isascii():
        return position
    return len(data.decode(errors="replace")[:position].encode())


def _parse_whole_number(text: str) -> int | Decimal:
    return Decimal(text) if text == "-0" else int(text)


def _make_object(pairs: list[tuple[str, Any]]) -> Object:
    made = dict(pairs)
    if len(made) == len(pairs):
        return made
    marked = DuplicateKeyObject(made)
    seen: set[str] = set()
    for key, _ in pairs:
        if key in seen:
            marked.key = key
        seen.add(key)
    return marked


def _find_duplicate_key(value: object) -> str | None:
    # A loop, because documents can nest deeper than Python's recursion limit allows.
    unchecked = [value]
    while unchecked:
        value = unchecked.pop()
        if isinstance(value, DuplicateKeyObject):
            return value.key
        if isinstance(value, dict | list):
            unchecked.extend(reversed(value.values() if isinstance(value, dict) else value))
    return None


def _has_empty_key(value: object) -> bool:
    if isinstance(value, dict):
        return "" in value or any(map(_has_empty_key, value.values()))
    return isinstance(value, list) and any(map(_has_empty_key, value))


def _iter_values_of_key(value: object, key: str) -> Iterator[object]:
    if isinstance(value, dict):
        for name, inner in value.items():
            if name == key:
                yield inner
            yield from _iter_values_of_key(inner, key)
    elif isinstance(value, list):
        for inner in value:
            yield from _iter_values_of_key(inner, key)
