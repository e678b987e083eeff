"""Runs a parser by name on bytes or messages, and collects rows and rejects."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

import pyarrow as pa

from snowmelt.load.parsers import definition
from snowmelt.load.phase_protocols import ByteReader, ColumnOptions, ParseTarget
from snowmelt.load.portion import InputFile, Portion

if TYPE_CHECKING:
    from snowmelt.load.phase_definition import PhaseDefinition
    from snowmelt.schema.types import TableSchema


FILE = InputFile("x")
WHOLE = Portion(FILE)


def load(
    name: Any,
    data: Any,
    schema: TableSchema,
    *,
    portion: Portion = WHOLE,
    size: int | None = None,
    options: dict[str, ColumnOptions] | None = None,
    **parameters: Any,
) -> tuple[list[tuple[Any, ...]], list[Any]]:
    """Return rows and rejects of bytes that are read in slices of `size`."""
    step = size or len(data) or 1
    pieces = [data[at : at + step] for at in range(0, len(data), step)]
    parser = cast("PhaseDefinition[Any]", definition(name)).build_phase(parameters)
    return _summed(parser.parse(ByteReader(pieces), ParseTarget(schema, options or {}), portion))


def load_records(
    name: Any, messages: list[bytes], schema: TableSchema, **parameters: Any
) -> tuple[list[tuple[Any, ...]], list[Any]]:
    """Return rows and rejects of messages."""
    batches = iter([pa.array(messages, pa.binary())])
    return _summed(
        cast("PhaseDefinition[Any]", definition(name))
        .build_phase(parameters)
        .parse_records(batches, ParseTarget(schema))
    )


def _summed(parts: Any) -> tuple[list[tuple[Any, ...]], list[Any]]:
    parts = list(parts)
    rows = [tuple(row.values()) for part in parts for row in part.rows.to_pylist()]
    rejects = [reject for part in parts for reject in part.rejects]
    assert sum(part.records for part in parts) == len(rows) + len(rejects)
    numbers = [reject.record for reject in rejects]
    assert numbers == sorted(set(numbers))
    return rows, rejects
