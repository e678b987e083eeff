"""The full check of a chunk: every value decodes, and its statistics are true.

Queries skip chunks by their statistics, so a bound that is too narrow would hide rows.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from snowmelt.blob import reader
from snowmelt.errors import SnowmeltError
from snowmelt.ingest.structure import Refusal
from snowmelt.schema import statistics
from snowmelt.wire import eps
from snowmelt.wire.codes import ResponseCode

if TYPE_CHECKING:
    from typing import TypeAlias

    from snowmelt.blob.crypto import Readable
    from snowmelt.schema.types import TableSchema
    from snowmelt.wire.streaming import Statistics

    Value: TypeAlias = int | float | bytes


def mismatch(
    parquet: Readable, schema: TableSchema, claimed: Statistics, *, path: str
) -> Refusal | None:
    """Decode a decrypted chunk and compare it with its statistics; None when all is true."""
    try:
        table = reader.read_chunk(parquet, schema, path=path)
    except SnowmeltError as error:
        return Refusal(ResponseCode.BLOB_FORMAT_WRONG, str(error))
    bounds = eps.from_wire(schema, claimed)
    actual = statistics.collect(table, schema)
    for column, found in zip(schema.columns, actual.columns, strict=True):
        said = bounds.get(column.ordinal)
        if said is None:
            continue
        if said.null_count is not None and said.null_count != found.null_count:
            return Refusal(
                ResponseCode.EP_INVALID,
                f"column {column.display_name} has {found.null_count:,} nulls, its statistics"
                f" say {said.null_count:,}",
            )
        if _below(found.minimum, said.minimum) or _below(said.maximum, found.maximum):
            return Refusal(
                ResponseCode.EP_VALUE_INVALID,
                f"column {column.display_name} has values outside of its statistics",
            )
    return None


def _below(lower: Value | None, upper: Value | None) -> bool:
    """Tell whether `lower` is the smaller one; False when either is unknown."""
    if lower is None or upper is None:
        return False
    return bool(_order(lower) < _order(upper))


def _order(value: Value) -> tuple[int, Value, float]:
    # Java's order of doubles: -0.0 below 0.0, NaN above everything (specification of v1, §6).
    if isinstance(value, float):
        is_nan = math.isnan(value)
        return (int(is_nan), 0.0 if is_nan else value, math.copysign(1.0, value) * (not is_nan))
    return (0, value, 0.0)
