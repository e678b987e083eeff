"""From the columns that were parsed to the columns of the table."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pyarrow as pa

from snowmelt.schema.native import native_schema

if TYPE_CHECKING:
    from snowmelt.load.parsed import Parsed
    from snowmelt.load.placing import Placer
    from snowmelt.load.steps import StackPlan


class Shaper:
    """Turns blocks of parsed columns into blocks of the table's columns."""

    def __init__(self, plan: StackPlan) -> None:
        self._plan = plan
        self._parsed = native_schema(plan.target.schema)
        self._table = native_schema(plan.table)

    def shape(self, block: Parsed, before: int, placer: Placer) -> Parsed:
        """Return a block in native form of the table; `before` counts the records before it.

        Raises:
            LoadFailed: An expression fails; says which, and for which record.
        """
        if self._parsed.equals(self._table):
            return block
        rows = block.rows
        arrays = [
            rows.column(field.name)
            if field.name in rows.schema.names
            else pa.nulls(rows.num_rows, field.type)
            for field in self._table
        ]
        return replace(block, rows=pa.Table.from_arrays(arrays, schema=self._table))
