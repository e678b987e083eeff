"""Chunks for tests: tables of every type, and Parquet files as the official clients write them."""

from __future__ import annotations

import io
from typing import Any, cast

import pyarrow as pa
import pyarrow.parquet as pq
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

from snowmelt.schema.chunk_types import chunk_arrow_schema, chunk_arrow_type, decimal_from_unscaled
from snowmelt.schema.types import TIMESTAMP_TYPES, Column, LogicalType, TableSchema

PATH = "2026/11/21/1/40/totwo8_abc_4711_18_0.bdec"
DATA_KEY = bytes(range(32))

# Hypothesis settings without a deadline: the time to build a chunk depends on other load.
relaxed = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])


def every_type(*, nullable: bool = True) -> TableSchema:
    """Return a table with a column of each type, scale and physical form."""
    forms: list[dict[str, Any]] = [
        {"kind": LogicalType.FIXED, "precision": precision, "scale": scale}
        for precision, scale in [
            (1, 0), (2, 0), (4, 0), (9, 0), (18, 0), (19, 0), (38, 0),
            (2, 2), (9, 5), (12, 2), (18, 18), (38, 37),
        ]
    ]  # fmt: skip
    forms += [{"kind": kind} for kind in (LogicalType.REAL, LogicalType.BOOLEAN, LogicalType.DATE)]
    forms += [{"kind": LogicalType.TEXT, "length": 16777216, "byte_length": 16777216}]
    forms += [{"kind": LogicalType.BINARY, "byte_length": 8388608}]
    forms += [
        {"kind": kind} for kind in (LogicalType.VARIANT, LogicalType.ARRAY, LogicalType.OBJECT)
    ]
    forms += [{"kind": LogicalType.TIME, "scale": scale} for scale in range(10)]
    forms += [
        {"kind": kind, "scale": scale} for kind in sorted(TIMESTAMP_TYPES) for scale in range(10)
    ]
    return TableSchema(
        1,
        tuple(
            Column(name=f"C{number}", ordinal=number, nullable=nullable, **form)
            for number, form in enumerate(forms, start=1)
        ),
    )


def stored_values(column: Column) -> st.SearchStrategy:
    """Return a strategy for stored values of a column, including extremes."""
    arrow_type = chunk_arrow_type(column)
    if pa.types.is_decimal(arrow_type):
        limit = 10**arrow_type.precision - 1
        return st.integers(-limit, limit) | st.sampled_from([-limit, 0, limit])
    match column.kind:
        case LogicalType.REAL:
            return st.floats()
        case LogicalType.BOOLEAN:
            return st.booleans()
        case LogicalType.DATE:
            return st.integers(-(2**31), 2**31 - 1)
        case LogicalType.BINARY:
            return st.binary(max_size=100)
        case LogicalType.TEXT:
            return st.text(max_size=60)
        case _:
            return st.sampled_from(["null", "1.50e2", '{"a":[1,"é"]}', "[]", '"\\u0000"'])


def chunk_column(column: Column, values: list[Any]) -> pa.Array:
    """Return stored values as an array in chunk form."""
    arrow_type = chunk_arrow_type(column)
    if pa.types.is_decimal(arrow_type):
        return decimal_from_unscaled(values, arrow_type.precision, arrow_type.scale)
    if column.kind is LogicalType.DATE:
        return pa.array(values, pa.int32()).cast(arrow_type)
    return pa.array(values, arrow_type)


@st.composite
def chunks(draw: st.DrawFn, *, max_rows: int = 12) -> tuple[TableSchema, pa.Table]:
    """Draw a schema with some columns of `every_type`, and rows for it in chunk form."""
    all_columns = every_type().columns
    chosen = draw(st.lists(st.sampled_from(all_columns), min_size=1, max_size=6, unique=True))
    columns = tuple(sorted(chosen, key=lambda column: column.ordinal))
    rows = draw(st.integers(1, max_rows))
    arrays = []
    for column in columns:
        values = st.none() | stored_values(column)
        arrays.append(chunk_column(column, draw(st.lists(values, min_size=rows, max_size=rows))))
    schema = TableSchema(1, columns)
    return schema, pa.Table.from_arrays(arrays, schema=chunk_arrow_schema(schema))


def texts_of(table: pa.Table) -> list[list[str]]:
    """Return values as texts, so that NaN equals NaN and -0.0 differs from 0.0."""
    return [[repr(value) for value in _python_values(column)] for column in table.columns]


def _python_values(column: pa.ChunkedArray) -> list[Any]:
    # Convert dates to integers, because Python has no dates outside the years 1 to 9999.
    values = column.cast(pa.int32()) if pa.types.is_date(column.type) else column
    return cast("list[Any]", values.to_pylist())


def as_java(table: pa.Table, schema: TableSchema, *, codec: str = "gzip", **options: Any) -> bytes:
    """Return a chunk's Parquet file as the official Java client writes it (specification §3.4).

    PLAIN encoding, version 1.0, data pages v1. Decimals have 16 bytes, unless a FIXED has scale 0
    and at most 18 digits, or the physical type is smaller. BINARY has the UTF8 annotation with any
    bytes.
    """
    fields, arrays = [], []
    for column, array in zip(schema.columns, table.combine_chunks().columns, strict=True):
        java = _java_form(
            column, array.combine_chunks() if array.num_chunks != 1 else array.chunk(0)
        )
        metadata = {"PARQUET:field_id": str(column.ordinal)}
        fields.append(pa.field(column.name, java.type, nullable=column.nullable, metadata=metadata))
        arrays.append(java)
    sink = io.BytesIO()
    pq.write_table(
        pa.Table.from_arrays(arrays, schema=pa.schema(fields)),
        sink,
        **{
            "version": "1.0",
            "data_page_version": "1.0",
            "use_dictionary": False,
            "compression": codec,
            "store_schema": False,
            "store_decimal_as_integer": True,
            "write_page_index": True,
            **options,
        },
    )
    return sink.getvalue()


def _java_form(column: Column, array: pa.Array) -> pa.Array:
    if column.kind is LogicalType.BINARY:
        return pa.Array.from_buffers(pa.string(), len(array), array.buffers(), offset=array.offset)
    wide = column.kind is LogicalType.FIXED and (column.scale or column.physical_type == "SB16")
    if wide or column.physical_type == "SB16":
        return array.cast(pa.decimal128(38, array.type.scale))
    return array


def with_precision(parquet: bytes, precision: int) -> bytes:
    """Rewrite the footer's decimal(38, s) to a smaller precision, as Java declares FLBA(16)."""
    size = int.from_bytes(parquet[-8:-4], "little")
    footer = parquet[-8 - size : -8]
    # Thrift compact: an i32 with the next field ID (0x15), then zigzag 38 (0x4C).
    changed = footer.replace(b"\x15\x4c", bytes([0x15, precision * 2]))
    return parquet[: -8 - size] + changed + parquet[-8:]
