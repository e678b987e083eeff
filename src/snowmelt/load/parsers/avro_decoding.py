"""Exact decoding of Avro: readers of logical types, and strict indexes of unions and enums.

fastavro rounds decimals with too many digits, wraps negative times of day, and reads timestamps in
nanoseconds as integers. `install_readers` registers exact readers for the process.

fastavro also counts negative indexes of unions and enums from the end, so that bytes of another
schema become values. Schemas from `parse_avro_schema` reject negative indexes.
"""

from __future__ import annotations

import datetime as dt
import io
from decimal import Context, Decimal
from typing import Any, SupportsIndex, cast

import fastavro
import fastavro.read
import pyarrow as pa

from snowmelt.schema.conversion.arrow_to_python import nanoseconds_to_datetime

_DAY_S, _DAY_US = 86_400, 86_400_000_000
_RANGED_TYPES = {
    "int-date": pa.timestamp("s"),
    "long-timestamp-millis": pa.timestamp("ms", "UTC"),
    "long-timestamp-micros": pa.timestamp("us", "UTC"),
    "long-local-timestamp-millis": pa.timestamp("ms"),
    "long-local-timestamp-micros": pa.timestamp("us"),
}
_ORIGINAL_READERS = dict(cast("dict[str, Any]", fastavro.read.LOGICAL_READERS))
_EXACT = Context(prec=1_000_000, Emax=1_000_000, Emin=-1_000_000)


def install_readers() -> None:
    """Register the readers with fastavro."""
    # fastavro documents this dictionary for additional logical types.
    readers = cast("dict[str, Any]", fastavro.read.LOGICAL_READERS)
    readers["bytes-decimal"] = readers["fixed-decimal"] = _read_decimal
    readers["int-time-millis"] = _read_time_millis
    readers["long-time-micros"] = _read_time_micros
    readers["long-timestamp-nanos"] = _read_timestamp_nanos
    readers["long-local-timestamp-nanos"] = _read_local_timestamp_nanos
    for name, target in _RANGED_TYPES.items():
        readers[name] = _make_ranged_reader(_ORIGINAL_READERS[name], target)


def _make_ranged_reader(original: Any, target: pa.DataType) -> Any:
    """Return a reader that returns an Arrow scalar outside of Python's years 1 to 9999.

    No column accepts the scalar, so it rejects its record. An exception would end the file.
    """

    def read(data: int, schema: Any, named: Any = None) -> Any:
        try:
            return original(data, schema, named)
        except (OverflowError, ValueError):
            # `repr` of an Arrow date has the range of Python.
            return pa.scalar(data * _DAY_S if target.unit == "s" else data, target)

    return read


def _read_decimal(data: bytes, schema: Any, _: Any = None) -> Decimal:
    unscaled = Decimal(int.from_bytes(data, "big", signed=True))
    return unscaled.scaleb(-schema.get("scale", 0), _EXACT)


class InvalidTimeOfDay:
    """A time of day that is negative, or 24 hours or more. No column accepts it.

    It rejects its record. An exception would end the file. It is no dataclass, which has a JSON form.
    """

    def __init__(self, microseconds: int) -> None:
        """Keep the count, for the text of the record."""
        self._microseconds = microseconds

    def __repr__(self) -> str:
        """Return the count, with the type."""
        return f"InvalidTimeOfDay({self._microseconds} us)"


def _read_time_millis(data: int, schema: Any, _: Any = None) -> dt.time | InvalidTimeOfDay:
    return _read_time_micros(data * 1000, schema)


def _read_time_micros(data: int, _schema: Any, _: Any = None) -> dt.time | InvalidTimeOfDay:
    if not 0 <= data < _DAY_US:
        return InvalidTimeOfDay(data)
    return (dt.datetime(1970, 1, 1, tzinfo=dt.UTC) + dt.timedelta(microseconds=data)).time()


def _read_timestamp_nanos(data: int, _schema: Any, _: Any = None) -> dt.datetime:
    return nanoseconds_to_datetime(data, dt.UTC)


def _read_local_timestamp_nanos(data: int, _schema: Any, _: Any = None) -> dt.datetime:
    return nanoseconds_to_datetime(data, None)


# --- Schemas with strict indexes, and messages.


class _StrictList(list[Any]):
    """Branches of a union, or symbols of an enum. A negative index is an error.

    fastavro adds the length to a negative index before the lookup. The length 0 keeps the index
    negative.
    """

    def __len__(self) -> int:
        return 0

    def __bool__(self) -> bool:
        return True

    def __getitem__(self, index: Any) -> Any:
        if cast("SupportsIndex", index).__index__() < 0:
            raise IndexError(f"the index {index} of a union or enum is negative")
        return super().__getitem__(index)


def make_indexes_strict(parsed: Any) -> None:
    """Change a schema that fastavro has parsed, so that its readers reject negative indexes.

    A union at the top of the schema is not changed.
    """
    pending, seen = [parsed], set()
    while pending:
        schema = pending.pop()
        if id(schema) in seen:
            continue
        seen.add(id(schema))
        if isinstance(schema, list):
            pending += list.__iter__(schema)
        elif isinstance(schema, dict):
            for key in ("type", "items", "values", "symbols"):
                if isinstance(schema.get(key), list):
                    schema[key] = _StrictList(schema[key])
                pending.append(schema.get(key))
            pending.append(schema.get("fields"))
            pending += schema.get("__named_schemas", {}).values()


def parse_avro_schema(schema: Any, named: dict[str, Any] | None = None) -> Any:
    """Parse the schema of messages, for `read_avro_message`. `named` has the types that it refers to.

    Raises:
        Exception: If the schema is invalid, as from `fastavro.parse_schema`.
    """
    # Wrap the schema in a record with one field, which has the same encoding as the field: fastavro
    # loses the referenced types of a schema that is a union or a name.
    fields = [{"name": "value", "type": schema}]
    record = {"type": "record", "name": "snowmelt_value", "fields": fields}
    parsed = fastavro.parse_schema(record, named_schemas={} if named is None else named)
    make_indexes_strict(parsed)
    return parsed


def read_avro_message(data: bytes, parsed_schema: Any) -> object:
    """Return the value of a message.

    Raises:
        ValueError: If bytes follow the value.
        Exception: If the bytes do not match the schema.
    """
    body = io.BytesIO(data)
    record: Any = fastavro.schemaless_reader(body, parsed_schema, None)
    if body.read(1):
        raise ValueError("bytes follow the record")
    return record["value"]
